//! Memory that is lent to a simulated device.
#![expect(unsafe_code, reason = "lends memory to a device")]

use std::cell::Cell;

use rdma::sim::{Sim, SimDevice};
use rdma::{Access, Device, Mem, MemoryRegion, Provider, Sge};

/// Bytes of ours that a device may touch whenever it is polled.
pub(crate) struct DeviceMemory {
    // First: the device forgets the bytes before they are freed.
    region: <Sim as Provider>::Region,
    bytes: Box<[Cell<u8>]>,
}

impl DeviceMemory {
    /// So many zeros.
    pub(crate) fn new(device: &SimDevice, length: usize, access: Access) -> Self {
        let bytes: Box<[Cell<u8>]> = (0..length).map(|_| Cell::new(0)).collect();
        let memory = Mem::Host { addr: bytes.as_ptr().cast_mut().cast(), length };
        // SAFETY: the region is dropped before the bytes, which never move; they are cells, so
        // nobody assumes that they stay as they are.
        let region = unsafe { device.register(memory, access) }.expect("the device has room");
        Self { region, bytes }
    }

    /// The bytes from `at` on, for a work request.
    pub(crate) fn sge(&self, at: usize, length: usize) -> Sge {
        assert!(at + length <= self.bytes.len());
        Sge { addr: self.address(at), length: length as u32, lkey: self.region.lkey() }
    }

    /// The address of a byte.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.bytes.as_ptr() as u64 + at as u64
    }

    /// The key for the peer.
    pub(crate) fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Writes bytes from `at` on.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].iter().zip(bytes).for_each(|(cell, &byte)| cell.set(byte));
    }

    /// The bytes from `at` on.
    pub(crate) fn get(&self, at: usize, length: usize) -> impl Iterator<Item = u8> + '_ {
        self.bytes[at..at + length].iter().map(Cell::get)
    }
}
