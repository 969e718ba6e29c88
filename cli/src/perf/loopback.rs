//! What this machine's UDP loopback can do by itself: the yardstick for the soft provider in the same run.
//!
//! Two threads with one plain UDP socket each. *Throughput*: trains of datagrams as large as RoCE packets at a path MTU
//! of 4,096, segmented by the kernel, with a bounded number of bytes under way. *Ping-pong*: the packets of one 4 KiB
//! read at depth 1, a command one way and a response the other way.
#![expect(unsafe_code, reason = "UDP_SEGMENT and UDP_GRO have no safe setter")]

use core::mem::size_of;
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::clock::now;
use crate::latency::Latency;

/// Payload of 4,096 bytes with the BTH, RETH and ICRC around it.
const SEGMENT_BYTES: usize = 4096 + 32;
const TRAIN_BYTES: usize = 15 * SEGMENT_BYTES;
/// A stock receive buffer of 208 KiB holds two trains and the kernel's bookkeeping for them.
const WINDOW_BYTES: u64 = 2 * TRAIN_BYTES as u64;
const COMMAND_BYTES: usize = 64 + 16;
const RESPONSE_BYTES: usize = SEGMENT_BYTES;
/// After this long without an answer a datagram counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct Loopback {
    bytes_per_second: f64,
    segmented: bool,
    round_trips_per_second: f64,
    round_trip: Latency,
}

impl Loopback {
    /// Measures for about `runtime`, half of it for each figure.
    pub(crate) fn measure(runtime: Duration) -> io::Result<Self> {
        let (bytes_per_second, segmented) = throughput(runtime / 2)?;
        let round_trip = ping_pong(runtime / 2)?;
        Ok(Self {
            bytes_per_second,
            segmented,
            round_trips_per_second: round_trip.count() as f64 / (runtime / 2).as_secs_f64(),
            round_trip,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "bytes_per_second": self.bytes_per_second,
            "udp_segmentation": self.segmented,
            "round_trips_per_second": self.round_trips_per_second,
            "round_trip_ns": self.round_trip.to_json(),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        format!(
            "raw UDP loopback: {:.1} MB/s one way ({}), {:.0} round trips/s of a 4 KiB read (latency in us: {})\n",
            self.bytes_per_second / 1e6,
            if self.segmented { "UDP_SEGMENT, UDP_GRO" } else { "one datagram per call" },
            self.round_trips_per_second,
            self.round_trip.to_text(),
        )
    }
}

/// Bytes per second that arrive, and whether the kernel segmented them.
fn throughput(runtime: Duration) -> io::Result<(f64, bool)> {
    let (sender, receiver) = connected_pair()?;
    let segmented = set_udp_option(&sender, libc::UDP_SEGMENT, SEGMENT_BYTES as libc::c_int)
        .is_ok()
        && set_udp_option(&receiver, libc::UDP_GRO, 1).is_ok();
    let train = vec![0x5A; if segmented { TRAIN_BYTES } else { SEGMENT_BYTES }];
    let stop = AtomicBool::new(false);
    let start = now();
    let received = std::thread::scope(|scope| {
        let sink = scope.spawn(|| acknowledge_all(&receiver, &stop));
        let sent = send_windowed(&sender, &train, runtime);
        stop.store(true, Ordering::Relaxed);
        let received = sink.join().expect("the receiving thread does not panic");
        sent.and(received)
    })?;
    Ok((received as f64 / start.elapsed().as_secs_f64(), segmented))
}

/// Sends until `runtime` is over, with at most the window between what was sent and what was acknowledged.
fn send_windowed(socket: &UdpSocket, train: &[u8], runtime: Duration) -> io::Result<()> {
    let start = now();
    let (mut sent, mut acknowledged) = (0_u64, 0_u64);
    while start.elapsed() < runtime {
        if sent - acknowledged + train.len() as u64 <= WINDOW_BYTES {
            sent += socket.send(train)? as u64;
            continue;
        }
        let mut total = [0; 8];
        match socket.recv(&mut total) {
            // After a loss was written off, what arrives late must not count twice.
            Ok(_) => acknowledged = u64::from_le_bytes(total).clamp(acknowledged, sent),
            Err(error) if timed_out(&error) => (sent, acknowledged) = (acknowledged, acknowledged),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Counts what arrives and answers each receive call with the total.
fn acknowledge_all(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    while !stop.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(bytes) => {
                total += bytes as u64;
                socket.send(&total.to_le_bytes())?;
            }
            Err(error) if timed_out(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// Times of round trips.
fn ping_pong(runtime: Duration) -> io::Result<Latency> {
    let (host, target) = connected_pair()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| answer_all(&target, &stop));
        let asked = ask_repeatedly(&host, runtime);
        stop.store(true, Ordering::Relaxed);
        echo.join().expect("the answering thread does not panic")?;
        asked
    })
}

fn ask_repeatedly(socket: &UdpSocket, runtime: Duration) -> io::Result<Latency> {
    let mut times = Latency::default();
    let mut buffer = [0; RESPONSE_BYTES];
    let start = now();
    while start.elapsed() < runtime {
        let asked = now();
        socket.send(&[0; COMMAND_BYTES])?;
        match socket.recv(&mut buffer) {
            Ok(_) => times.record(asked.elapsed()),
            Err(error) if timed_out(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(times)
}

fn answer_all(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = [0; COMMAND_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(_) => _ = socket.send(&[0; RESPONSE_BYTES])?,
            Err(error) if timed_out(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn connected_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let pair = (UdpSocket::bind(any_port)?, UdpSocket::bind(any_port)?);
    pair.0.connect(pair.1.local_addr()?)?;
    pair.1.connect(pair.0.local_addr()?)?;
    pair.0.set_read_timeout(Some(LOST_AFTER))?;
    pair.1.set_read_timeout(Some(LOST_AFTER))?;
    Ok(pair)
}

fn timed_out(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the length of the borrow, and the kernel only reads `length` bytes of `value`,
    // which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_come_out() {
        let loopback = Loopback::measure(Duration::from_millis(200)).unwrap();
        assert!(loopback.bytes_per_second > 0.0);
        assert!(loopback.round_trip.count() > 0);
    }
}
