//! The table of registered regions and memory windows of one device.
//!
//! A key consists of the entry's index and a generation, which starts at random and changes with
//! each use, so that a stale key matches no entry. An index is reused only after [`MIN_IDLE`]
//! others, oldest first, so a key recurs after 16 million registrations at the earliest. A lookup
//! takes a few atomic loads; only registration and deregistration take a lock.
//!
//! Regions, windows and queue pairs belong to a protection domain: a key of another domain is
//! invalid, for the peer's requests and for our own.
#![expect(unsafe_code, reason = "hands out access to registered memory")]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::place;
use super::random::Random;
use super::section::{Section, Sections};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::deliberate_bugs::{self, Bug};
use crate::{Access, Bind, Mem, RegionHandle, WindowHandle};

const GENERATION_BITS: u32 = 14;
const CHUNK: usize = 1024;
const CHUNKS: usize = (1 << (32 - GENERATION_BITS)) / CHUNK;

/// Maximum number of regions and windows of a device.
pub(crate) const MAX_ENTRIES: usize = CHUNK * CHUNKS;

/// Number of freed indexes that are kept unused before the oldest is reused, while the table has
/// unused entries.
const MIN_IDLE: usize = CHUNK;

/// Flag in the access bits of an entry that marks a window.
const WINDOW: u32 = 1 << 31;

/// Error of an access with an invalid key, or to memory that the key does not grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// Identifies a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DomainId(u64);

/// The regions and windows of a device by their keys. A lookup takes no lock.
pub(crate) struct Regions {
    chunks: Box<[OnceLock<Box<[RegionEntry]>>]>,
    free: Mutex<FreeEntries>,
    sections: Sections,
    domains: AtomicU64,
}

/// A region or window. All fields but the key are written only while the key is zero and no section
/// that could have seen an earlier key is open, or, for a window, by the one thread that `qpn`
/// admits.
struct RegionEntry {
    /// The key; zero while the entry is unused.
    key: AtomicU32,
    access: AtomicU32,
    domain: AtomicU64,
    addr: AtomicU64,
    length: AtomicU64,
    /// Unique number of the registration. A window has that of its region.
    registration: AtomicU64,
    /// The queue pair whose peer may use a window.
    qpn: AtomicU32,
    /// Key of the region that a window is bound to.
    region: AtomicU32,
    /// Handle of a window while it exists, else zero.
    window: AtomicU64,
}

struct FreeEntries {
    /// Freed indexes, oldest first.
    indexes: VecDeque<u32>,
    /// The lowest index that was never used.
    fresh: u32,
    generations: Vec<u32>,
    registrations: u64,
    windows: u64,
    random: Random,
}

/// The table during an open section, in which memory may be accessed.
pub(crate) struct RegionsView<'a> {
    regions: &'a Regions,
    _section: Section<'a>,
}

/// The memory that queue pairs of one protection domain may access during an open section.
#[derive(Clone, Copy)]
pub(crate) struct DomainView<'a> {
    regions: &'a Regions,
    domain: DomainId,
}

impl Regions {
    /// Creates an empty table for a device with `groups` groups.
    pub(crate) fn new(groups: usize, random: Random) -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(FreeEntries {
                indexes: VecDeque::new(),
                fresh: 0,
                generations: Vec::new(),
                registrations: 0,
                windows: 0,
                random,
            }),
            sections: Sections::new(groups),
            domains: AtomicU64::new(0),
        }
    }

    /// Creates an empty protection domain.
    pub(crate) fn new_domain(&self) -> DomainId {
        DomainId(self.domains.fetch_add(1, Ordering::Relaxed))
    }

    /// Opens the section of group `index`, in which registered memory may be accessed.
    pub(crate) fn view(&self, index: usize) -> RegionsView<'_> {
        RegionsView { regions: self, _section: self.sections.enter(index) }
    }

    /// Registers memory and returns its key; `None` when the table is full.
    ///
    /// # Safety
    /// As for [`crate::Device::register`]; the memory stays mapped until the key was retired.
    pub(crate) unsafe fn register(
        &self,
        domain: DomainId,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Option<u32> {
        let (key, registration) = {
            let mut free = self.free();
            free.registrations += 1;
            (free.take()?, free.registrations)
        };
        let entry = self.entry(key);
        entry.registration.store(registration, Ordering::Relaxed);
        entry.domain.store(domain.0, Ordering::Relaxed);
        entry.access.store(access.bits(), Ordering::Relaxed);
        entry.addr.store(addr, Ordering::Relaxed);
        entry.length.store(length, Ordering::Relaxed);
        entry.key.store(key, Ordering::Release);
        Some(key)
    }

    /// Deregisters memory: when this returns, no byte is accessed through its key.
    pub(crate) fn retire(&self, key: u32) {
        self.entry(key).key.store(0, Ordering::Relaxed);
        self.sections.wait();
        self.free().give_back(key);
    }

    /// Allocates a window; returns its handle and the key that precedes its first one. `None` when
    /// the table is full.
    pub(crate) fn allocate_window(&self, domain: DomainId) -> Option<(WindowHandle, u32)> {
        let mut free = self.free();
        let key = free.take()?;
        free.windows += 1;
        let handle = (free.windows << (32 - GENERATION_BITS)) | u64::from(key >> GENERATION_BITS);
        let entry = self.entry(key);
        entry.domain.store(domain.0, Ordering::Relaxed);
        entry.window.store(handle, Ordering::Release);
        Some((WindowHandle(handle), key))
    }

    /// Frees a window with its latest key.
    pub(crate) fn free_window(&self, key: u32) {
        let entry = self.entry(key);
        entry.window.store(0, Ordering::Relaxed);
        // A bind in progress that has seen the handle may still publish its key.
        self.sections.wait();
        entry.key.store(0, Ordering::Relaxed);
        self.sections.wait();
        self.free().give_back(key);
    }

    /// Number of regions and windows.
    pub(crate) fn count(&self) -> u64 {
        let free = self.free();
        u64::from(free.fresh) - free.indexes.len() as u64
    }

    fn free(&self) -> MutexGuard<'_, FreeEntries> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a key of this table, whose memory is allocated if necessary.
    fn entry(&self, key: u32) -> &RegionEntry {
        let index = index_of(key);
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| RegionEntry::default()).collect());
        &chunk[index % CHUNK]
    }

    /// The entry with this key; `None` for any key that is not valid now.
    fn find(&self, key: u32) -> Option<&RegionEntry> {
        let index = index_of(key);
        let entry = &self.chunks[index / CHUNK].get()?[index % CHUNK];
        (key != 0 && entry.key.load(Ordering::Acquire) == key).then_some(entry)
    }
}

impl FreeEntries {
    /// Allocates an entry: its key with a new generation; `None` when all are in use.
    fn take(&mut self) -> Option<u32> {
        let has_fresh = (self.fresh as usize) < MAX_ENTRIES;
        let index = if has_fresh && self.indexes.len() < MIN_IDLE {
            self.fresh += 1;
            self.generations.push(random_generation(&mut self.random));
            self.fresh - 1
        } else {
            self.indexes.pop_front()?
        };
        let generation = &mut self.generations[index as usize];
        *generation = next_generation(*generation);
        Some(index << GENERATION_BITS | *generation)
    }

    fn give_back(&mut self, key: u32) {
        let index = key >> GENERATION_BITS;
        self.generations[index as usize] = key & GENERATION_MASK;
        self.indexes.push_back(index);
    }
}

impl RegionsView<'_> {
    /// The memory that queue pairs of a protection domain may access.
    pub(crate) fn in_domain(&self, domain: DomainId) -> DomainView<'_> {
        DomainView { regions: self.regions, domain }
    }
}

impl<'a> DomainView<'a> {
    /// The entry with this key, if it belongs to the domain.
    fn find(&self, key: u32) -> Option<&'a RegionEntry> {
        let entry = self.regions.find(key)?;
        (entry.domain.load(Ordering::Relaxed) == self.domain.0).then_some(entry)
    }

    /// Checks that our own request may access `length` bytes at `addr`; the key of a window is
    /// denied.
    pub(crate) fn check_local(
        &self,
        lkey: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(), Denied> {
        let entry = self.find(lkey).ok_or(Denied)?;
        let granted = entry.access.load(Ordering::Relaxed);
        if granted & WINDOW != 0 {
            return Err(Denied);
        }
        entry.allows(granted, addr, length, access)
    }

    /// Checks that the peer of our queue pair `qpn` may access `length` bytes at `addr`.
    pub(crate) fn check_remote(
        &self,
        rkey: u32,
        addr: u64,
        length: u64,
        access: Access,
        qpn: u32,
    ) -> Result<(), Denied> {
        let entry = self.find(rkey).ok_or(Denied)?;
        let granted = entry.access.load(Ordering::Relaxed);
        if granted & WINDOW != 0 {
            if entry.qpn.load(Ordering::Relaxed) != qpn {
                return Err(Denied);
            }
            let region = self.find(entry.region.load(Ordering::Relaxed)).ok_or(Denied)?;
            let bound_to = entry.registration.load(Ordering::Relaxed);
            if region.registration.load(Ordering::Relaxed) != bound_to {
                return Err(Denied);
            }
        }
        entry.allows(granted, addr, length, access)
    }

    /// Copies a payload to memory under a local key.
    pub(crate) fn place_local(&self, lkey: u32, addr: u64, payload: &[u8]) -> Result<(), Denied> {
        self.check_local(lkey, addr, payload.len() as u64, Access::LOCAL_WRITE)?;
        // SAFETY: the region is registered for writing and stays so while the section is open.
        unsafe { place::copy_in(addr, payload) };
        Ok(())
    }

    /// Copies a payload to memory under a remote key.
    pub(crate) fn place_remote(
        &self,
        rkey: u32,
        addr: u64,
        payload: &[u8],
        qpn: u32,
    ) -> Result<(), Denied> {
        self.check_remote(rkey, addr, payload.len() as u64, Access::REMOTE_WRITE, qpn)?;
        // SAFETY: as in `place_local`; a window's region was found registered as well.
        unsafe { place::copy_in(addr, payload) };
        Ok(())
    }

    /// The bytes under a local key, borrowed while the section is open.
    pub(crate) fn local(&self, lkey: u32, addr: u64, length: u32) -> Result<&'a [u8], Denied> {
        self.check_local(lkey, addr, u64::from(length), Access::NONE)?;
        // SAFETY: the region is registered and stays so while the section lives, which `'a` does
        // not outlive.
        Ok(unsafe { place::bytes(addr, length as usize) })
    }

    /// The bytes under a remote key, borrowed while the section is open.
    pub(crate) fn remote(
        &self,
        rkey: u32,
        addr: u64,
        length: u32,
        qpn: u32,
    ) -> Result<&'a [u8], Denied> {
        self.check_remote(rkey, addr, u64::from(length), Access::REMOTE_READ, qpn)?;
        // SAFETY: as in `local`.
        Ok(unsafe { place::bytes(addr, length as usize) })
    }

    /// Copies from a shared-memory ring to memory under a local key.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes and belongs to no region.
    pub(crate) unsafe fn copy_to_local(
        &self,
        lkey: u32,
        addr: u64,
        source: *const u8,
        length: u32,
    ) -> Result<(), Denied> {
        self.check_local(lkey, addr, length.into(), Access::LOCAL_WRITE)?;
        // SAFETY: the region is registered for writing and stays so while the section is open.
        unsafe { place::copy_from(addr, source, length as usize) };
        Ok(())
    }

    /// Copies from a shared-memory ring to memory under a remote key.
    ///
    /// # Safety
    /// `source` is as for [`DomainView::copy_to_local`].
    pub(crate) unsafe fn copy_to_remote(
        &self,
        (rkey, qpn): (u32, u32),
        addr: u64,
        source: *const u8,
        length: u32,
    ) -> Result<(), Denied> {
        self.check_remote(rkey, addr, length.into(), Access::REMOTE_WRITE, qpn)?;
        // SAFETY: as in `copy_to_local`; a window's region was found registered as well.
        unsafe { place::copy_from(addr, source, length as usize) };
        Ok(())
    }

    /// Copies memory under a local key to a shared-memory ring.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes and belongs to no region.
    pub(crate) unsafe fn copy_from_local(
        &self,
        lkey: u32,
        addr: u64,
        target: *mut u8,
        length: u32,
    ) -> Result<(), Denied> {
        self.check_local(lkey, addr, length.into(), Access::NONE)?;
        // SAFETY: as in `copy_to_local`.
        unsafe { place::copy_to(addr, target, length as usize) };
        Ok(())
    }

    /// Copies memory under a remote key to a shared-memory ring.
    ///
    /// # Safety
    /// `target` is as for [`DomainView::copy_from_local`].
    pub(crate) unsafe fn copy_from_remote(
        &self,
        (rkey, qpn): (u32, u32),
        addr: u64,
        target: *mut u8,
        length: u32,
    ) -> Result<(), Denied> {
        self.check_remote(rkey, addr, length.into(), Access::REMOTE_READ, qpn)?;
        // SAFETY: as in `copy_to_remote`.
        unsafe { place::copy_to(addr, target, length as usize) };
        Ok(())
    }

    /// Binds a window for the peer of our queue pair `qpn`.
    pub(crate) fn bind(&self, qpn: u32, bind: &Bind) -> Result<(), Denied> {
        let RegionHandle(region) = bind.region;
        let region_key = u32::try_from(region).map_err(|_| Denied)?;
        let region = self.find(region_key).ok_or(Denied)?;
        let granted = region.access.load(Ordering::Relaxed);
        let needed = needed_of_region(bind.access);
        if granted & WINDOW != 0 || bind.length == 0 {
            return Err(Denied);
        }
        region.allows(granted, bind.addr, bind.length, needed)?;
        let window = self.window(bind)?;
        window.access.store(bind.access.bits() | WINDOW, Ordering::Relaxed);
        window.addr.store(bind.addr, Ordering::Relaxed);
        window.length.store(bind.length, Ordering::Relaxed);
        window.qpn.store(qpn, Ordering::Relaxed);
        window.region.store(region_key, Ordering::Relaxed);
        let registration = region.registration.load(Ordering::Relaxed);
        window.registration.store(registration, Ordering::Relaxed);
        window.key.store(bind.rkey, Ordering::Release);
        Ok(())
    }

    /// The window of a bind; denied unless it exists, belongs to the domain and is invalid.
    fn window(&self, bind: &Bind) -> Result<&'a RegionEntry, Denied> {
        let index = index_of(bind.rkey);
        let chunk = self.regions.chunks[index / CHUNK].get().ok_or(Denied)?;
        let window = &chunk[index % CHUNK];
        let WindowHandle(handle) = bind.window;
        let exists = handle != 0
            && window.window.load(Ordering::Acquire) == handle
            && window.domain.load(Ordering::Relaxed) == self.domain.0;
        let closed = window.key.load(Ordering::Relaxed) == 0;
        (exists && closed).then_some(window).ok_or(Denied)
    }

    /// Invalidates a window that is bound for our queue pair `qpn`. Keys of regions are denied.
    pub(crate) fn invalidate(&self, qpn: u32, rkey: u32) -> Result<(), Denied> {
        let entry = self.find(rkey).ok_or(Denied)?;
        let is_window = entry.access.load(Ordering::Relaxed) & WINDOW != 0;
        if !is_window || entry.qpn.load(Ordering::Relaxed) != qpn {
            return Err(Denied);
        }
        entry.key.store(0, Ordering::Release);
        Ok(())
    }
}

impl RegionEntry {
    fn allows(&self, granted: u32, addr: u64, length: u64, access: Access) -> Result<(), Denied> {
        let start = self.addr.load(Ordering::Relaxed);
        let total = self.length.load(Ordering::Relaxed);
        let offset = addr.checked_sub(start).ok_or(Denied)?;
        let room = total.checked_sub(offset).ok_or(Denied)?;
        let fits = length <= room || deliberate_bugs::has(Bug::SkipRkeyBound);
        let allowed = granted & access.bits() == access.bits() && fits;
        allowed.then_some(()).ok_or(Denied)
    }
}

impl Default for RegionEntry {
    fn default() -> Self {
        Self {
            key: AtomicU32::new(0),
            access: AtomicU32::new(0),
            domain: AtomicU64::new(0),
            addr: AtomicU64::new(0),
            length: AtomicU64::new(0),
            registration: AtomicU64::new(0),
            qpn: AtomicU32::new(0),
            region: AtomicU32::new(0),
            window: AtomicU64::new(0),
        }
    }
}

/// The access that a region must have for a window with `access` to be bound to it.
fn needed_of_region(access: Access) -> Access {
    let writes = access.contains(Access::REMOTE_WRITE);
    Access::WINDOW_BIND | if writes { Access::LOCAL_WRITE } else { Access::NONE }
}

const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

fn index_of(key: u32) -> usize {
    (key >> GENERATION_BITS) as usize
}

fn random_generation(random: &mut Random) -> u32 {
    u32::try_from(random.below(u64::from(GENERATION_MASK))).expect("below a 14-bit bound") + 1
}

/// The generation after `generation`; never zero, so that no key is zero.
pub(crate) fn next_generation(generation: u32) -> u32 {
    generation % GENERATION_MASK + 1
}

/// The next key of the same entry.
fn next_key(key: u32) -> u32 {
    key & !GENERATION_MASK | next_generation(key & GENERATION_MASK)
}

/// A registered memory region of a software device.
pub struct SoftwareRegion {
    regions: Arc<Regions>,
    key: u32,
}

impl SoftwareRegion {
    /// Registers memory in a protection domain.
    ///
    /// # Safety
    /// The memory is as [`crate::Device::register`] asks for.
    pub(crate) unsafe fn register(
        regions: &Arc<Regions>,
        domain: DomainId,
        memory: Mem<'_>,
        access: Access,
    ) -> io::Result<Self> {
        let Mem::Host { addr, length } = memory else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a software device registers host memory only, no dma-buf",
            ));
        };
        if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "memory that the peer may write must be writable for us as well",
            ));
        }
        let addr = addr.expose_provenance() as u64;
        // SAFETY: the caller keeps the memory mapped until the region is dropped, which retires the
        // key.
        let key = unsafe { regions.register(domain, addr, length as u64, access) };
        let key = key.ok_or_else(table_full)?;
        Ok(Self { regions: Arc::clone(regions), key })
    }
}

/// The error for a table without a free entry.
pub(crate) fn table_full() -> io::Error {
    io::Error::other(format!("the device has its {MAX_ENTRIES} memory regions and windows in use"))
}

impl crate::MemoryRegion for SoftwareRegion {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }

    fn handle(&self) -> RegionHandle {
        RegionHandle(u64::from(self.key))
    }

    fn deregister(self) -> Result<(), crate::StillRegistered> {
        drop(self);
        Ok(())
    }
}

impl Drop for SoftwareRegion {
    fn drop(&mut self) {
        self.regions.retire(self.key);
    }
}

/// A memory window of a software device.
pub struct Window {
    regions: Arc<Regions>,
    handle: WindowHandle,
    key: u32,
}

impl Window {
    /// Creates a window that is not bound; `None` when the table is full.
    pub(crate) fn new(regions: Arc<Regions>, domain: DomainId) -> Option<Self> {
        let (handle, key) = regions.allocate_window(domain)?;
        Some(Self { regions, handle, key })
    }

    /// The key set by the latest bind.
    pub(crate) fn rkey(&self) -> u32 {
        self.key
    }

    /// Returns the bind of part of `region` under the next key.
    pub(crate) fn bind(
        &mut self,
        region: &SoftwareRegion,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Bind {
        self.key = next_key(self.key);
        let region = crate::MemoryRegion::handle(region);
        Bind { window: self.handle, rkey: self.key, region, addr, length, access }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.regions.free_window(self.key);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
