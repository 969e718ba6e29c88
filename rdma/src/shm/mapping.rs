//! The memory that the two ends of a connection share: a sealed memfd with a page of control words
//! and four rings.
//!
//! The peer may write anywhere in it at any time. Therefore its words are accessed only as atomics
//! and checked before use, and its rings only by copying, never through references.
#![expect(unsafe_code, reason = "maps memory and reaches it by address")]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::news_count::NewsCount;
use super::ring::{RingSize, SharedRing};

const PAGE_BYTES: usize = 4096;
/// Size of the rings that one end writes.
const RINGS_BYTES: usize = (RingSize::REQUESTS.bytes() + RingSize::ANSWERS.bytes()) as usize;
/// Size of the whole memory.
const MAPPING_BYTES: usize = PAGE_BYTES + 2 * RINGS_BYTES;
/// Distance in bytes between the words that one end writes and those of the other.
const END_BYTES: usize = 1024;
/// Distance in bytes between words that are written at different times: two cache lines, since
/// processors prefetch lines in pairs.
const GROUP_BYTES: usize = 128;

/// Seals that the active end adds: they prevent truncation, which would make accesses fail
/// (SIGBUS).
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Seals that the passive end adds once it has mapped the memory: they prevent punched holes, which
/// would make accesses wait for page allocation, and further writable mappings.
const PAGE_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);
/// File system of memfds with ordinary pages, `TMPFS_MAGIC`. With huge pages, a page may be
/// unavailable on first access, which raises SIGBUS.
const TMPFS: i64 = 0x0102_1994;

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmEnd {
    /// The end that requested the connection and created the memory.
    Active,
    /// The end that accepted the connection.
    Passive,
}

impl ShmEnd {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

/// Which of the two rings that an end writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingUse {
    /// SEND, RDMA WRITE and RDMA READ requests.
    Requests,
    /// Data of RDMA READs, and refusals. They have their own ring, since requests may wait for a
    /// receive, while answers to earlier requests must not wait.
    Answers,
}

/// A memfd that is mapped by both ends.
pub(super) struct SharedMapping {
    /// The first control word.
    base: NonNull<AtomicU64>,
}

// SAFETY: the mapping belongs to this value, and its words are atomics.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Creates and maps the memory; also returns its descriptor for the peer.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("feedrail-shm", flags)?;
        rustix::fs::ftruncate(&memory, MAPPING_BYTES as u64)?;
        if pages_may_be_refused() {
            make_pages(memory.as_fd())?;
        }
        rustix::fs::fcntl_add_seals(&memory, SIZE_SEALS)?;
        Ok((Self::map(memory.as_fd())?, memory))
    }

    /// Maps memory that a peer has created, after checks and seals that ensure that no access fails
    /// or waits for the peer.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the peer could still shrink the memory or punch holes in
    /// it, else the error of the system call.
    pub(super) fn open(memory: BorrowedFd<'_>) -> io::Result<Self> {
        let refuse = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        // First, since it does not access the file system of the descriptor.
        let seals = rustix::fs::fcntl_get_seals(memory)
            .map_err(|_| refuse("the peer's memory is no memfd"))?;
        if !seals.contains(SIZE_SEALS) {
            return Err(refuse("the peer's memory is not sealed"));
        }
        if rustix::fs::fstatfs(memory)?.f_type != TMPFS {
            return Err(refuse("the peer's memory has huge pages, which may be missing when used"));
        }
        if rustix::fs::fstat(memory)?.st_size != MAPPING_BYTES as i64 {
            return Err(refuse("the peer's memory has another size than ours would have"));
        }
        let mapping = Self::map(memory)?;
        rustix::fs::fcntl_add_seals(memory, PAGE_SEALS)
            .map_err(|_| refuse("the peer's memory cannot be sealed against holes"))?;
        if pages_may_be_refused() {
            make_pages(memory)?;
        }
        Ok(mapping)
    }

    fn map(memory: BorrowedFd<'_>) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                MAPPING_BYTES,
                protection,
                MapFlags::SHARED,
                memory,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).expect("a mapping is not at address zero");
        Ok(Self { base })
    }

    pub(super) fn ring(&self, writer: ShmEnd, which: RingUse) -> SharedRing<'_> {
        let slot = which as usize;
        let (size, at) = match which {
            RingUse::Requests => (RingSize::REQUESTS, 0),
            RingUse::Answers => (RingSize::ANSWERS, RingSize::REQUESTS.bytes() as usize),
        };
        SharedRing {
            head: self.word(writer, 0, slot),
            tail: self.word(writer.other(), 1, slot),
            news_of_writer: self.news(writer),
            news_of_reader: self.news(writer.other()),
            size,
            data: self.at(PAGE_BYTES + writer as usize * RINGS_BYTES + at),
        }
    }

    /// The sleep word of an end; see [`super::sleep_word`].
    pub(super) fn asleep(&self, end: ShmEnd) -> &AtomicU64 {
        self.word(end, 2, 0)
    }

    /// The closing word of an end; see [`super::link`].
    pub(super) fn closed(&self, end: ShmEnd) -> &AtomicU64 {
        self.word(end, 0, 2)
    }

    /// The count of what an end has published: ring positions, and its closing.
    pub(super) fn news(&self, end: ShmEnd) -> NewsCount<'_> {
        NewsCount(self.word(end, 0, 3))
    }

    fn word(&self, writer: ShmEnd, group: usize, index: usize) -> &AtomicU64 {
        let offset = writer as usize * END_BYTES + group * GROUP_BYTES;
        // SAFETY: within the first page; shared memory is valid for atomics of whatever value for
        // as long as it is mapped, which the borrow of `self` ensures.
        unsafe { &*self.at(offset + index * size_of::<u64>()) }
    }

    /// The word `offset` bytes after the first.
    fn at(&self, offset: usize) -> *mut AtomicU64 {
        debug_assert!(offset < MAPPING_BYTES && offset.is_multiple_of(size_of::<u64>()));
        // SAFETY: within the mapping.
        unsafe { self.base.add(offset / size_of::<u64>()) }.as_ptr()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and no longer borrowed.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), MAPPING_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Whether the kernel may fail to allocate a page on first access, which raises SIGBUS: with strict
/// overcommit (`vm.overcommit_memory` 2) a peer could use up the limit.
fn pages_may_be_refused() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

/// Allocates all pages of the memory.
///
/// # Errors
/// There is not enough memory.
fn make_pages(memory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fallocate(memory, FallocateFlags::empty(), 0, MAPPING_BYTES as u64)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither touching a page nor taking one out can fail or wait later.
    #[test]
    fn pages_are_made_before_they_are_touched_and_stay() {
        let (_active, memory) = SharedMapping::create().unwrap();
        let _passive = SharedMapping::open(memory.as_fd()).unwrap();
        make_pages(memory.as_fd()).unwrap();
        let blocks = || rustix::fs::fstat(&memory).unwrap().st_blocks * 512;
        assert_eq!(blocks(), MAPPING_BYTES as i64);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&memory, punch, 0, MAPPING_BYTES as u64).is_err());
        assert_eq!(blocks(), MAPPING_BYTES as i64);
    }

    fn memfd(flags: MemfdFlags, bytes: usize, seals: SealFlags) -> OwnedFd {
        let memory = rustix::fs::memfd_create("hostile", flags | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, bytes as u64).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory
    }

    fn refusal(memory: &OwnedFd) -> io::ErrorKind {
        SharedMapping::open(memory.as_fd()).err().expect("refused").kind()
    }

    #[test]
    fn what_the_peer_could_take_away_is_not_mapped() {
        let sealing = MemfdFlags::ALLOW_SEALING;
        for missing in [SealFlags::SHRINK, SealFlags::GROW] {
            let memory = memfd(sealing, MAPPING_BYTES, SIZE_SEALS - missing);
            assert_eq!(refusal(&memory), io::ErrorKind::InvalidData, "{missing:?}");
        }
        for bytes in [0, MAPPING_BYTES - 1, MAPPING_BYTES + 1, 1 << 40] {
            let memory = memfd(sealing, bytes, SIZE_SEALS);
            assert_eq!(refusal(&memory), io::ErrorKind::InvalidData, "{bytes}");
        }
        let (pipe, _writer) = std::io::pipe().unwrap();
        assert_eq!(refusal(&pipe.into()), io::ErrorKind::InvalidData);
        let file = tempfile::tempfile().unwrap();
        file.set_len(MAPPING_BYTES as u64).unwrap();
        assert_eq!(refusal(&file.into()), io::ErrorKind::InvalidData);
    }

    #[test]
    fn memory_that_is_sealed_for_good_is_not_mapped() {
        let memory = memfd(MemfdFlags::ALLOW_SEALING, MAPPING_BYTES, SIZE_SEALS | SealFlags::SEAL);
        assert_eq!(refusal(&memory), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_peer_takes_no_page_out() {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        let (ours, memory) = SharedMapping::create().unwrap();
        let punch = || {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&memory, flags, 0, MAPPING_BYTES as u64)
        };
        punch().unwrap();
        let theirs = SharedMapping::open(memory.as_fd()).unwrap();
        theirs.closed(ShmEnd::Active).store(7, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(punch(), Err(Errno::PERM));
        // SAFETY: the memory is reached by atomics only.
        let removed = unsafe {
            rustix::mm::madvise(
                ours.base.as_ptr().cast(),
                PAGE_BYTES,
                rustix::mm::Advice::LinuxRemove,
            )
        };
        assert_eq!(removed, Err(Errno::PERM));
        assert!(SharedMapping::map(memory.as_fd()).is_err());
        assert_eq!(ours.closed(ShmEnd::Active).load(core::sync::atomic::Ordering::Relaxed), 7);
    }

    #[test]
    fn memory_that_cannot_be_written_is_an_error() {
        let seals = SIZE_SEALS | SealFlags::WRITE;
        let memory = memfd(MemfdFlags::ALLOW_SEALING, MAPPING_BYTES, seals);
        assert!(SharedMapping::open(memory.as_fd()).is_err());
    }

    #[test]
    fn both_ends_see_the_same_words() {
        use core::sync::atomic::Ordering::Relaxed;
        let (ours, memory) = SharedMapping::create().unwrap();
        let theirs = SharedMapping::open(memory.as_fd()).unwrap();
        let mut value = 0;
        for end in [ShmEnd::Active, ShmEnd::Passive] {
            for which in [RingUse::Requests, RingUse::Answers] {
                value += 1;
                ours.ring(end, which).head.store(value, Relaxed);
                ours.ring(end, which).tail.store(value + 100, Relaxed);
            }
            ours.asleep(end).store(value + 200, Relaxed);
            ours.closed(end).store(value + 300, Relaxed);
        }
        let mut value = 0;
        let mut behind = theirs.at(PAGE_BYTES).cast::<u8>();
        for end in [ShmEnd::Active, ShmEnd::Passive] {
            for which in [RingUse::Requests, RingUse::Answers] {
                value += 1;
                assert_eq!(theirs.ring(end, which).head.load(Relaxed), value);
                assert_eq!(theirs.ring(end, which).tail.load(Relaxed), value + 100);
                // One ring begins where the one before ends.
                let ring = theirs.ring(end, which);
                assert_eq!(ring.data.cast::<u8>(), behind);
                behind = behind.wrapping_add(ring.size.bytes() as usize);
            }
            assert_eq!(theirs.asleep(end).load(Relaxed), value + 200);
            assert_eq!(theirs.closed(end).load(Relaxed), value + 300);
        }
        assert_eq!(behind, theirs.base.as_ptr().cast::<u8>().wrapping_add(MAPPING_BYTES));
    }
}
