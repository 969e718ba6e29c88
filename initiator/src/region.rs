//! Memory that targets read and write directly.
#![expect(unsafe_code, reason = "hands registered memory out as byte slices")]

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use rdma::{Access, Device, Mem, MemoryRegion, Provider};

use crate::pages::Pages;
use crate::process::{Forked, Process};

/// What a target may do with a region, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// The region is open to each target it was used with, from the first command until the region ends or the
    /// controller is closed, and to no other target. Fastest. A target that breaks the protocol could write to
    /// any byte of the region at any time: use it with targets that you trust with the region's contents.
    #[default]
    Persistent,
    /// Each command opens exactly the bytes that it transfers, to the one connection it goes over, and they
    /// are closed again before its result is handed out. Costs one more work request for each command, and needs a
    /// provider with memory windows.
    PerCommand,
}

/// An owned piece of registered memory: the destination of a read or the source of a write.
///
/// A slice is moved into an operation and comes back with its result, so memory that a target may still
/// touch cannot be reached meanwhile. It can be split and joined without cost, like a `BytesMut`; the memory
/// is deregistered and freed when its last slice is dropped.
///
/// Registration happens when a slice is first used with a controller, for that controller, and is kept until
/// the controller is closed or the region ends. Of memory that is used with several controllers each has a
/// registration of its own; an RDMA device counts each against the limit on locked memory.
pub struct RegionSlice {
    region: Arc<Region>,
    /// Of the first byte.
    address: Address,
    length: usize,
    /// The region's.
    grant: Grant,
    /// The keys it was used with last. What each command needs is here: it need not look at the region, nor take its lock.
    known: Option<(ScopeId, Keys)>,
}

impl RegionSlice {
    /// Allocates zeroed, page-aligned memory.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn allocate(length_bytes: usize, grant: Grant) -> io::Result<Self> {
        let pages = Pages::dense(length_bytes)?;
        let address = pages.address();
        Ok(Self::whole(address, length_bytes, grant, Owner::Pages { _pages: pages }))
    }

    /// Takes over a vector's memory. [`RegionSlice::into_vec`] gives it back.
    pub fn from_vec(mut bytes: Vec<u8>, grant: Grant) -> Self {
        let address = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null");
        let length = bytes.len();
        Self::whole(address, length, grant, Owner::Vec(bytes))
    }

    /// Uses memory of the caller's. `release` is called once, when the last slice is gone and every device
    /// has forgotten the memory.
    ///
    /// # Safety
    /// Until `release` is called, `length` bytes at `address` must stay mapped, readable and writable, and
    /// nobody may reach them except through the slices.
    pub unsafe fn from_raw(
        address: NonNull<u8>,
        length: usize,
        grant: Grant,
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self::whole(address, length, grant, Owner::Foreign(Some(Box::new(release))))
    }

    fn whole(address: NonNull<u8>, length: usize, grant: Grant, owner: Owner) -> Self {
        let (registrations, address) = (RwLock::new(Vec::new()), Address(address));
        let region = Arc::new(Region { registrations, address, length, grant, owner });
        Self { region, address, length, grant, known: None }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What targets may do with the region.
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// Splits: `self` keeps the first `at` bytes, the rest is returned.
    ///
    /// # Panics
    /// If `at` is beyond the length.
    #[must_use = "dropping the rest gives it up until the whole region is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.length, "split beyond the end of a slice");
        // SAFETY: at most one past the end of the slice, which is within the region's memory.
        let address = Address(unsafe { self.address.0.add(at) });
        let length = self.length - at;
        self.length = at;
        Self { region: Arc::clone(&self.region), address, length, ..*self }
    }

    /// Splits into pieces of `length_bytes`; the last may be shorter.
    ///
    /// # Panics
    /// If `length_bytes` is zero.
    pub fn chunks(self, length_bytes: usize) -> impl Iterator<Item = Self> {
        assert!(length_bytes > 0, "pieces of no length");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let mut piece = rest.take()?;
            if piece.length > length_bytes {
                rest = Some(piece.split_off(length_bytes));
            }
            Some(piece)
        })
    }

    /// Joins two neighbours.
    ///
    /// # Errors
    /// Both are returned if `next` does not begin where `self` ends.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let adjacent = Arc::ptr_eq(&self.region, &next.region)
            && self.address() + self.length as u64 == next.address();
        if !adjacent {
            return Err((self, next));
        }
        Ok(Self { length: self.length + next.length, ..self })
    }

    /// Gives a vector back that came with [`RegionSlice::from_vec`].
    ///
    /// # Errors
    /// `self`, if it is not the whole of such a vector.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let whole = self.length == self.region.length && matches!(self.region.owner, Owner::Vec(_));
        if !whole {
            return Err(self);
        }
        match Arc::try_unwrap(self.region) {
            Ok(mut region) => {
                // Deregistered before the vector can be reached.
                region.registrations.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
                match &mut region.owner {
                    Owner::Vec(bytes) => Ok(mem::take(bytes)),
                    _ => unreachable!("checked above"),
                }
            }
            Err(region) => Err(Self { region, ..self }),
        }
    }

    /// The address of the first byte, as work requests name it.
    pub(crate) fn address(&self) -> u64 {
        self.address.0.addr().get() as u64
    }

    /// A part of the slice, while commands may be in flight for other parts.
    ///
    /// # Panics
    /// If it is not within the slice.
    pub(crate) fn part_mut(&mut self, part: Range<usize>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.length, "a part of the slice");
        // SAFETY: within the slice (checked), which is borrowed exclusively; the reference covers no byte
        // outside the part.
        unsafe {
            let address = self.address.0.add(part.start);
            slice::from_raw_parts_mut(address.as_ptr(), part.len())
        }
    }

    /// Keys in a domain, registering the memory if this is its first use there.
    pub(crate) fn keys<P: Provider>(&mut self, scope: &RegistrationScope<P>) -> io::Result<Keys> {
        match self.known {
            Some((known, keys)) if known == scope.id => Ok(keys),
            _ => {
                let keys = self.region.keys(scope)?;
                self.known = Some((scope.id, keys));
                Ok(keys)
            }
        }
    }

    /// Registers the memory in a domain, if it is not.
    pub(crate) fn register<P: Provider>(&self, scope: &RegistrationScope<P>) -> io::Result<()> {
        self.region.keys(scope).map(drop)
    }

    /// Calls `with` with the registration in a domain. [`RegionSlice::keys`] came before.
    pub(crate) fn with_registration<P: Provider, T>(
        &self,
        scope: &RegistrationScope<P>,
        with: impl FnOnce(&P::Region) -> T,
    ) -> Option<T> {
        let registrations =
            self.region.registrations.read().unwrap_or_else(PoisonError::into_inner);
        let found = registrations.iter().find(|entry| entry.scope == scope.id)?;
        found.region.downcast_ref::<P::Region>().map(with)
    }
}

impl Deref for RegionSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are within the region, which is mapped while `self.region` lives; slices of one
        // region never overlap and this one is not part of an operation, so nobody writes to them.
        unsafe { slice::from_raw_parts(self.address.0.as_ptr(), self.length) }
    }
}

impl DerefMut for RegionSlice {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.address.0.as_ptr(), self.length) }
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSlice")
            .field("address", &self.address.0)
            .field("length", &self.length)
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

/// Where registered memory is.
#[derive(Clone, Copy)]
struct Address(NonNull<u8>);

// SAFETY: the address is only turned into references by slices, which are owned and disjoint.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// A protection domain as something that regions are registered in. Each controller has one, so that a target
/// reaches nothing that other targets were given keys of.
#[derive(Debug)]
pub(crate) struct RegistrationScope<P: Provider> {
    device: P::Device,
    id: ScopeId,
    /// Tells regions when the scope is gone.
    alive: Arc<()>,
}

/// Names a scope. No other of this process has, or will have, the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScopeId(u64);

impl<P: Provider> RegistrationScope<P> {
    /// A domain of its own.
    pub(crate) fn new(device: &P::Device) -> io::Result<Self> {
        static SCOPES: AtomicU64 = AtomicU64::new(0);
        let id = ScopeId(SCOPES.fetch_add(1, Ordering::Relaxed));
        Ok(Self { device: device.in_new_domain()?, id, alive: Arc::new(()) })
    }

    /// The device, in this domain.
    pub(crate) fn device(&self) -> &P::Device {
        &self.device
    }
}

/// The keys of a region in one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// Fields drop in order: devices forget the memory before its owner frees it.
struct Region {
    registrations: RwLock<Vec<Registration>>,
    address: Address,
    length: usize,
    grant: Grant,
    owner: Owner,
}

impl Region {
    fn keys<P: Provider>(&self, scope: &RegistrationScope<P>) -> io::Result<Keys> {
        if let Some(keys) = self.registered(scope.id) {
            return Ok(keys);
        }
        let mut registrations = self.registrations.write().unwrap_or_else(PoisonError::into_inner);
        registrations.retain(|registration| registration.alive.strong_count() > 0);
        if let Some(found) = registrations.iter().find(|entry| entry.scope == scope.id) {
            return Ok(found.keys);
        }
        let region = self.register::<P>(&scope.device)?;
        let keys = Keys { lkey: region.lkey(), rkey: region.rkey() };
        let (scope, alive) = (scope.id, Arc::downgrade(&scope.alive));
        let (process, region) = (Process::current(), ManuallyDrop::new(Box::new(region) as _));
        registrations.push(Registration { scope, alive, keys, process, region });
        Ok(keys)
    }

    fn registered(&self, scope: ScopeId) -> Option<Keys> {
        let registrations = self.registrations.read().unwrap_or_else(PoisonError::into_inner);
        registrations.iter().find(|entry| entry.scope == scope).map(|entry| entry.keys)
    }

    fn register<P: Provider>(&self, device: &P::Device) -> io::Result<P::Region> {
        let memory = Mem::Host { addr: self.address.0.as_ptr(), length: self.length.max(1) };
        // SAFETY: the memory stays mapped until `owner` is dropped, and the registrations are dropped before
        // it. Slices that are part of an operation cannot be reached through references.
        unsafe { device.register(memory, self.grant.access()) }
    }
}

impl Grant {
    fn access(self) -> Access {
        match self {
            Self::Persistent => Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            Self::PerCommand => Access::LOCAL_WRITE | Access::WINDOW_BIND,
        }
    }
}

struct Registration {
    scope: ScopeId,
    alive: Weak<()>,
    keys: Keys,
    /// Whose device it is with.
    process: Process,
    region: ManuallyDrop<Box<dyn Any + Send + Sync>>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a child the device is the parent's, which goes on with the registration.
        if self.process.check() != Err(Forked) {
            // SAFETY: nothing uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        }
    }
}

/// Who frees the memory.
enum Owner {
    Pages { _pages: Pages },
    Vec(Vec<u8>),
    Foreign(Option<Box<dyn FnOnce() + Send + Sync>>),
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Self::Foreign(release) = self
            && let Some(release) = release.take()
        {
            release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slice_is_split_and_joined() {
        let mut left = RegionSlice::allocate(100, Grant::Persistent).unwrap();
        let mut right = left.split_off(30);
        left.fill(1);
        right.fill(2);
        assert_eq!((left.len(), right.len(), right.address()), (30, 70, left.address() + 30));
        let (right, left) = right.join(left).unwrap_err();
        let whole = left.join(right).unwrap();
        assert!(whole[..30] == [1; 30] && whole[30..] == [2; 70]);
    }

    #[test]
    fn slices_of_different_regions_are_not_joined() {
        let a = RegionSlice::allocate(10, Grant::Persistent).unwrap();
        let b = RegionSlice::allocate(10, Grant::Persistent).unwrap();
        assert!(a.join(b).is_err());
    }

    #[test]
    fn a_vector_comes_back_whole_or_not_at_all() {
        let mut slice = RegionSlice::from_vec(vec![5; 64], Grant::PerCommand);
        let rest = slice.split_off(32);
        let slice = slice.into_vec().unwrap_err();
        let whole = slice.join(rest).unwrap();
        assert_eq!(whole.into_vec().unwrap(), [5; 64]);
        let pages = RegionSlice::allocate(8, Grant::Persistent).unwrap();
        assert!(pages.into_vec().is_err());
    }

    #[test]
    fn foreign_memory_is_released_once_when_the_last_slice_is_gone() {
        let released = Arc::new(AtomicUsize::new(0));
        let memory: &'static mut [u8] = Box::leak(Box::new([0; 64]));
        let address = NonNull::from(memory).cast();
        let count = Arc::clone(&released);
        let release = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        // SAFETY: the memory is never freed and nobody else reaches it.
        let mut slice = unsafe { RegionSlice::from_raw(address, 64, Grant::Persistent, release) };
        let rest = slice.split_off(10);
        drop(slice);
        assert_eq!(released.load(Ordering::SeqCst), 0);
        drop(rest);
        assert_eq!(released.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn empty_slices_are_slices() {
        assert!(RegionSlice::allocate(0, Grant::Persistent).unwrap().is_empty());
        let empty = RegionSlice::from_vec(Vec::new(), Grant::Persistent);
        assert_eq!(empty.chunks(16).map(|chunk| chunk.len()).collect::<Vec<_>>(), [0]);
    }

    proptest! {
        #[test]
        fn chunks_are_all_of_it_in_order(length in 1usize..5000, chunk in 1usize..700) {
            let mut slice = RegionSlice::allocate(length, Grant::Persistent).unwrap();
            for (i, byte) in slice.iter_mut().enumerate() {
                *byte = i as u8;
            }
            let chunks: Vec<_> = slice.chunks(chunk).collect();
            prop_assert!(chunks.iter().rev().skip(1).all(|piece| piece.len() == chunk));
            let whole = chunks.into_iter().reduce(|a, b| a.join(b).unwrap()).unwrap();
            prop_assert_eq!(whole.len(), length);
            prop_assert!(whole.iter().enumerate().all(|(i, &byte)| byte == i as u8));
        }
    }
}
