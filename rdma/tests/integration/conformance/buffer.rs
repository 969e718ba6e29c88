//! Registered memory for tests.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use rdma::{Access, Device, Mem, MemoryRegion, Provider, Sge};

/// Memory and its registration.
pub struct Buffer<P: Provider> {
    /// Registration, dropped before the memory is.
    region: Option<P::Region>,
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to the buffer alone, but for the provider, which the region keeps
// away.
unsafe impl<P: Provider> Send for Buffer<P> {}

pub fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::WINDOW_BIND
}

impl<P: Provider> Buffer<P> {
    pub fn new(device: &P::Device, length: usize, access: Access) -> Self {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout(length)) };
        let memory = Mem::Host { addr: start, length };
        // SAFETY: `drop` drops the region before the memory, which is only reached by copying.
        let region = unsafe { device.register(memory, access) }.expect("register");
        Self { region: Some(region), start, length }
    }

    pub fn region(&self) -> &P::Region {
        self.region.as_ref().expect("registered")
    }

    /// Drops the registration, but not the memory.
    pub fn deregister(&mut self) {
        self.region = None;
    }

    pub fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub fn rkey(&self) -> u32 {
        self.region().rkey()
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        let length = u32::try_from(length).expect("short");
        Sge { addr: self.addr() + offset as u64, length, lkey: self.region().lkey() }
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: within the memory.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: within the memory.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    pub fn all(&self) -> Vec<u8> {
        self.read(0, self.length)
    }

    /// Fills it with a pattern that depends on the seed.
    pub fn fill(&mut self, seed: u64) {
        self.write(0, &pattern(seed, self.length));
    }
}

impl<P: Provider> Drop for Buffer<P> {
    fn drop(&mut self) {
        self.region = None;
        // SAFETY: allocated with this layout in `new`, and nothing reaches it now.
        unsafe { dealloc(self.start, layout(self.length)) };
    }
}

fn layout(length: usize) -> Layout {
    Layout::from_size_align(length.max(1), 4096).expect("a small layout")
}

/// Bytes that look random and differ by seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
