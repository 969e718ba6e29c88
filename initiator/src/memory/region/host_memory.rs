//! Memory with its registrations, one for each protection domain that it is used in.
#![expect(unsafe_code, reason = "registers memory with devices, and frees it afterwards")]

use std::any::Any;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use rdma::{Access, Device, Mem, MemoryRegion, Provider, StillRegistered};

use crate::driver::foreign_code;
use crate::driver::process::{Forked, Process};
use crate::memory::pages::Pages;

/// Access of targets to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// The region is accessible to each target that it was used with, and to no other, from the
    /// first command until the region is freed or the controller is closed. This is fastest, and
    /// needs no memory windows. A target that violates the protocol could write to any byte of the
    /// region at any time, so its bytes are copied, or accessed through pointers: see
    /// [`RegionSlice`](super::RegionSlice).
    #[default]
    Persistent,
    /// Each command makes exactly the bytes that it transfers accessible, through the connection of
    /// its queue. They are inaccessible again before its result is returned, so that they can be
    /// borrowed. Costs an additional work request per command, and requires a provider with memory
    /// windows.
    PerCommand,
}

#[derive(Clone, Copy)]
pub(super) struct MemoryAddress(pub(super) NonNull<u8>);

// SAFETY: only slices, which are owned and disjoint, read or write there, or make references.
unsafe impl Send for MemoryAddress {}
// SAFETY: as above.
unsafe impl Sync for MemoryAddress {}

/// A protection domain in which regions are registered. Each controller has its own, so that a
/// target cannot access memory with keys that were given to other targets.
#[derive(Debug)]
pub(crate) struct RegistrationScope<P: Provider> {
    device: P::Device,
    id: ScopeId,
    process: Process,
    /// Reference whose weak counterparts in registrations show whether the scope exists.
    alive: Arc<()>,
}

/// Identifier of a scope, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeId(pub(super) u64);

impl<P: Provider> RegistrationScope<P> {
    /// Creates a protection domain.
    pub(crate) fn new(device: &P::Device) -> io::Result<Self> {
        static SCOPES: AtomicU64 = AtomicU64::new(0);
        let id = ScopeId(SCOPES.fetch_add(1, Ordering::Relaxed));
        let (process, alive) = (Process::current(), Arc::new(()));
        Ok(Self { device: device.in_new_domain()?, id, process, alive })
    }

    /// Returns the device, with this protection domain.
    pub(crate) fn device(&self) -> &P::Device {
        &self.device
    }
}

/// Interface of [`RegistrationScope`] without the type of its provider. Needs no lock of the host,
/// since registering gigabytes takes long.
pub(crate) trait ErasedScope: Any + Send + Sync {
    fn id(&self) -> ScopeId;
    /// Returns the keys of a region, which is registered at the first call.
    fn keys(&self, region: &HostMemory) -> io::Result<Keys>;
}

impl<P: Provider> ErasedScope for RegistrationScope<P> {
    fn id(&self) -> ScopeId {
        self.id
    }

    fn keys(&self, region: &HostMemory) -> io::Result<Keys> {
        // Checked before a lock is taken, which a thread of the parent may have held during the
        // fork.
        self.process.check().map_err(|Forked| parents_device())?;
        region.keys(self)
    }
}

/// Current scope of a controller, for its handles. It is replaced when the provider is changed.
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
    /// Returns the identifier of the current scope. The engine registers memory again that was
    /// registered in an earlier one.
    fn id(&self) -> ScopeId {
        ScopeId(self.id.load(Ordering::Relaxed))
    }

    fn keys(&self, region: &HostMemory) -> io::Result<Keys> {
        // Checked before the lock is taken, which a thread of the parent may have held during the
        // fork.
        self.process.check().map_err(|Forked| parents_device())?;
        let scope = Arc::clone(&self.scope.lock().unwrap_or_else(PoisonError::into_inner));
        scope.keys(region)
    }
}

fn parents_device() -> io::Error {
    io::Error::other("the device is the parent process's")
}

/// Keys of a region in one protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) scope: ScopeId,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Keys {
    /// Keys of no region, both zero.
    pub(crate) const NONE: Self = Self { scope: ScopeId(u64::MAX), lkey: 0, rkey: 0 };
}

/// Memory with its registrations. The owner is dropped only after all devices have deregistered the
/// memory.
pub(crate) struct HostMemory {
    pub(super) registrations: RwLock<Registrations>,
    address: MemoryAddress,
    pub(super) length: usize,
    grant: Grant,
    pub(super) access: MemoryAccess,
    pub(super) owner: ManuallyDrop<MemoryOwner>,
}

/// Access of devices to memory, on behalf of this host or of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryAccess {
    ReadWrite,
    /// The memory is registered without any right to write, and may be mapped read-only.
    ReadOnly,
}

impl HostMemory {
    pub(super) fn new(
        address: MemoryAddress,
        length: usize,
        grant: Grant,
        access: MemoryAccess,
        owner: MemoryOwner,
    ) -> Self {
        let (registrations, owner) = (RwLock::default(), ManuallyDrop::new(owner));
        Self { registrations, address, length, grant, access, owner }
    }

    /// Deregisters the memory everywhere; fails if a device failed to do so, now or earlier.
    pub(super) fn deregister(&mut self) -> Result<(), StillRegistered> {
        self.registrations.get_mut().unwrap_or_else(PoisonError::into_inner).end()
    }

    /// Calls `with` with the registration in a domain; `None` if it has no registration.
    pub(super) fn with_registration<P: Provider, T>(
        &self,
        scope: &RegistrationScope<P>,
        with: impl FnOnce(&P::Region) -> T,
    ) -> Option<T> {
        let registrations = self.registrations.read().unwrap_or_else(PoisonError::into_inner);
        let found: &dyn Any = &*registrations.of(scope.id)?.region;
        found.downcast_ref::<TypedRegion<P>>().map(|TypedRegion(region)| with(region))
    }

    fn keys<P: Provider>(&self, scope: &RegistrationScope<P>) -> io::Result<Keys> {
        if self.length == 0 {
            // No command uses these keys, and a device cannot register memory of length zero.
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
        unsafe { device.register(memory, self.grant.access(self.access)) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.deregister().is_ok() {
            // SAFETY: it is dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}

impl Grant {
    fn access(self, memory: MemoryAccess) -> Access {
        match (self, memory) {
            (Self::Persistent, MemoryAccess::ReadWrite) => {
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
            }
            (Self::PerCommand, MemoryAccess::ReadWrite) => {
                Access::LOCAL_WRITE | Access::WINDOW_BIND
            }
            (Self::Persistent, MemoryAccess::ReadOnly) => Access::REMOTE_READ,
            (Self::PerCommand, MemoryAccess::ReadOnly) => Access::WINDOW_BIND,
        }
    }
}

/// Registrations of a region's memory, one for each protection domain that it is used in.
#[derive(Default)]
pub(super) struct Registrations {
    pub(super) all: Vec<Registration>,
    /// Whether a device failed to deregister the memory, so that its targets may still access it.
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

    fn end(&mut self) -> Result<(), StillRegistered> {
        self.end_where(|_| true);
        if self.stuck { Err(StillRegistered) } else { Ok(()) }
    }
}

pub(super) struct Registration {
    pub(super) scope: ScopeId,
    pub(super) alive: Weak<()>,
    pub(super) keys: Keys,
    /// Process that registered the memory.
    pub(super) process: Process,
    pub(super) region: Box<dyn AnyRegion>,
}

impl Registration {
    fn end(self) -> Result<(), StillRegistered> {
        if self.process.check() == Err(Forked) {
            // The registration belongs to the parent, which keeps it for its own memory.
            mem::forget(self.region);
            return Ok(());
        }
        self.region.deregister()
    }
}

/// A memory region of any provider.
pub(super) trait AnyRegion: Any + Send + Sync {
    fn deregister(self: Box<Self>) -> Result<(), StillRegistered>;
}

struct TypedRegion<P: Provider>(P::Region);

impl<P: Provider> AnyRegion for TypedRegion<P> {
    fn deregister(self: Box<Self>) -> Result<(), StillRegistered> {
        self.0.deregister()
    }
}

/// Owner of the memory, which frees it when dropped.
pub(super) enum MemoryOwner {
    Pages {
        _pages: Pages,
    },
    Vec(Vec<u8>),
    /// Function that releases memory of the caller. The lock only makes it `Sync`.
    Foreign(Mutex<Option<Release>>),
}

pub(super) type Release = Box<dyn FnOnce() + Send>;

impl Drop for MemoryOwner {
    fn drop(&mut self) {
        if let Self::Foreign(release) = self
            && let Some(release) = release.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            foreign_code::call("the release of memory", release);
        }
    }
}
