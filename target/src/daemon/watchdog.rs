//! Watchdog of systemd (`sd_watchdog_enabled(3)`): it is notified while all threads make progress.

use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError};

use super::notify;
use crate::driver::turn_mark::TurnWatch;

/// Interval at which to notify systemd; `None` if its watchdog is off for this process.
pub(super) fn interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    of_variables(number("WATCHDOG_USEC"), number("WATCHDOG_PID"), std::process::id())
}

/// Returns half of the time after which systemd acts on a missing notification.
fn of_variables(micros: Option<u64>, watched: Option<u64>, own: u32) -> Option<Duration> {
    if watched.is_some_and(|watched| watched != u64::from(own)) {
        return None;
    }
    micros.filter(|micros| *micros > 1).map(|micros| Duration::from_micros(micros / 2))
}

/// Notifies systemd at each `interval` in which all threads have made progress, until the other end
/// of `stop` is dropped.
pub(super) fn run(mut watch: TurnWatch, interval: Duration, stop: &Receiver<()>) {
    let mut hangs = false;
    while stop.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let go_on = watch.all_go_on();
        if go_on {
            notify::watchdog();
        }
        if hangs == go_on {
            hangs = !go_on;
            match hangs {
                true => tracing::error!(?interval, "a thread has been in one turn for so long"),
                false => tracing::info!("all threads make progress again"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_are_those_of_systemd() {
        let second = Duration::from_secs(1);
        assert_eq!(of_variables(Some(2_000_000), None, 7), Some(second));
        assert_eq!(of_variables(Some(2_000_000), Some(7), 7), Some(second));
        assert_eq!(of_variables(Some(2_000_000), Some(8), 7), None);
        assert_eq!(of_variables(Some(0), None, 7), None);
        assert_eq!(of_variables(None, None, 7), None);
    }
}
