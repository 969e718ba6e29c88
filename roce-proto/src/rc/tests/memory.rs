//! Memory for tests: one array of bytes, regions and windows over it.

use std::vec;
use std::vec::Vec;

use crate::Qpn;
use crate::rc::{AccessError, BindWindow, LocalAccess, Memory, MemoryKey, RemoteAccess};

/// Where the array begins, as work requests see it.
pub(super) const BASE: u64 = 0x7F00_0000_1000;

pub(super) const LOCAL: u32 = 1;
pub(super) const REMOTE_READ: u32 = 2;
pub(super) const REMOTE_WRITE: u32 = 4;
pub(super) const ALL: u32 = 7;

#[derive(Clone, Copy, Debug)]
struct Region {
    key: u32,
    start: u64,
    length: u64,
    access: u32,
    /// The queue pair that a window is bound for.
    window_of: Option<Qpn>,
}

#[derive(Debug)]
pub(super) struct TestMemory {
    pub(super) bytes: Vec<u8>,
    regions: Vec<Region>,
    /// Calls that placed something.
    pub(super) placements: u64,
}

impl TestMemory {
    pub(super) fn new(length: usize) -> Self {
        Self { bytes: vec![0; length], regions: Vec::new(), placements: 0 }
    }

    pub(super) fn open(&mut self, key: u32, offset: usize, length: usize, access: u32) {
        let (start, length) = (BASE + offset as u64, length as u64);
        self.regions.push(Region { key, start, length, access, window_of: None });
    }

    pub(super) fn close(&mut self, key: u32) {
        self.regions.retain(|region| region.key != key);
    }

    /// The bytes behind a piece of a packet.
    pub(super) fn slice(&self, addr: u64, length: u32) -> &[u8] {
        let start = (addr - BASE) as usize;
        &self.bytes[start..start + length as usize]
    }

    fn check(
        &self,
        key: u32,
        qpn: Option<Qpn>,
        addr: u64,
        length: u64,
        access: u32,
    ) -> Result<(), AccessError> {
        let end = addr.checked_add(length).ok_or(AccessError)?;
        let open = self.regions.iter().any(|region| {
            region.key == key
                && region.start <= addr
                && end <= region.start + region.length
                && region.access & access == access
                && (region.window_of.is_none() || region.window_of == qpn)
        });
        if open { Ok(()) } else { Err(AccessError) }
    }
}

impl Memory for TestMemory {
    fn check_local(
        &self,
        lkey: u32,
        addr: u64,
        length: u32,
        access: LocalAccess,
    ) -> Result<(), AccessError> {
        assert_ne!(length, 0, "no check for no bytes");
        let access = if access == LocalAccess::Write { LOCAL } else { 0 };
        self.check(lkey, None, addr, u64::from(length), access)
    }

    fn check_remote(
        &self,
        qpn: Qpn,
        rkey: u32,
        addr: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        assert_ne!(length, 0, "no check for no bytes");
        let access = if access == RemoteAccess::Write { REMOTE_WRITE } else { REMOTE_READ };
        self.check(rkey, Some(qpn), addr, u64::from(length), access)
    }

    fn place(&mut self, key: MemoryKey, addr: u64, payload: &[u8]) -> Result<(), AccessError> {
        let length = payload.len() as u64;
        assert_ne!(length, 0, "no placement of no bytes");
        match key {
            MemoryKey::Local { lkey } => self.check(lkey, None, addr, length, LOCAL)?,
            MemoryKey::Remote { qpn, rkey } => {
                self.check(rkey, Some(qpn), addr, length, REMOTE_WRITE)?;
            }
        }
        let start = (addr - BASE) as usize;
        self.bytes[start..start + payload.len()].copy_from_slice(payload);
        self.placements += 1;
        Ok(())
    }

    fn bind(&mut self, qpn: Qpn, bind: &BindWindow) -> Result<(), AccessError> {
        self.check(bind.region as u32, None, bind.addr, bind.length, bind.access)?;
        if self.regions.iter().any(|region| region.key == bind.rkey) {
            return Err(AccessError);
        }
        self.regions.push(Region {
            key: bind.rkey,
            start: bind.addr,
            length: bind.length,
            access: bind.access,
            window_of: Some(qpn),
        });
        Ok(())
    }

    fn invalidate(&mut self, qpn: Qpn, rkey: u32) -> Result<(), AccessError> {
        let window = self
            .regions
            .iter()
            .position(|region| region.key == rkey && region.window_of == Some(qpn))
            .ok_or(AccessError)?;
        self.regions.remove(window);
        Ok(())
    }
}
