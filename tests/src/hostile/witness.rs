//! A well-behaved host beside a hostile peer, which must not affect it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use feedrail_initiator::{Host, Namespace, RdmaProvider, ReadRange, WriteRange};

use crate::process::{Bytes, Daemon, empty_slice, host, slice_of};

/// The witness has the first part of the namespace to itself.
const AREA_BYTES: u64 = 4 << 20;
const RANGE_BYTES: u64 = 20_000;
const RANGES: u64 = 16;
const IO_QUEUES: u16 = 2;
/// Timeout of the witness's commands and reconnects: a busy machine takes long for everything.
const WITNESS_TIMEOUT: Duration = Duration::from_secs(60);

/// A host that writes and reads back its part of namespace 1 and checks every byte, in a thread of
/// its own.
#[derive(Debug)]
pub struct Witness {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Bytes from the start of the namespace that only the witness writes.
    pub const AREA_BYTES: u64 = AREA_BYTES;
    /// Bytes that each round reads, and writes before.
    pub const ROUND_BYTES: u64 = RANGES * RANGE_BYTES;

    /// Connections of the witness: the admin queue and the I/O queues.
    pub const CONNECTIONS: u64 = 1 + IO_QUEUES as u64;

    /// Starts the witness, and returns when its first round has ended.
    ///
    /// # Panics
    /// If the daemon does not serve it.
    pub fn start(daemon: &Daemon) -> Self {
        Self::of(&Self::host(), daemon)
    }

    /// A host with the timeouts of a witness.
    ///
    /// # Panics
    /// If there is no device for it.
    pub fn host() -> Host {
        // It is to share the device with the others.
        let host = host().provider(RdmaProvider::Soft).io_queues(IO_QUEUES);
        let host = host.loss_timeout(WITNESS_TIMEOUT).io_timeout(WITNESS_TIMEOUT);
        host.build().expect("a host can be made")
    }

    /// Starts the witness as one of several things that a host does, and returns when its first
    /// round has ended.
    ///
    /// # Panics
    /// If the daemon does not serve it.
    pub fn of(host: &Host, daemon: &Daemon) -> Self {
        let (host, namespace) = (host.clone(), daemon.open(host));
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let mut random = Bytes::new(77);
        round(&host, &namespace, &mut random);
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                round(&host, &namespace, &mut random);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, rounds, thread: Some(thread) }
    }

    /// Rounds that ended until now.
    ///
    /// # Panics
    /// If something was not as it had to be.
    pub fn rounds(&mut self) -> u64 {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            self.finish();
            panic!("the witness gave up");
        }
        self.rounds.load(Ordering::Relaxed)
    }

    /// Stops the thread and waits for its last round.
    ///
    /// # Panics
    /// If something was not as it had to be.
    pub fn finish(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("every byte was right, and nothing failed");
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Writes ranges that do not overlap, and reads them back.
fn round(host: &Host, namespace: &Namespace, random: &mut Bytes) {
    let slot_bytes = AREA_BYTES / RANGES;
    let ranges: Vec<(u64, Vec<u8>)> = (0..RANGES)
        .map(|slot| {
            let offset = slot * slot_bytes + random.below(slot_bytes - RANGE_BYTES);
            (offset, random.take(RANGE_BYTES as usize))
        })
        .collect();
    let writes = ranges.iter().map(|(offset, bytes)| WriteRange {
        namespace: namespace.clone(),
        offset: *offset,
        from: slice_of(bytes),
    });
    for outcome in host.write_many(writes).wait() {
        outcome.result.expect("a witness's write");
    }
    let reads = ranges.iter().map(|(offset, bytes)| ReadRange {
        namespace: namespace.clone(),
        offset: *offset,
        into: empty_slice(bytes.len()),
    });
    for (outcome, (offset, bytes)) in host.read_many(reads).wait().into_iter().zip(&ranges) {
        outcome.result.expect("a witness's read");
        assert!(*outcome.slice.bytes() == **bytes, "the witness read other bytes at {offset}");
    }
}
