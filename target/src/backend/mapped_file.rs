//! Mapping of a file with its pages locked in memory, so that reads need no system call.
//!
//! A thread of the control path locks the parts of the file that reads found in the page cache.
//! Only locked parts are read through the mapping: a missing page would stop a core until the
//! medium has delivered it. While anything is locked the file is leased ([`FileLease`]), so a
//! process that opens it for writing or truncates it waits until the mapping is no longer read.
//! (Beyond the end of a truncated file the mapping shows zeros up to the end of the page.)
#![expect(unsafe_code, reason = "maps a file, and locks its pages")]

use std::num::NonZero;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::{fmt, io};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;
use rustix::thread::CapabilitySet;

use super::cache_room::CacheRoom;
use super::file_lease::FileLease;
use super::resident_copy;

/// Bytes of an extent, the unit of locking. Larger extents would lock more bytes that no host
/// reads.
const EXTENT_BYTES: u64 = 2 << 20;

/// State of an extent that no read has found in the page cache.
const NOT_READ: u8 = 0;
/// State of an extent that is to be locked.
const WANTED: u8 = 1;
const LOCKED: u8 = 2;

/// Mapping of a whole file, and the state of its extents.
pub(crate) struct MappedFile {
    base: NonNull<u8>,
    bytes: NonZero<usize>,
    extents: Box<[AtomicU8]>,
    /// Set while an extent is to be locked.
    wanted: AtomicBool,
    /// Set once a page was missing or could not be locked; reads then use system calls for good.
    given_up: AtomicBool,
    lease: FileLease,
    room: Arc<CacheRoom>,
}

/// Range of a mapped file that was locked in memory when this was created.
#[derive(Clone, Copy, Debug)]
pub struct MappedPlace {
    file: *const MappedFile,
    offset: u64,
    length: u32,
}

// SAFETY: the mapping is only read, by address, with a copy that any thread may make at any time.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `bytes` of a file, which have room in `room`. Returns `None` where the
    /// process may not lock an unlimited amount of memory, since pools need what it may lock.
    pub(super) fn new(file: &Arc<OwnedFd>, bytes: u64, room: &Arc<CacheRoom>) -> Option<Self> {
        if !may_lock() {
            return None;
        }
        Self::map(file, bytes, room)
            .inspect_err(|error| tracing::debug!(%error, "a file is not mapped"))
            .ok()
    }

    fn map(file: &Arc<OwnedFd>, bytes: u64, room: &Arc<CacheRoom>) -> io::Result<Self> {
        resident_copy::prepare()?;
        let extents = (0..bytes.div_ceil(EXTENT_BYTES)).map(|_| AtomicU8::new(NOT_READ)).collect();
        let too_long = || io::Error::from_raw_os_error(libc::EFBIG);
        let bytes = usize::try_from(bytes).ok().and_then(NonZero::new).ok_or_else(too_long)?;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe {
            let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
            rustix::mm::mmap(std::ptr::null_mut(), bytes.get(), protection, flags, file, 0)
        }?;
        let base = NonNull::new(base.cast()).expect("a mapping is not at address zero");
        let [wanted, given_up] = [(); 2].map(|()| AtomicBool::new(false));
        let (lease, room) = (FileLease::new(Arc::clone(file)), Arc::clone(room));
        Ok(Self { base, bytes, extents, wanted, given_up, lease, room })
    }

    /// Returns a range of the mapping to read from; `None` unless all of it is locked in memory.
    pub(super) fn place(&self, offset: u64, length: u32) -> Option<MappedPlace> {
        self.is_locked(offset, length).then_some(MappedPlace { file: self, offset, length })
    }

    fn is_locked(&self, offset: u64, length: u32) -> bool {
        let is_locked = |extent: &AtomicU8| extent.load(Ordering::Acquire) == LOCKED;
        let extents = self.extents_of(offset, length);
        !self.given_up.load(Ordering::Relaxed)
            && extents.is_some_and(|extents| extents.iter().all(is_locked))
    }

    /// Marks the extents of a range that was in the page cache, for [`MappedFile::tend`] to lock.
    pub(super) fn was_cached(&self, offset: u64, length: u32) {
        for extent in self.extents_of(offset, length).into_iter().flatten() {
            if extent.load(Ordering::Relaxed) == NOT_READ {
                // The control path or another core may have changed the state of the extent
                // already.
                let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
                let _ = extent.compare_exchange(NOT_READ, WANTED, order, failed);
                self.wanted.store(true, Ordering::Release);
            }
        }
    }

    /// Ends reads through the mapping for good. The next [`MappedFile::tend`] unlocks it.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Pins (`mlock`) the extents that [`MappedFile::was_cached`] marked. Unpins all extents if
    /// memory is short, or if another process that wants to write the file waits for our lease
    /// (`F_SETLEASE`). May wait for the medium, so only the control path calls this.
    pub(crate) fn tend(&self) {
        let given_up = self.given_up.load(Ordering::Relaxed);
        if given_up || !self.room.is_open() || self.lease.is_breaking() {
            self.unlock();
        } else if self.wanted.load(Ordering::Relaxed) {
            self.lock_wanted();
        }
    }

    fn lock_wanted(&self) {
        match self.lease.take() {
            Ok(true) => {}
            // Another process has it open for writing, and may close it.
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(%error, "a file cannot be leased: it is read with system calls");
                return self.give_up();
            }
        }
        // Extents marked from here on are for the next call.
        self.wanted.swap(false, Ordering::Acquire);
        for (index, extent) in self.extents.iter().enumerate() {
            if extent.load(Ordering::Relaxed) != WANTED {
                continue;
            }
            let range = self.range(index);
            // SAFETY: within the mapping.
            if let Err(error) = unsafe { rustix::mm::mlock(self.at(range.start), range.len()) } {
                tracing::info!(%error, "a file cannot be locked in memory: it is read with system calls");
                self.give_up();
                return self.unlock();
            }
            self.room.locked(range.len() as u64);
            extent.store(LOCKED, Ordering::Release);
        }
    }

    /// Ends all reads through the mapping and gives back the lease.
    fn unlock(&self) {
        for (index, extent) in self.extents.iter().enumerate() {
            if extent.swap(NOT_READ, Ordering::Relaxed) == LOCKED {
                let range = self.range(index);
                // SAFETY: within the mapping. A read in progress may have to wait for a page.
                let _ = unsafe { rustix::mm::munlock(self.at(range.start), range.len()) };
                self.room.unlocked(range.len() as u64);
            }
        }
        // Pairs with the fence in `MappedPlace::copy_to`.
        fence(Ordering::SeqCst);
        self.lease.release();
    }

    /// Extents that a range touches; `None` if it is not within the file.
    fn extents_of(&self, offset: u64, length: u32) -> Option<&[AtomicU8]> {
        let end = offset.checked_add(length.into())?;
        if end > self.bytes.get() as u64 {
            return None;
        }
        self.extents.get((offset / EXTENT_BYTES) as usize..end.div_ceil(EXTENT_BYTES) as usize)
    }

    /// Byte range of an extent.
    fn range(&self, index: usize) -> Range<usize> {
        let start = index * EXTENT_BYTES as usize;
        start..(start + EXTENT_BYTES as usize).min(self.bytes.get())
    }

    fn at(&self, offset: usize) -> *mut std::ffi::c_void {
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

impl MappedPlace {
    /// Copies the bytes and returns their number, which is smaller than the place's length if the
    /// file is no longer locked.
    ///
    /// # Safety
    /// The mapped file still exists. Memory for the place's length at `to` may be written, and
    /// nothing else reads or writes it during the call.
    pub(crate) unsafe fn copy_to(self, to: *mut u8) -> usize {
        let Self { file, offset, length } = self;
        // SAFETY: the caller's promise.
        let file = unsafe { &*file };
        let from = file.base.as_ptr().cast_const().wrapping_add(offset as usize);
        // SAFETY: the range is within the mapping, as its extents are, and a mapping is made after
        // `prepare` was successful.
        let copied = unsafe { resident_copy::copy(from, to, length as usize) };
        // Orders the copy before the check. If the bytes are still locked then, the lease was held
        // during the copy, so no process changed them.
        fence(Ordering::Acquire);
        if file.is_locked(offset, length) { copied } else { 0 }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.unlock();
        // SAFETY: mapped in `map`; operations that read there keep the backend, which has this.
        let _ = unsafe { rustix::mm::munmap(self.at(0), self.bytes.get()) };
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Whether this process may lock an unlimited amount of memory.
fn may_lock() -> bool {
    let is_capable = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    is_capable || rustix::process::getrlimit(Resource::Memlock).current.is_none()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::Command;

    use tempfile::{NamedTempFile, TempPath};

    use super::*;

    const BYTES: usize = 3 * EXTENT_BYTES as usize + 777;

    /// A file that no process has open, and its bytes.
    fn file() -> (TempPath, Vec<u8>) {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at / 3 + at / 4096) as u8).collect();
        let mut file = NamedTempFile::new().expect("a file");
        file.write_all(&bytes).expect("written");
        (file.into_temp_path(), bytes)
    }

    fn mapped(path: &Path) -> Option<MappedFile> {
        let room = Arc::new(CacheRoom::of(Some(1 << 40)));
        let file = Arc::new(File::open(path).expect("opened").into());
        let mapped = MappedFile::new(&file, BYTES as u64, &room);
        if mapped.is_none() {
            eprintln!("left out: memory cannot be locked here");
        }
        mapped
    }

    fn mapped_and_locked(path: &Path) -> Option<MappedFile> {
        let mapped = mapped(path)?;
        want(&mapped, BYTES as u32);
        Some(mapped)
    }

    /// Locks the beginning of the file. Retries, since a process forked by another test may have
    /// the file open for writing until its exec.
    fn want(mapped: &MappedFile, bytes: u32) {
        mapped.was_cached(0, bytes);
        for _ in 0..1_000_000 {
            mapped.tend();
            if mapped.is_locked(0, bytes) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("leases and locks are not available");
    }

    /// Opens the file for writing as soon as the lease allows, and truncates it.
    fn cut(path: &Path, bytes: u64) -> File {
        let file = File::options().write(true).open(path).expect("opened");
        file.set_len(bytes).expect("cut");
        file
    }

    fn copied_from(place: MappedPlace) -> Vec<u8> {
        let mut bytes = vec![0; place.length as usize];
        // SAFETY: the mapping is there in all tests, and nothing else uses the vector.
        let count = unsafe { place.copy_to(bytes.as_mut_ptr()) };
        bytes.truncate(count);
        bytes
    }

    /// Copies as a read does; `None` if the bytes are not locked.
    fn copied(mapped: &MappedFile, offset: usize, length: usize) -> Option<Vec<u8>> {
        mapped.place(offset as u64, length as u32).map(copied_from)
    }

    #[test]
    fn what_was_wanted_is_read_from_the_mapping() {
        let (path, bytes) = file();
        let Some(mapped) = mapped(&path) else { return };
        let _share = mapped.room.give(BYTES as u64).expect("there is room");
        let extent = EXTENT_BYTES as usize;
        let ranges = [(0, BYTES), (1, 4097), (extent - 1, 2), (BYTES - 777, 777)];
        for (offset, length) in ranges {
            assert_eq!(copied(&mapped, offset, length), None);
        }
        want(&mapped, EXTENT_BYTES as u32);
        assert!(copied(&mapped, 0, 4096).is_some());
        assert_eq!(copied(&mapped, extent - 1, 2), None, "half of it is locked");
        want(&mapped, BYTES as u32);
        for (offset, length) in ranges {
            let copied = copied(&mapped, offset, length);
            assert!(copied.as_deref() == Some(&bytes[offset..][..length]));
        }
        assert!(mapped.place(BYTES as u64 - 1, 2).is_none());
        assert!(mapped.place(u64::MAX, 2).is_none());
        assert_eq!(mapped.room.locked_bytes(), BYTES as u64);
        mapped.room.found(0);
        mapped.tend();
        assert_eq!((copied(&mapped, 0, 1), mapped.room.locked_bytes()), (None, 0));
    }

    #[test]
    fn a_page_that_is_gone_ends_the_copy() {
        let (path, bytes) = file();
        let Some(mapped) = mapped_and_locked(&path) else { return };
        // As if the kernel had broken the lease.
        mapped.lease.release();
        let _file = cut(&path, 8192);
        assert_eq!(copied(&mapped, 8192, 4096), Some(Vec::new()));
        assert!(copied(&mapped, 4000, 10_000).as_deref() == Some(&bytes[4000..8192]));
        mapped.give_up();
        assert_eq!(copied(&mapped, 0, 1), None);
    }

    #[test]
    fn a_file_is_not_cut_while_it_is_read() {
        let (path, bytes) = file();
        let Some(mapped) = mapped_and_locked(&path) else { return };
        let place = mapped.place(8192, 4096).expect("it is locked");
        let writer = std::thread::scope(|scope| {
            let writer = scope.spawn(|| cut(&path, 9000));
            while !mapped.lease.is_breaking() {
                std::thread::yield_now();
            }
            assert!(copied_from(place) == bytes[8192..12_288]);
            mapped.tend();
            writer.join().expect("it was let in")
        });
        assert!(copied_from(place).is_empty(), "a copy that was begun before and ends after");
        mapped.was_cached(0, 4096);
        mapped.tend();
        assert_eq!(copied(&mapped, 0, 4096), None, "it is open for writing");
        writer.set_len(BYTES as u64).expect("made longer");
        drop(writer);
        want(&mapped, 4096);
        assert!(copied(&mapped, 0, 4096).is_some(), "and now it is not");
    }

    /// A SIGBUS raised elsewhere ends the process, as it does without the handler.
    #[test]
    fn other_bus_errors_are_not_ours() {
        const CHILD: &str = "FEEDRAIL_TEST_BUS_ERROR";
        const NAME: &str = "backend::mapped_file::tests::other_bus_errors_are_not_ours";
        let (path, _) = file();
        let Some(mapped) = mapped(&path) else { return };
        if std::env::var_os(CHILD).is_some() {
            let _file = cut(&path, 0);
            // SAFETY: the address is mapped; its page is missing, which is the case under test.
            let byte = unsafe { mapped.base.as_ptr().read_volatile() };
            panic!("a page that is gone has {byte}");
        }
        let program = std::env::current_exe().expect("this one");
        let mut command = Command::new(program);
        let output = command.args(["--exact", NAME]).env(CHILD, "1").output().expect("it runs");
        let signal = output.status.signal();
        assert!([Some(libc::SIGBUS), Some(libc::SIGABRT)].contains(&signal), "{output:?}");
    }
}
