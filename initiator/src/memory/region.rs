//! Memory that targets read and write directly.
#![expect(unsafe_code, reason = "hands registered memory out as byte slices")]

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use rdma::{Access, Device, Mem, MemoryRegion, Provider, StillRegistered};

use crate::driver::foreign_code;
use crate::driver::process::{Forked, Process};
use crate::memory::pages::Pages;

/// The access of a target to a region, and when it has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// The region is open to each target it was used with, from the first command until the region
    /// ends or the controller is closed, and to no other target. Fastest, and needs no memory
    /// windows. A target that breaks the protocol could write to any byte of the region at any
    /// time, so its bytes are copied out and in, or reached by address: see [`RegionSlice`].
    #[default]
    Persistent,
    /// Each command opens exactly the bytes that it transfers, to the one connection it goes over,
    /// and they are closed again before its result is handed out: what was returned can be
    /// borrowed. Costs one more work request for each command, and needs a provider with memory
    /// windows.
    PerCommand,
}

/// An owned piece of registered memory: the destination of a read or the source of a write.
///
/// A slice is moved into an operation and comes back with its result, so memory that a command is
/// about to change cannot be reached. It can be split and joined without cost, like a `BytesMut`;
/// the memory is deregistered and freed when its last slice is dropped.
///
/// Under [`Grant::PerCommand`] no target has access to a slice that is not in an operation, and its
/// bytes can be borrowed: [`RegionSlice::as_slice`]. Under [`Grant::Persistent`] a target that
/// breaks the protocol may write them at any time, which a reference must not live through. Such
/// bytes are copied ([`RegionSlice::copy_out`], [`RegionSlice::copy_in`]), taken back from the
/// target ([`RegionSlice::into_vec`]), or borrowed by those who trust the target with the soundness
/// of their process ([`RegionSlice::as_slice_unchecked`]). [`RegionSlice::bytes`] does what the
/// grant allows.
///
/// Registration happens when a slice is first used with a controller, for that controller, and is
/// kept until the controller is closed or the region ends. Of memory that is used with several
/// controllers each has a registration of its own; an RDMA device counts each against the limit on
/// locked memory.
pub struct RegionSlice {
    region: Arc<HostMemory>,
    /// Address of the first byte.
    address: MemoryAddress,
    length: usize,
    /// The grant of the region.
    grant: Grant,
    /// The keys it was used with last. A command that finds its keys here need not look at
    /// the region, nor take its lock.
    known: Option<Keys>,
}

impl RegionSlice {
    /// Allocates zeroed, page-aligned memory.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn allocate(length_bytes: usize, grant: Grant) -> io::Result<Self> {
        let pages = Pages::dense(length_bytes)?;
        let address = pages.address();
        Ok(Self::whole(address, length_bytes, grant, MemoryOwner::Pages { _pages: pages }))
    }

    /// Takes over a vector's memory. [`RegionSlice::into_vec`] gives it back.
    pub fn from_vec(mut bytes: Vec<u8>, grant: Grant) -> Self {
        let address = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null");
        let length = bytes.len();
        Self::whole(address, length, grant, MemoryOwner::Vec(bytes))
    }

    /// Uses memory of the caller's, such as a tensor's. `release` is called once, when the last
    /// slice is gone and every device has forgotten the memory, on whichever thread that is; a
    /// panic is caught and logged there. If a device refuses to, the memory stays open to its
    /// targets and `release` is never called.
    ///
    /// # Safety
    /// Until `release` is called, `length` bytes at `address` must stay mapped, readable and
    /// writable.
    ///
    /// Others may keep pointers to the memory, and use it through them, with these exceptions.
    /// Bytes whose slice is part of an operation must not be written, nor read where they are read
    /// into. Accesses to other bytes must not race with methods of the slice that read or write
    /// them, and must not break what the references promise that it hands out. Under
    /// [`Grant::Persistent`] a target that breaks the protocol may write at any time: no reference
    /// to the memory may exist once it was registered, unless the target is trusted not to.
    pub unsafe fn from_raw(
        address: NonNull<u8>,
        length: usize,
        grant: Grant,
        release: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self::whole(
            address,
            length,
            grant,
            MemoryOwner::Foreign(Mutex::new(Some(Box::new(release)))),
        )
    }

    fn whole(address: NonNull<u8>, length: usize, grant: Grant, owner: MemoryOwner) -> Self {
        let (registrations, address) = (RwLock::default(), MemoryAddress(address));
        let owner = ManuallyDrop::new(owner);
        let region = Arc::new(HostMemory { registrations, address, length, grant, owner });
        Self { region, address, length, grant, known: None }
    }

    /// The number of bytes in the slice.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The access of targets to the region.
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
        let address = MemoryAddress(unsafe { self.address.0.add(at) });
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

    /// Joins two neighbours of one region into one slice.
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
    /// `self`, if it is not the whole of such a vector, or a device refuses to deregister it.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let whole =
            self.length == self.region.length && matches!(*self.region.owner, MemoryOwner::Vec(_));
        if !whole {
            return Err(self);
        }
        match Arc::try_unwrap(self.region) {
            Ok(mut region) => {
                let registrations = region.registrations.get_mut();
                // Before the vector can be reached.
                let ended = registrations.unwrap_or_else(PoisonError::into_inner).end();
                match (ended, &mut *region.owner) {
                    (Ok(()), MemoryOwner::Vec(bytes)) => Ok(mem::take(bytes)),
                    _ => Err(Self { region: Arc::new(region), ..self }),
                }
            }
            Err(region) => Err(Self { region, ..self }),
        }
    }

    /// The address of the first byte, as work requests name it.
    pub(crate) fn address(&self) -> u64 {
        self.address.0.addr().get() as u64
    }

    /// The address of the first byte, to read from: for as long as a slice of the region lives, and
    /// while this one is in no operation.
    pub fn as_ptr(&self) -> *const u8 {
        self.address.0.as_ptr()
    }

    /// The address of the first byte, to write to: as [`RegionSlice::as_ptr`].
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address.0.as_ptr()
    }

    /// The bytes; `None` under [`Grant::Persistent`].
    pub fn as_slice(&self) -> Option<&[u8]> {
        // SAFETY: between operations no window into the slice is open, and the region is not open
        // itself.
        (self.grant == Grant::PerCommand).then(|| unsafe { self.as_slice_unchecked() })
    }

    /// The bytes, to write; `None` under [`Grant::Persistent`].
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as in `as_slice`.
        (self.grant == Grant::PerCommand).then(|| unsafe { self.as_mut_slice_unchecked() })
    }

    /// The bytes; the grant is not checked.
    ///
    /// # Safety
    /// Under [`Grant::Persistent`], no target that has a key of the region writes to the slice
    /// while the reference lives: every target that slices of the region were used with keeps to
    /// the protocol.
    pub unsafe fn as_slice_unchecked(&self) -> &[u8] {
        // SAFETY: the bytes are within the region, which is mapped while `self.region` lives;
        // slices of one region never overlap and this one is not part of an operation, so that we
        // write to them only through `&mut self`, and targets do not (the caller's promise).
        unsafe { slice::from_raw_parts(self.address.0.as_ptr(), self.length) }
    }

    /// The bytes, to write; the grant is not checked.
    ///
    /// # Safety
    /// As for [`RegionSlice::as_slice_unchecked`]; nor does a target read them.
    pub unsafe fn as_mut_slice_unchecked(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice_unchecked`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.address.0.as_ptr(), self.length) }
    }

    /// The bytes: borrowed under [`Grant::PerCommand`], a copy under [`Grant::Persistent`].
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        self.as_slice().map_or_else(|| Cow::Owned(self.to_vec()), Cow::Borrowed)
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.length];
        self.copy_out(0, &mut copy);
        copy
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Panics
    /// If they are not within the slice.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.part(at, to.len()).cast::<u8>();
        // SAFETY: the source is mapped and this slice is in no operation; `to` is other memory,
        // since a slice is borrowed while a reference to its bytes lives. No reference to the
        // source is made: what a target writes there during the copy is as with a device's memory,
        // any mixture of bytes.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes in, to `at` on.
    ///
    /// # Panics
    /// If they do not fit the slice.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) {
        let to = self.part(at, from.len()).cast::<u8>();
        // SAFETY: as in `copy_out`, the other way round.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// Sets each byte to `byte`.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: as in `copy_out`, the other way round.
        unsafe { ptr::write_bytes(self.as_mut_ptr(), byte, self.length) };
    }

    /// The address of a part of the slice, while commands may be in flight for other parts. The
    /// caller makes no reference of it.
    ///
    /// # Panics
    /// If it is not within the slice.
    pub(crate) fn part(&self, at: usize, length: usize) -> NonNull<[u8]> {
        assert!(at <= self.length && length <= self.length - at, "a part of the slice");
        // SAFETY: within the slice (checked).
        NonNull::slice_from_raw_parts(unsafe { self.address.0.add(at) }, length)
    }

    /// Keys in a domain, registering the memory if this is its first use there, which may take
    /// long.
    pub(crate) fn keys(&mut self, scope: &dyn ErasedScope) -> io::Result<Keys> {
        match self.known {
            Some(keys) if keys.scope == scope.id() => Ok(keys),
            _ => {
                let keys = scope.keys(&self.region)?;
                self.known = Some(keys);
                Ok(keys)
            }
        }
    }

    /// Keys of a slice that is shared, as [`RegionSlice::keys`]; always looks at the region.
    pub(crate) fn shared_keys(&self, scope: &dyn ErasedScope) -> io::Result<Keys> {
        scope.keys(&self.region)
    }

    /// Another slice of the same bytes, which keeps the memory. It is for an operation that no
    /// other use of these bytes overlaps: the claims of a [`Region`](crate::Region) see to that.
    ///
    /// # Panics
    /// If the bytes are not within the slice.
    pub(crate) fn alias(&self, at: usize, length: usize) -> Self {
        let address = MemoryAddress(self.part(at, length).cast());
        Self { region: Arc::clone(&self.region), address, length, grant: self.grant, known: None }
    }

    /// Registers the memory in a domain, if it is not.
    pub(crate) fn register(&self, scope: &dyn ErasedScope) -> io::Result<()> {
        scope.keys(&self.region).map(drop)
    }

    /// Calls `with` with the registration in a domain. [`RegionSlice::keys`] came before.
    pub(crate) fn with_registration<P: Provider, T>(
        &self,
        scope: &RegistrationScope<P>,
        with: impl FnOnce(&P::Region) -> T,
    ) -> Option<T> {
        let registrations =
            self.region.registrations.read().unwrap_or_else(PoisonError::into_inner);
        let found: &dyn Any = &*registrations.of(scope.id)?.region;
        found.downcast_ref::<TypedRegion<P>>().map(|TypedRegion(region)| with(region))
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
struct MemoryAddress(NonNull<u8>);

// SAFETY: only slices, which are owned and disjoint, read or write there, or make references.
unsafe impl Send for MemoryAddress {}
// SAFETY: as above.
unsafe impl Sync for MemoryAddress {}

/// A protection domain as something that regions are registered in. Each controller has one, so
/// that a target reaches nothing that other targets were given keys of.
#[derive(Debug)]
pub(crate) struct RegistrationScope<P: Provider> {
    device: P::Device,
    id: ScopeId,
    process: Process,
    /// Tells regions when the scope is gone.
    alive: Arc<()>,
}

/// Names a scope. No other of this process has, or will have, the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeId(u64);

impl<P: Provider> RegistrationScope<P> {
    /// A domain of its own.
    pub(crate) fn new(device: &P::Device) -> io::Result<Self> {
        static SCOPES: AtomicU64 = AtomicU64::new(0);
        let id = ScopeId(SCOPES.fetch_add(1, Ordering::Relaxed));
        let (process, alive) = (Process::current(), Arc::new(()));
        Ok(Self { device: device.in_new_domain()?, id, process, alive })
    }

    /// The device, in this domain.
    pub(crate) fn device(&self) -> &P::Device {
        &self.device
    }
}

/// A [`RegistrationScope`] of some provider. Needs no lock of the host's: registering gigabytes
/// takes long.
pub(crate) trait ErasedScope: Send + Sync {
    fn id(&self) -> ScopeId;
    /// The keys of a region, registering it if this is its first use.
    fn keys(&self, region: &HostMemory) -> io::Result<Keys>;
}

impl<P: Provider> ErasedScope for RegistrationScope<P> {
    fn id(&self) -> ScopeId {
        self.id
    }

    fn keys(&self, region: &HostMemory) -> io::Result<Keys> {
        // Before any lock is taken, which a thread of the parent's may have held when this process
        // was forked.
        self.process.check().map_err(|Forked| parents_device())?;
        region.keys(self)
    }
}

/// The scope of a controller as its handles see it: another scope once its provider has changed.
pub(crate) struct CurrentScope {
    /// Identifier of `scope`, readable without its lock.
    id: AtomicU64,
    scope: Mutex<Arc<dyn ErasedScope>>,
    process: Process,
}

impl CurrentScope {
    pub(crate) fn new(scope: Arc<dyn ErasedScope>) -> Self {
        let id = AtomicU64::new(scope.id().0);
        Self { id, scope: Mutex::new(scope), process: Process::current() }
    }

    /// Replaces the current scope.
    pub(crate) fn set(&self, scope: Arc<dyn ErasedScope>) {
        let mut current = self.scope.lock().unwrap_or_else(PoisonError::into_inner);
        self.id.store(scope.id().0, Ordering::Relaxed);
        *current = scope;
    }
}

impl ErasedScope for CurrentScope {
    /// Identifier of the current scope: the engine registers again what was registered in an
    /// earlier one.
    fn id(&self) -> ScopeId {
        ScopeId(self.id.load(Ordering::Relaxed))
    }

    fn keys(&self, region: &HostMemory) -> io::Result<Keys> {
        // Before the lock, which a thread of the parent's may have held.
        self.process.check().map_err(|Forked| parents_device())?;
        let scope = Arc::clone(&self.scope.lock().unwrap_or_else(PoisonError::into_inner));
        scope.keys(region)
    }
}

fn parents_device() -> io::Error {
    io::Error::other("the device is the parent process's")
}

/// The keys of a region in one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) scope: ScopeId,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Keys {
    /// The keys of no region: both are zero.
    pub(crate) const NONE: Self = Self { scope: ScopeId(u64::MAX), lkey: 0, rkey: 0 };
}

/// Memory and its registrations. The owner is dropped only after all devices have forgotten the
/// memory.
pub(crate) struct HostMemory {
    registrations: RwLock<Registrations>,
    address: MemoryAddress,
    length: usize,
    grant: Grant,
    owner: ManuallyDrop<MemoryOwner>,
}

impl HostMemory {
    fn keys<P: Provider>(&self, scope: &RegistrationScope<P>) -> io::Result<Keys> {
        if self.length == 0 {
            // No command names it, and no device has memory of no bytes.
            return Ok(Keys { scope: scope.id, ..Keys::NONE });
        }
        if let Some(keys) = self.registered(scope.id) {
            return Ok(keys);
        }
        let mut registrations = self.registrations.write().unwrap_or_else(PoisonError::into_inner);
        registrations.end_where(|registration| registration.alive.strong_count() == 0);
        if let Some(found) = registrations.of(scope.id) {
            return Ok(found.keys);
        }
        let region = self.register::<P>(&scope.device)?;
        let (scope, alive) = (scope.id, Arc::downgrade(&scope.alive));
        let keys = Keys { scope, lkey: region.lkey(), rkey: region.rkey() };
        let (process, region) = (Process::current(), Box::new(TypedRegion::<P>(region)));
        registrations.all.push(Registration { scope, alive, keys, process, region });
        Ok(keys)
    }

    fn registered(&self, scope: ScopeId) -> Option<Keys> {
        let registrations = self.registrations.read().unwrap_or_else(PoisonError::into_inner);
        registrations.of(scope).map(|entry| entry.keys)
    }

    fn register<P: Provider>(&self, device: &P::Device) -> io::Result<P::Region> {
        let memory = Mem::Host { addr: self.address.0.as_ptr(), length: self.length };
        // SAFETY: the memory stays mapped until `owner` is dropped, which happens after the
        // registrations have ended, and never if one could not be. References into a region with
        // remote access exist only where the caller of `as_slice_unchecked` answers for the
        // targets.
        unsafe { device.register(memory, self.grant.access()) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let registrations = self.registrations.get_mut().unwrap_or_else(PoisonError::into_inner);
        if registrations.end().is_ok() {
            // SAFETY: it is dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
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

/// The registrations of a region.
#[derive(Default)]
struct Registrations {
    all: Vec<Registration>,
    /// A device refused to end one, so that its targets may still reach the memory.
    stuck: bool,
}

impl Registrations {
    fn of(&self, scope: ScopeId) -> Option<&Registration> {
        self.all.iter().find(|entry| entry.scope == scope)
    }

    fn end_where(&mut self, over: impl Fn(&Registration) -> bool) {
        for registration in self.all.extract_if(.., |entry| over(entry)) {
            self.stuck |= registration.end().is_err();
        }
    }

    /// Ends all registrations; fails if a device refused to end one, now or earlier.
    fn end(&mut self) -> Result<(), StillRegistered> {
        self.end_where(|_| true);
        if self.stuck { Err(StillRegistered) } else { Ok(()) }
    }
}

struct Registration {
    scope: ScopeId,
    alive: Weak<()>,
    keys: Keys,
    /// The process whose device it is registered with.
    process: Process,
    region: Box<dyn AnyRegion>,
}

impl Registration {
    fn end(self) -> Result<(), StillRegistered> {
        if self.process.check() == Err(Forked) {
            // The device is the parent's, which keeps the registration of its own memory.
            mem::forget(self.region);
            return Ok(());
        }
        self.region.deregister()
    }
}

/// A registered region of some provider.
trait AnyRegion: Any + Send + Sync {
    fn deregister(self: Box<Self>) -> Result<(), StillRegistered>;
}

struct TypedRegion<P: Provider>(P::Region);

impl<P: Provider> AnyRegion for TypedRegion<P> {
    fn deregister(self: Box<Self>) -> Result<(), StillRegistered> {
        self.0.deregister()
    }
}

/// The owner of the memory, which frees it.
enum MemoryOwner {
    Pages {
        _pages: Pages,
    },
    Vec(Vec<u8>),
    /// Memory of the caller; behind a lock only so that it may be shared.
    Foreign(Mutex<Option<Release>>),
}

type Release = Box<dyn FnOnce() + Send>;

impl Drop for MemoryOwner {
    fn drop(&mut self) {
        if let Self::Foreign(release) = self
            && let Some(release) = release.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            foreign_code::call("the release of memory", release);
        }
    }
}

#[cfg(test)]
mod tests;
