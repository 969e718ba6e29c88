//! Batches by plan: one buffer, many ranges, a result for each.
#![expect(unsafe_code, reason = "writes to memory that Python objects export")]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feedrail_initiator::{
    BatchOptions, Class, Error, ErrorKind, Grant, Host, Namespace, Pending, RangeOutcome,
    ReadRange, RegionSlice,
};

use crate::entry::ENTRY_BYTES;

/// An entry of a plan: `length` bytes at `offset` of a shard go to `dst` of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanEntry {
    pub(crate) shard: u32,
    pub(crate) length: u32,
    pub(crate) offset: u64,
    pub(crate) dst: u64,
}

impl PlanEntry {
    /// From the little-endian layout of `feedrail.PLAN_DTYPE`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let bytes: [u8; ENTRY_BYTES] = bytes.try_into().expect("the caller cut whole entries");
        let [shard, length] =
            [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        let [offset, dst] =
            [8, 16].map(|at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        Self { shard, length, offset, dst }
    }
}

/// Memory that batches read into.
pub(crate) struct HostRegion {
    address: NonNull<u8>,
    length: usize,
    _pages: Option<RegionSlice>,
    release: Option<Box<dyn FnOnce() + Send>>,
}

// SAFETY: only `place` writes to it, where the caller allowed it; nothing is referenced.
unsafe impl Send for HostRegion {}
// SAFETY: as above.
unsafe impl Sync for HostRegion {}

impl HostRegion {
    pub(crate) fn allocate(length: usize) -> io::Result<Self> {
        let mut pages = RegionSlice::allocate(length, Grant::Persistent)?;
        let address = NonNull::new(pages.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Ok(Self { address, length, _pages: Some(pages), release: None })
    }

    /// # Safety
    /// The bytes stay mapped and writable until `release` is called.
    pub(crate) unsafe fn from_raw(
        address: NonNull<u8>,
        length: usize,
        release: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self { address, length, _pages: None, release: Some(Box::new(release)) }
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    fn place(&self, at: usize, bytes: &RegionSlice) {
        assert!(at + bytes.len() <= self.length, "checked at submit");
        // SAFETY: within the memory, which is writable.
        unsafe {
            bytes.as_ptr().copy_to_nonoverlapping(self.address.as_ptr().add(at), bytes.len())
        };
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

/// How one entry of a plan ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryResult {
    pub(crate) status: u16,
    pub(crate) path: u8,
    pub(crate) attempts: u8,
    pub(crate) latency_us: u32,
}

/// A plan that is under way.
pub(crate) struct Batch {
    entries: Vec<PlanEntry>,
    into: Arc<HostRegion>,
    state: Mutex<BatchState>,
}

enum BatchState {
    Running(Pending<Vec<RangeOutcome>>),
    Over(Vec<Result<(), Error>>),
}

impl Batch {
    pub(crate) fn submit(
        host: &Host,
        shards: &[Namespace],
        entries: Vec<PlanEntry>,
        into: Arc<HostRegion>,
        deadline: Option<Duration>,
        class: Class,
    ) -> Self {
        let options = BatchOptions::new().class(class);
        let options = deadline.map_or(options, |deadline| options.deadline(deadline));
        let ranges = entries.iter().map(|entry| ReadRange {
            namespace: shards[entry.shard as usize].clone(),
            offset: entry.offset,
            into: RegionSlice::from_vec(vec![0; entry.length as usize], Grant::Persistent),
        });
        let pending = host.read_many_with(options, ranges.collect::<Vec<_>>());
        Self { entries, into, state: Mutex::new(BatchState::Running(pending)) }
    }

    /// Whether it is over; if not, `waker` is woken when it is.
    pub(crate) fn poll(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        let BatchState::Running(pending) = &mut *state else { return true };
        let Poll::Ready(outcomes) = Pin::new(pending).poll(&mut Context::from_waker(waker)) else {
            return false;
        };
        let results = outcomes.into_iter().zip(&self.entries).map(|(outcome, entry)| {
            outcome.result.map(|()| self.into.place(entry.dst as usize, &outcome.slice))
        });
        *state = BatchState::Over(results.collect());
        true
    }

    /// Ends entries that are not over, and returns their number.
    pub(crate) fn cancel(&self) -> usize {
        let mut state = self.lock();
        if let BatchState::Over(_) = *state {
            return 0;
        }
        let cancelled = Error::from(ErrorKind::Closed);
        *state = BatchState::Over(self.entries.iter().map(|_| Err(cancelled.clone())).collect());
        self.entries.len()
    }

    pub(crate) fn entries(&self) -> &[PlanEntry] {
        &self.entries
    }

    pub(crate) fn results(&self) -> Vec<EntryResult> {
        let BatchState::Over(results) = &*self.lock() else { return Vec::new() };
        results.iter().map(EntryResult::of).collect()
    }

    /// Entries that failed, by number, at most so many.
    pub(crate) fn failures(&self, at_most: usize) -> Vec<(usize, Error)> {
        let BatchState::Over(results) = &*self.lock() else { return Vec::new() };
        let failed = results.iter().enumerate();
        failed.filter_map(|(at, result)| Some((at, result.clone().err()?))).take(at_most).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EntryResult {
    /// The status of an entry that failed without one of the controller's.
    const LOCAL_FAILURE: u16 = 0xFFFF;

    fn of(result: &Result<(), Error>) -> Self {
        let status = |error: &Error| {
            error.status().map_or(Self::LOCAL_FAILURE, |status| status.without_flags().to_bits())
        };
        Self { status: result.as_ref().err().map_or(0, status), attempts: 1, ..Self::default() }
    }

    /// In the little-endian layout of `feedrail.RESULT_DTYPE`.
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let [s0, s1] = self.status.to_le_bytes();
        let [l0, l1, l2, l3] = self.latency_us.to_le_bytes();
        [s0, s1, self.path, self.attempts, l0, l1, l2, l3]
    }
}
