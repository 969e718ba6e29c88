//! A peer in shared memory that keeps no rule: it knows the layout, and writes what it likes.
#![expect(unsafe_code, reason = "maps memory and reaches it by address")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::memory::without_secrets;

/// Bytes of the rings that an end writes: that of requests and that of answers.
pub(super) const RING_BYTES: [u64; 2] = [1 << 20, 256 << 10];
const PAGE_BYTES: usize = 4096;
/// Bytes of both rings that an end writes.
const END_RINGS_BYTES: u64 = RING_BYTES[0] + RING_BYTES[1];
/// Bytes of the memory.
pub(super) const MAPPING_BYTES: usize = PAGE_BYTES + 2 * END_RINGS_BYTES as usize;
/// The seals that a passive end insists on.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const HEADER_BYTES: usize = 32;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The ends of a connection, by the number that the layout gives them.
pub(super) const ACTIVE: usize = 0;
pub(super) const PASSIVE: usize = 1;

/// The hostile end of a connection.
pub(super) struct HostileLink {
    base: NonNull<AtomicU64>,
    /// Which end this is.
    end: usize,
    pub(super) bell: Option<OwnedFd>,
    /// How far it has written its rings, as an honest end would count.
    written: [u64; 2],
    /// How far it has read those of the other end.
    read: [u64; 2],
    /// How far it has looked for secrets in what the other end wrote.
    searched: [u64; 2],
}

/// A word that says how far an end is.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostileWord {
    Head { writer: usize, ring: usize },
    Tail { writer: usize, ring: usize },
    Asleep { end: usize },
    Closed { end: usize },
    News { end: usize },
}

impl HostileLink {
    /// Maps memory as the end with this number.
    pub(super) fn map(memory: BorrowedFd<'_>, end: usize, bell: Option<OwnedFd>) -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = core::ptr::null_mut();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(anywhere, MAPPING_BYTES, protection, MapFlags::SHARED, memory, 0)
        };
        let base = NonNull::new(base.ok()?.cast())?;
        let zero = [0; 2];
        Some(Self { base, end, bell, written: zero, read: zero, searched: zero })
    }

    pub(super) fn end(&self) -> usize {
        self.end
    }

    fn other(&self) -> usize {
        1 - self.end
    }

    fn place(&self, offset: usize) -> *mut u8 {
        assert!(offset < MAPPING_BYTES);
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().cast::<u8>().add(offset) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: within the mapping, aligned, and valid whatever its value is.
        unsafe { &*self.place(offset).cast() }
    }

    /// The value of a word at a place of the memory.
    pub(super) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Writes a word at a place of the memory. Unless that is its count of news itself, it counts
    /// those of the first page, or the other end would not look.
    pub(super) fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(without_secrets(value), Ordering::Release);
        let news = Self::offset(HostileWord::News { end: self.end });
        if offset < PAGE_BYTES && offset != news {
            self.word(news).fetch_add(1, Ordering::Release);
        }
    }

    /// Where a word of the first page is.
    pub(super) fn offset(word: HostileWord) -> usize {
        let (writer, group, index) = match word {
            HostileWord::Head { writer, ring } => (writer, 0, ring),
            HostileWord::Tail { writer, ring } => (1 - writer, 1, ring),
            HostileWord::Asleep { end } => (end, 2, 0),
            HostileWord::Closed { end } => (end, 0, 2),
            HostileWord::News { end } => (end, 0, 3),
        };
        writer * 1024 + group * 128 + index * 8
    }

    /// Where a position of a ring is.
    pub(super) fn in_ring(writer: usize, ring: usize, position: u64) -> usize {
        let before = writer as u64 * END_RINGS_BYTES + ring as u64 * RING_BYTES[0];
        PAGE_BYTES + (before + position % RING_BYTES[ring]) as usize
    }

    /// Writes a record behind those before it, with as much of its payload as there is room for.
    pub(super) fn record(&mut self, ring: usize, words: [u64; 4], fill: u8) {
        let length = words[0] & u64::from(u32::MAX);
        let size = (HEADER_BYTES as u64 + length).next_multiple_of(64);
        let before_end = RING_BYTES[ring] - self.written[ring] % RING_BYTES[ring];
        if size > before_end && size <= RING_BYTES[ring] {
            let at = Self::in_ring(self.end, ring, self.written[ring]);
            self.store(at, before_end - HEADER_BYTES as u64);
            self.written[ring] += before_end;
        }
        let position = self.written[ring];
        let at = Self::in_ring(self.end, ring, position);
        for (index, word) in words.into_iter().enumerate() {
            self.store(at + 8 * index, word);
        }
        let room = RING_BYTES[ring] - position % RING_BYTES[ring] - HEADER_BYTES as u64;
        let length = length.min(room).min(1 << 17) as usize;
        let fill = without_secrets(fill.into()) as u8;
        if length > 0 {
            // SAFETY: within the ring; no reference to its bytes exists.
            unsafe { self.place(at + HEADER_BYTES).write_bytes(fill, length) };
        }
        self.written[ring] = position + size.min(RING_BYTES[ring]);
    }

    /// Says how far its ring is written.
    pub(super) fn publish(&self, ring: usize) {
        let head = HostileWord::Head { writer: self.end, ring };
        self.store(Self::offset(head), self.written[ring]);
    }

    /// Where its next record begins.
    pub(super) fn position(&self, ring: usize) -> u64 {
        self.written[ring]
    }

    /// Takes up the next record of the other end, as an honest end would.
    pub(super) fn take(&mut self, ring: usize) -> Option<[u64; 4]> {
        let head = self.load(Self::offset(HostileWord::Head { writer: self.other(), ring }));
        let position = self.read[ring];
        if head <= position || head - position > RING_BYTES[ring] || !position.is_multiple_of(64) {
            return None;
        }
        let at = Self::in_ring(self.other(), ring, position);
        let words = core::array::from_fn(|index| self.load(at + 8 * index));
        let length = words[0] & u64::from(u32::MAX);
        self.read[ring] +=
            (HEADER_BYTES as u64 + length).next_multiple_of(64).min(RING_BYTES[ring]);
        let tail = HostileWord::Tail { writer: self.other(), ring };
        self.store(Self::offset(tail), self.read[ring]);
        Some(words)
    }

    /// Looks at everything that the other end has published since it was last asked, and panics
    /// where that has secrets.
    pub(super) fn search_for_secrets(&mut self) {
        for (ring, bytes) in RING_BYTES.into_iter().enumerate() {
            let head = self.load(Self::offset(HostileWord::Head { writer: self.other(), ring }));
            let from = self.searched[ring];
            if head <= from || head - from > bytes {
                continue;
            }
            self.searched[ring] = head;
            let before_end = (head - from).min(bytes - from % bytes);
            for (from, length) in [(from, before_end), (0, head - from - before_end)] {
                if length > 0 {
                    let place = self.place(Self::in_ring(self.other(), ring, from));
                    // SAFETY: within the ring, which nobody else writes: all ends are in this
                    // thread.
                    let sent = unsafe { core::slice::from_raw_parts(place, length as usize) };
                    assert!(!super::memory::has_secrets(sent), "the peer was sent secrets");
                }
            }
        }
    }
}

impl Drop for HostileLink {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nothing borrows it now.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), MAPPING_BYTES) };
    }
}

/// A memfd with seals.
pub(super) fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("hostile", flags).expect("memory is to be had");
    rustix::fs::ftruncate(&memory, bytes as u64).expect("tmpfs has room");
    rustix::fs::fcntl_add_seals(&memory, seals).expect("it may be sealed");
    memory
}

/// Two ends of a bell.
pub(super) fn bells(kind: SocketType) -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, kind, FLAGS, None).expect("descriptors are left")
}

/// Listens as a target does.
pub(super) fn listen() -> (SocketAddr, OwnedFd) {
    for port in 1..0x8000 {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let socket = new_socket();
        match rustix::net::bind(&socket, &name_of(address)) {
            Ok(()) => {
                rustix::net::listen(&socket, 64).expect("it is bound");
                return (address, socket);
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => panic!("cannot bind: {error}"),
        }
    }
    panic!("no port is free");
}

/// A connection that a listener has, what was sent on it, and the descriptors that came with it.
pub(super) fn accept(listener: &OwnedFd) -> Option<(OwnedFd, Vec<OwnedFd>)> {
    let socket = rustix::net::accept_with(listener, FLAGS).ok()?;
    let mut bytes = [0; 300];
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut places = [IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(&socket, &mut places, &mut control, flags).ok()?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Some((socket, descriptors))
}

/// A connection to a listener.
pub(super) fn connect(address: SocketAddr) -> Option<OwnedFd> {
    let socket = new_socket();
    rustix::net::connect(&socket, &name_of(address)).ok()?;
    Some(socket)
}

/// Sends bytes and descriptors.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "room for four");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // A victim that has closed is as good as one that listens.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

fn new_socket() -> OwnedFd {
    let family = AddressFamily::UNIX;
    rustix::net::socket_with(family, SocketType::SEQPACKET, FLAGS, None)
        .expect("descriptors are left")
}

fn name_of(address: SocketAddr) -> SocketAddrUnix {
    let name = format!("feedrail-shm/{address}");
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a short name")
}
