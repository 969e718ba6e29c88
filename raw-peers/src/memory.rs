//! Memory that is lent to a device.
#![expect(unsafe_code, reason = "lends memory to a device")]

use std::cell::Cell;
use std::ops::Range;

use nvme_proto::Sgl;
use rdma::{Access, Device, Mem, MemoryRegion, Provider, Registered};

/// Bytes of a raw peer that a device may touch whenever it is polled.
pub struct RawMemory<P: Provider> {
    registered: Registered<P, Box<[Cell<u8>]>>,
}

impl<P: Provider> RawMemory<P> {
    /// `length` zeros, all of them registered.
    ///
    /// # Panics
    /// If the device refuses.
    pub fn new(device: &P::Device, length: usize, access: Access) -> Self {
        Self::within(device, length, 0..length, access)
    }

    /// Allocates `length` zeros and registers only `part` of them.
    ///
    /// # Panics
    /// If the device refuses, or the part is not within the memory.
    pub fn within(device: &P::Device, length: usize, part: Range<usize>, access: Access) -> Self {
        let bytes = vec![Cell::new(0); length].into_boxed_slice();
        let cells = &bytes[part];
        let place = Mem::Host { addr: cells.as_ptr().cast_mut().cast(), length: cells.len() };
        // SAFETY: the box never moves its bytes, and is freed only when the region is deregistered;
        // the bytes are cells, so no reference to them assumes that they stay as they are.
        let registered = unsafe { Registered::new(device, bytes, place, access) };
        Self { registered: registered.expect("the device has room") }
    }

    /// A key that is void: `part` was registered with it once more, and is not any longer.
    ///
    /// # Panics
    /// If the device refuses, or the part is not within the memory.
    pub fn void_key(&self, device: &P::Device, part: Range<usize>, access: Access) -> u32 {
        let cells = &self.bytes()[part];
        let place = Mem::Host { addr: cells.as_ptr().cast_mut().cast(), length: cells.len() };
        // SAFETY: the region is gone when this returns, and the bytes are not.
        let region = unsafe { device.register(place, access) }.expect("the device has room");
        let key = region.rkey();
        assert!(region.deregister().is_ok(), "nothing uses it yet");
        key
    }

    /// The address of a byte.
    pub fn address(&self, at: usize) -> u64 {
        self.bytes().as_ptr() as u64 + at as u64
    }

    /// The key for the device of the raw peer.
    pub fn lkey(&self) -> u32 {
        self.registered.region().lkey()
    }

    /// The key for the other peer.
    pub fn rkey(&self) -> u32 {
        self.registered.region().rkey()
    }

    /// A descriptor of `length` bytes from `at` on, for the other peer. Nothing keeps it from
    /// naming bytes that are not there.
    pub fn keyed(&self, at: usize, length: usize) -> Sgl {
        let (address, key) = (self.address(at), self.rkey());
        Sgl::Keyed { address, length: length as u32, key, invalidate: false }
    }

    /// Writes bytes from `at` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let cells = &self.bytes()[at..at + bytes.len()];
        cells.iter().zip(bytes).for_each(|(cell, &byte)| cell.set(byte));
    }

    /// Writes `byte` to `length` bytes from `at` on.
    ///
    /// # Panics
    /// If they are not there.
    pub fn fill(&self, at: usize, length: usize, byte: u8) {
        self.bytes()[at..at + length].iter().for_each(|cell| cell.set(byte));
    }

    /// The bytes from `at` on.
    ///
    /// # Panics
    /// If they are not there.
    pub fn get(&self, at: usize, length: usize) -> impl Iterator<Item = u8> + '_ {
        self.bytes()[at..at + length].iter().map(Cell::get)
    }

    fn bytes(&self) -> &[Cell<u8>] {
        self.registered.memory()
    }
}
