//! Measures round trips with the packets of a 4 KiB read, one at a time: a command in one
//! direction, data and response in the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::socket::{self, PairSocket};
use crate::clock::now;
use crate::cores::{HOST_CORE, TARGET_CORE, pin};
use crate::figures::Spread;

const COMMAND_BYTES: usize = 92;
const DATA_BYTES: usize = 4128;
const RESPONSE_BYTES: usize = 36;
const LOST_AFTER: Duration = Duration::from_millis(100);
/// Unanswered requests in succession, for one minute, after which loopback counts as broken.
const LOST_MAX: u32 = 600;

/// Returns the median round trip in microseconds. Before they sleep, the two sides poll for `host`
/// and `target`, the times of the soft provider's host and target.
pub(crate) fn measure(host: Duration, target: Duration, runtime: Duration) -> Result<f64> {
    let (asking, answering) = socket::pair()?;
    let (asking, answering) = (asking.polling(host), answering.polling(target));
    let stop = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        let target = scope.spawn(|| answer_all(&answering, &stop));
        let host = scope.spawn(|| ask_repeatedly(&asking, runtime));
        let times = host.join().expect("the asking thread does not panic");
        stop.store(true, Ordering::Relaxed);
        target.join().expect("the answering thread does not panic")?;
        times
    })?;
    Ok(Spread::of(&times).context("no answer over loopback")?.median)
}

/// Returns round trips in microseconds, at least one: on a busy machine the answering thread may
/// not have run once within `runtime`. Fails if no request is answered.
fn ask_repeatedly(socket: &PairSocket, runtime: Duration) -> Result<Vec<f64>> {
    pin(HOST_CORE);
    let mut buffer = [0; DATA_BYTES];
    let mut times = Vec::new();
    let mut lost = 0;
    let start = now();
    while start.elapsed() < runtime || (times.is_empty() && lost < LOST_MAX) {
        let asked = now();
        socket.send(&[0; COMMAND_BYTES])?;
        // Data, then the response.
        if socket.receive(&mut buffer, LOST_AFTER)?.is_some()
            && socket.receive(&mut buffer, LOST_AFTER)?.is_some()
        {
            times.push(asked.elapsed().as_secs_f64() * 1e6);
        } else {
            lost += 1;
        }
    }
    Ok(times)
}

fn answer_all(socket: &PairSocket, stop: &AtomicBool) -> Result<()> {
    pin(TARGET_CORE);
    let mut buffer = [0; COMMAND_BYTES];
    while !stop.load(Ordering::Relaxed) {
        if socket.receive(&mut buffer, LOST_AFTER)?.is_some() {
            socket.send(&[0; DATA_BYTES])?;
            socket.send(&[0; RESPONSE_BYTES])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come() {
        let time = Duration::from_micros(50);
        assert!(measure(Duration::ZERO, time, Duration::from_millis(20)).unwrap() > 0.0);
    }
}
