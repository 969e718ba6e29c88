//! The router between two namespaces.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use super::bottleneck::{Bottleneck, PacketCounts};
use super::namespace::MTU_BYTES;
use super::path::Path;
use crate::clock::now;

/// A system call that sleeps wakes up to this late.
const WAKE_UP_DELAY: Duration = Duration::from_micros(60);

/// Packets taken before those that are due go on.
const BATCH: usize = 32;

/// Carries packets both ways, until it is stopped.
pub(super) struct Router {
    over: Arc<AtomicBool>,
    directions: Vec<JoinHandle<Result<PacketCounts>>>,
}

impl Router {
    /// Starts a thread for each direction.
    pub(super) fn start(path: Path, devices: &[Arc<SyncDevice>; 2]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let directions = [(0, 1), (1, 0)].map(|(from, to)| {
            let (from_device, to_device) = (Arc::clone(&devices[from]), Arc::clone(&devices[to]));
            let (over, link) = (Arc::clone(&over), Bottleneck::new(path, from as u64));
            thread::spawn(move || forward(&from_device, &to_device, link, &over))
        });
        Self { over, directions: directions.into() }
    }

    /// What happened to packets from the first device, and from the second.
    pub(super) fn stop(mut self) -> Result<[PacketCounts; 2]> {
        let counts = self.end();
        let mut counts = counts.into_iter();
        let mut next = || counts.next().unwrap_or_else(|| Err(anyhow!("a direction is missing")));
        Ok([next()?, next()?])
    }

    fn end(&mut self) -> Vec<Result<PacketCounts>> {
        self.over.store(true, Ordering::Relaxed);
        let joined = self.directions.drain(..).map(JoinHandle::join);
        joined
            .map(|outcome| outcome.unwrap_or_else(|_| Err(anyhow!("the router panicked"))))
            .collect()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.end();
    }
}

fn forward(
    from: &SyncDevice,
    to: &SyncDevice,
    mut link: Bottleneck,
    over: &AtomicBool,
) -> Result<PacketCounts> {
    let mut buffer = [0; MTU_BYTES as usize];
    while !over.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            match from.recv(&mut buffer) {
                Ok(length) => link.admit(now(), &buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        // A full receiver loses the packet, as it would on a wire.
        while link.deliver(now(), |packet| drop(to.send(packet))) {}
        wait(from, &link)?;
    }
    Ok(link.counts)
}

/// Sleeps until a packet comes or one is due soon; the last microseconds are polled.
fn wait(from: &SyncDevice, link: &Bottleneck) -> Result<()> {
    let due = link.next().map(|at| at.saturating_duration_since(now()));
    let sleep = due.unwrap_or(Duration::from_millis(100)).saturating_sub(WAKE_UP_DELAY);
    if !sleep.is_zero() {
        poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&Timespec::try_from(sleep)?))?;
    }
    Ok(())
}
