//! Measures how many bytes per second go one way without loss.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::socket::{self, PairSocket};
use crate::clock::now;
use crate::cores::{HOST_CORE, TARGET_CORE, pin};

/// Bytes of headers and checksum around the payload of an RDMA WRITE of one packet.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: usize = 32;
/// Windows to try: bytes in flight, in KiB.
const WINDOWS_KIB: [usize; 4] = [128, 256, 512, 1024];
/// Maximum train that every kernel accepts, in bytes and in datagrams.
const TRAIN_BYTES: usize = 65_000;
const TRAIN_DATAGRAMS: usize = 64;
/// Acknowledgements per window, so that the sender has room before half a window is acknowledged.
const ACKNOWLEDGEMENTS_IN_WINDOW: usize = 4;
/// Time after which a datagram on loopback counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// Time of polling before a sleep, the default of a host.
const POLLING: Duration = Duration::from_micros(50);

/// Returns the best goodput of the windows at which no datagram is lost, in bytes per second. Each
/// window is measured for `runtime`.
pub(crate) fn measure(path_mtu: usize, trains: bool, runtime: Duration) -> Result<f64> {
    let mut best = None;
    for window in WINDOWS_KIB {
        let goodput = DatagramFlow::new(path_mtu, trains, window << 10).measure(runtime)?;
        best = goodput.into_iter().chain(best).max_by(f64::total_cmp);
    }
    best.context(
        "plain UDP over loopback loses packets at every window: is net.core.rmem_max tiny?",
    )
}

/// Flow of datagrams from one socket to another, with a limit on unacknowledged bytes.
struct DatagramFlow {
    datagram: usize,
    trains: bool,
    window: usize,
}

impl DatagramFlow {
    fn new(path_mtu: usize, trains: bool, window: usize) -> Self {
        Self { datagram: path_mtu + DATAGRAM_OVERHEAD_BYTES, trains, window }
    }

    /// Bytes of a train. Several trains fit into the window, so that both ends work at the same
    /// time.
    fn train_bytes(&self) -> usize {
        let room = TRAIN_BYTES.min(self.window / ACKNOWLEDGEMENTS_IN_WINDOW);
        let datagrams = if self.trains { (room / self.datagram).min(TRAIN_DATAGRAMS) } else { 1 };
        datagrams * self.datagram
    }

    /// Returns bytes per second; `None` if a datagram was lost.
    fn measure(&self, runtime: Duration) -> Result<Option<f64>> {
        let (sender, receiver) = socket::pair()?;
        let (sender, receiver) = (sender.polling(POLLING), receiver.polling(POLLING));
        if self.trains {
            sender.cut(self.datagram)?;
            receiver.join()?;
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let sink = scope.spawn(|| self.acknowledge_all(&receiver, &stop));
            let source = scope.spawn(|| self.send_all(&sender, runtime));
            let goodput = source.join().expect("the sending thread does not panic");
            stop.store(true, Ordering::Relaxed);
            sink.join().expect("the receiving thread does not panic")?;
            goodput
        })
    }

    fn send_all(&self, socket: &PairSocket, runtime: Duration) -> Result<Option<f64>> {
        // In a read, data flows from the target to the host.
        pin(TARGET_CORE);
        let train = vec![0x5A; self.train_bytes()];
        let (mut sent, mut acknowledged) = (0, 0);
        let start = now();
        // On a busy machine the receiver may not have run once within `runtime`.
        while start.elapsed() < runtime || acknowledged == 0 {
            let room = sent - acknowledged + train.len() <= self.window;
            if room && socket.send(&train)? {
                sent += train.len();
                continue;
            }
            match next_acknowledgement(socket)? {
                Some(total) => acknowledged = total,
                None => return Ok(None),
            }
        }
        let elapsed = start.elapsed();
        Ok(Some(acknowledged as f64 / elapsed.as_secs_f64()))
    }

    /// Receives datagrams, and sends the total of bytes after each part of a window, and when no
    /// further datagram is waiting.
    fn acknowledge_all(&self, socket: &PairSocket, stop: &AtomicBool) -> Result<()> {
        pin(HOST_CORE);
        let mut buffer = vec![0; 1 << 16];
        let (mut total, mut told) = (0_usize, 0);
        while !stop.load(Ordering::Relaxed) {
            let received = match socket.try_receive(&mut buffer)? {
                Some(received) => Some(received),
                None => {
                    if told < total {
                        socket.send(&total.to_le_bytes())?;
                        told = total;
                    }
                    socket.receive(&mut buffer, LOST_AFTER / 4)?
                }
            };
            total += received.unwrap_or(0);
            if total - told >= self.window / ACKNOWLEDGEMENTS_IN_WINDOW {
                socket.send(&total.to_le_bytes())?;
                told = total;
            }
        }
        Ok(())
    }
}

/// Returns the latest total of the receiver; `None` after a timeout, since a datagram was lost.
fn next_acknowledgement(socket: &PairSocket) -> Result<Option<usize>> {
    let mut total = [0; size_of::<usize>()];
    if socket.receive(&mut total, LOST_AFTER)?.is_none() {
        return Ok(None);
    }
    while socket.try_receive(&mut total)?.is_some() {}
    Ok(Some(usize::from_le_bytes(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_hold_whole_datagrams_within_the_window() {
        for path_mtu in [1024, 4096] {
            for window in WINDOWS_KIB {
                let flow = DatagramFlow::new(path_mtu, true, window << 10);
                let train = flow.train_bytes();
                assert_eq!(train % flow.datagram, 0);
                assert!(train <= TRAIN_BYTES && train / flow.datagram <= TRAIN_DATAGRAMS);
                assert!(train > 0 && train * 2 <= flow.window);
            }
        }
    }

    #[test]
    fn bytes_arrive_with_and_without_trains() {
        for trains in [false, true] {
            let flow = DatagramFlow::new(1024, trains, 128 << 10);
            let goodput = flow.measure(Duration::from_millis(20)).unwrap();
            assert!(goodput.is_none_or(|goodput| goodput > 0.0));
        }
    }
}
