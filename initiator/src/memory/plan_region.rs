//! Registered memory that plans read into or write from, with the bytes in use.
#![expect(unsafe_code, reason = "copies out of registered memory and hands it out as bytes")]

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::process::{Forked, Process};
use crate::memory::interval_set::IntervalSet;
use crate::memory::region::{ErasedScope, Grant, Keys, RegionSlice};
use crate::types::error::{Error, ErrorKind};
use crate::types::plan::PlanError;

/// Registered memory that [plans](crate::Host::submit) read into or
/// [write from](crate::Host::submit_write).
///
/// Several plans may use disjoint parts of it concurrently. The bytes in use are tracked: a plan
/// that overlaps one in flight is rejected ([`PlanError::InFlight`]), unless both write from the
/// bytes. The bytes of a plan are free again when its last range has ended.
///
/// The memory is registered at its first use with each controller, like a [`RegionSlice`]. After
/// the region is dropped, the memory stays registered and allocated until no range is in flight. In
/// a process that was forked since, nothing is freed and no plan can be submitted.
pub struct Region {
    inner: Arc<RegionInner>,
}

impl Region {
    /// Allocates zeroed, page-aligned memory.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn allocate(length_bytes: usize, grant: Grant) -> io::Result<Self> {
        Ok(Self::of(RegionSlice::allocate(length_bytes, grant)?, true))
    }

    /// Takes ownership of a vector, which [`Region::into_vec`] returns.
    pub fn from_vec(bytes: Vec<u8>, grant: Grant) -> Self {
        Self::of(RegionSlice::from_vec(bytes, grant), true)
    }

    /// Returns the vector that was passed to [`Region::from_vec`], after all ranges of plans that
    /// read into it have ended. It is deregistered first, so that no target can access it.
    ///
    /// # Errors
    /// `self`, if a plan is in flight, the memory is not that of a vector, a device fails to
    /// deregister it, or the process was forked from the one that made the region.
    pub fn into_vec(mut self) -> Result<Vec<u8>, Self> {
        if self.inner.process.check().is_err() {
            return Err(self);
        }
        let grant = self.grant();
        // Plans in flight share the memory.
        let Some(inner) = Arc::get_mut(&mut self.inner) else { return Err(self) };
        let none = RegionSlice::from_vec(Vec::new(), grant);
        match mem::replace(&mut *inner.whole, none).into_vec() {
            Ok(bytes) => Ok(bytes),
            Err(whole) => {
                *inner.whole = whole;
                Err(self)
            }
        }
    }

    /// Uses memory of the caller, such as that of a tensor. `owner` is dropped once, when the
    /// region was dropped, no range is in flight, and every device has deregistered the memory. It
    /// is dropped on any thread, including the host's, without a lock of this crate. Its drop must
    /// not wait for an operation of this host; a panic is caught and logged. If a device fails to
    /// deregister the memory, or in a process that was forked from the one that made the region,
    /// `owner` is never dropped.
    ///
    /// # Safety
    /// Until `owner` is dropped, `length` bytes at `address` must stay mapped, readable and
    /// writable.
    ///
    /// Others may keep and use pointers to the memory, with these exceptions: bytes that a plan in
    /// flight reads into ([`Region::is_in_flight`]) must be neither read nor written, and bytes
    /// must not be written while [`Region::copy_out`] reads them. Under [`Grant::Persistent`] a
    /// target that violates the protocol may write at any time: no reference to the memory may
    /// exist after its registration, unless the target is trusted not to.
    pub unsafe fn from_raw(
        address: NonNull<u8>,
        length: usize,
        grant: Grant,
        owner: Box<dyn Any + Send>,
    ) -> Self {
        // SAFETY: the caller promises what a slice needs. The slice stays whole in the region, and
        // bytes of it are handed to operations only while a claim makes them disjoint.
        let slice = unsafe { RegionSlice::from_raw(address, length, grant, move || drop(owner)) };
        Self::of(slice, false)
    }

    /// Uses memory of the caller like [`Region::from_raw`], as the source of writes only: it may be
    /// mapped read-only, and no target gets the right to write to it. Plans that read into it are
    /// rejected ([`PlanError::ReadOnlyRegion`]).
    ///
    /// # Safety
    /// Until `owner` is dropped, `length` bytes at `address` must stay mapped and readable. Bytes
    /// that a plan in flight writes from ([`Region::is_in_flight`]), or that [`Region::copy_out`]
    /// reads, must not be written.
    pub unsafe fn from_raw_read_only(
        address: NonNull<u8>,
        length: usize,
        owner: Box<dyn Any + Send>,
    ) -> Self {
        // SAFETY: the caller promises what a slice needs. Only writes get slices of the region.
        let slice =
            unsafe { RegionSlice::from_raw_read_only(address, length, move || drop(owner)) };
        Self::of(slice, false)
    }

    fn of(whole: RegionSlice, is_own: bool) -> Self {
        let claims = Mutex::default();
        let whole = ManuallyDrop::new(whole);
        Self { inner: Arc::new(RegionInner { whole, is_own, claims, process: Process::current() }) }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.inner.whole.len()
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access that targets get.
    pub fn grant(&self) -> Grant {
        self.inner.whole.grant()
    }

    /// Returns whether only plans that write may use it: [`Region::from_raw_read_only`].
    pub fn is_read_only(&self) -> bool {
        self.inner.whole.is_read_only()
    }

    /// Returns the address of the first byte, valid while the region exists. Bytes that a plan in
    /// flight reads into must not be read or written through it, and those that it writes from must
    /// not be written.
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.whole.as_ptr().cast_mut()
    }

    /// Returns whether a plan that uses it is in flight; true in a process that was forked since.
    pub fn is_in_flight(&self) -> bool {
        self.inner.claims().map_or(true, |claims| !claims.is_empty())
    }

    /// Copies bytes, from `at` on, to `to`.
    ///
    /// # Errors
    /// A plan in flight reads into some of the bytes, they are not within the region, or the
    /// process was forked from the one that made the region.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Result<(), PlanError> {
        if at.checked_add(to.len()).is_none_or(|end| end > self.len()) {
            let error = ErrorKind::Invalid("the bytes to copy are beyond the end of the region");
            return Err(PlanError::Host(error.into()));
        }
        // Locked during the copy, so that no plan that reads into the bytes is started.
        let claims = self.inner.claims()?;
        let wanted = (at as u64, (at + to.len()) as u64);
        // A single interval cannot overlap.
        let wanted = IntervalSet::new([wanted].into_iter()).unwrap_or_default();
        claims.check(&wanted, ClaimKind::Source)?;
        self.inner.whole.copy_out(at, to);
        Ok(())
    }

    /// Borrows the bytes. `None` under [`Grant::Persistent`], since a target may write to them, for
    /// memory of the caller ([`Region::from_raw`]), while a plan is in flight, and in a forked
    /// process.
    pub fn as_bytes(&mut self) -> Option<&[u8]> {
        let is_own = self.inner.is_own && self.grant() == Grant::PerCommand;
        if !is_own || self.is_in_flight() {
            return None;
        }
        // SAFETY: no window into the region is open, since nothing is in flight, and nothing will
        // be while the region is borrowed exclusively. No one else has a pointer to write through
        // during the borrow.
        Some(unsafe { self.inner.whole.as_slice_unchecked() })
    }

    /// Claims bytes for a plan, unless some of them belong to a plan in flight that does not permit
    /// that use.
    pub(crate) fn claim(
        &self,
        bytes: IntervalSet,
        kind: ClaimKind,
    ) -> Result<ClaimedMemory, PlanError> {
        let mut claims = self.inner.claims()?;
        claims.check(&bytes, kind)?;
        let number = claims.add(bytes, kind);
        drop(claims);
        Ok(ClaimedMemory { region: Arc::clone(&self.inner), number })
    }

    /// Returns an error in a child of the process that made the region.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        Ok(self.inner.process.check()?)
    }

    /// Returns the keys in a protection domain. The first call for a domain registers the memory,
    /// which may take long.
    pub(crate) fn keys(&self, scope: &dyn ErasedScope) -> io::Result<Keys> {
        self.inner.whole.shared_keys(scope)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("length", &self.len())
            .field("grant", &self.grant())
            .finish_non_exhaustive()
    }
}

/// State of a region, shared with the plans in flight.
struct RegionInner {
    /// Slice of the whole memory. Operations get slices of parts of it, under a claim.
    whole: ManuallyDrop<RegionSlice>,
    /// Whether only the region has pointers to the memory.
    is_own: bool,
    claims: Mutex<Claims>,
    process: Process,
}

impl RegionInner {
    /// Locks the claims, in the process that made the region: in a child the lock may be held by a
    /// thread that the child does not have.
    fn claims(&self) -> Result<MutexGuard<'_, Claims>, Error> {
        self.process.check()?;
        Ok(self.claims.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        if self.process.check() == Err(Forked) {
            // The memory and its owner belong to the parent.
            return;
        }
        // SAFETY: it is dropped here only, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.whole) };
    }
}

/// Use of claimed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimKind {
    /// Destination of a plan that reads: no other plan may use the bytes.
    Destination,
    /// Source of a plan that writes: other plans may write from the same bytes.
    Source,
}

/// Bytes of a region in use, by plan.
#[derive(Default)]
struct Claims {
    all: Vec<Claim>,
    next: u64,
}

struct Claim {
    number: u64,
    kind: ClaimKind,
    bytes: IntervalSet,
}

impl Claims {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn check(&self, wanted: &IntervalSet, kind: ClaimKind) -> Result<(), PlanError> {
        let is_exclusive = |claim: &&Claim| [kind, claim.kind].contains(&ClaimKind::Destination);
        let mut taken = self.all.iter().filter(is_exclusive);
        let overlap = taken.find_map(|claim| claim.bytes.overlap(wanted));
        overlap.map_or(Ok(()), |(start, end)| Err(PlanError::InFlight { start, end }))
    }

    fn add(&mut self, bytes: IntervalSet, kind: ClaimKind) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.push(Claim { number, kind, bytes });
        number
    }

    fn remove(&mut self, number: u64) {
        if let Some(place) = self.all.iter().position(|claim| claim.number == number) {
            self.all.swap_remove(place);
        }
    }
}

/// The claim of a plan to bytes of a region, which ends when this is dropped.
pub(crate) struct ClaimedMemory {
    region: Arc<RegionInner>,
    number: u64,
}

impl ClaimedMemory {
    /// Returns a slice of a part of the claimed memory. It keeps the memory allocated, but not the
    /// claim.
    ///
    /// The parts of a [`ClaimKind::Destination`] must not overlap, those of a
    /// [`ClaimKind::Source`] must only be read, and their operations must end before the claim is
    /// dropped.
    pub(crate) fn part(&self, at: u64, length: u32) -> RegionSlice {
        // Within the region, which was checked when the plan was submitted.
        self.region.whole.alias(at as usize, length as usize)
    }

    /// Ends the claim, so that other plans may read into the bytes. Returns the memory if the
    /// region was dropped and this was its last claim.
    pub(crate) fn release(self) -> Option<KeptMemory> {
        let region = Arc::clone(&self.region);
        drop(self);
        Arc::into_inner(region).map(KeptMemory)
    }
}

impl Drop for ClaimedMemory {
    fn drop(&mut self) {
        if let Ok(mut claims) = self.region.claims() {
            claims.remove(self.number);
        }
    }
}

/// Memory of a region that was dropped. Dropping this may call foreign code, so no lock may be
/// held.
#[expect(dead_code, reason = "held")]
pub(crate) struct KeptMemory(RegionInner);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn bytes(start: u64, end: u64) -> IntervalSet {
        IntervalSet::new([(start, end)].into_iter()).unwrap()
    }

    #[test]
    fn bytes_are_claimed_by_one_plan_at_a_time() {
        let region = Region::allocate(100, Grant::Persistent).unwrap();
        let first = region.claim(bytes(10, 20), ClaimKind::Destination).unwrap();
        let refused = region.claim(bytes(15, 30), ClaimKind::Destination);
        assert!(matches!(refused, Err(PlanError::InFlight { start: 15, end: 20 })));
        let second = region.claim(bytes(20, 30), ClaimKind::Destination).unwrap();
        drop(first);
        assert!(region.is_in_flight());
        drop((region.claim(bytes(10, 20), ClaimKind::Destination).unwrap(), second));
        assert!(!region.is_in_flight());
    }

    #[test]
    fn plans_that_write_share_their_sources() {
        let region = Region::allocate(100, Grant::Persistent).unwrap();
        let first = region.claim(bytes(10, 20), ClaimKind::Source).unwrap();
        let second = region.claim(bytes(15, 30), ClaimKind::Source).unwrap();
        region.copy_out(0, &mut [0; 100]).unwrap();
        drop(first);
        let refused = region.claim(bytes(0, 16), ClaimKind::Destination);
        assert!(matches!(refused, Err(PlanError::InFlight { start: 15, end: 16 })));
        let into = region.claim(bytes(0, 15), ClaimKind::Destination).unwrap();
        let refused = region.claim(bytes(14, 99), ClaimKind::Source);
        assert!(matches!(refused, Err(PlanError::InFlight { start: 14, end: 15 })));
        drop((second, into));
        assert!(!region.is_in_flight());
    }

    #[test]
    fn bytes_in_flight_are_not_copied() {
        let region = Region::allocate(100, Grant::Persistent).unwrap();
        let claim = region.claim(bytes(10, 20), ClaimKind::Destination).unwrap();
        assert!(matches!(region.copy_out(0, &mut [0; 11]), Err(PlanError::InFlight { .. })));
        region.copy_out(0, &mut [0; 10]).unwrap();
        drop(claim);
        region.copy_out(0, &mut [0; 100]).unwrap();
        assert!(region.copy_out(1, &mut [0; 100]).is_err());
        assert!(region.copy_out(usize::MAX, &mut [0; 100]).is_err());
    }

    #[test]
    fn only_closed_memory_of_our_own_is_borrowed() {
        let mut region = Region::allocate(100, Grant::PerCommand).unwrap();
        assert_eq!(region.as_bytes().unwrap().len(), 100);
        let claim = region.claim(bytes(0, 1), ClaimKind::Destination).unwrap();
        assert!(region.as_bytes().is_none());
        drop(claim);
        assert!(region.as_bytes().is_some());
        assert!(Region::allocate(100, Grant::Persistent).unwrap().as_bytes().is_none());
    }

    #[test]
    fn a_vector_comes_back_when_nothing_is_in_flight() {
        let region = Region::from_vec(vec![7; 100], Grant::Persistent);
        let claim = region.claim(bytes(0, 1), ClaimKind::Destination).unwrap();
        let part = claim.part(0, 1);
        let region = region.into_vec().unwrap_err();
        assert!(claim.release().is_none(), "the region is there");
        let region = region.into_vec().unwrap_err();
        drop(part);
        assert_eq!(region.into_vec().unwrap(), [7; 100]);
        Region::allocate(100, Grant::Persistent).unwrap().into_vec().unwrap_err();
        assert!(Region::from_vec(Vec::new(), Grant::PerCommand).into_vec().unwrap().is_empty());
    }

    struct CountsDrops(Arc<AtomicUsize>);

    impl Drop for CountsDrops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_owner_is_dropped_when_nothing_is_in_flight() {
        let drops = Arc::new(AtomicUsize::new(0));
        let memory = NonNull::from(Box::leak(Box::new([0u8; 64]))).cast();
        let owner = Box::new(CountsDrops(Arc::clone(&drops)));
        // SAFETY: the memory is never freed, and used through the region only.
        let region = unsafe { Region::from_raw(memory, 64, Grant::Persistent, owner) };
        let claim = region.claim(bytes(0, 64), ClaimKind::Destination).unwrap();
        let part = claim.part(3, 5);
        drop(region);
        let kept = claim.release().expect("the region is gone");
        drop(part);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(kept);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }
}
