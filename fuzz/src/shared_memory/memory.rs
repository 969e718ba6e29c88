//! The memory of the victim, and which bytes of it a peer may change.
#![expect(unsafe_code, reason = "registers memory by address")]

use core::ops::Range;

use rdma::shm::ShmDevice;
use rdma::{Access, Device, Mem, MemoryRegion, Provider, Sge, Shm};

type VictimRegion = <Shm as Provider>::Region;

/// Value of all bytes that a peer may not read.
const SECRET: u8 = 0xA5;
const GUARD: usize = 1024;
/// Receives that one execution may post.
pub(super) const SLOTS: usize = 32;
pub(super) const SLOT_BYTES: usize = 64;
/// Where RDMA READs of the victim land: longer than the longest record.
pub(super) const LANDING_BYTES: usize = 40 << 10;
/// Bytes that the victim can send: several records.
pub(super) const SOURCE_BYTES: usize = 96 << 10;

/// A part of the memory, which is a region of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VictimArea {
    /// The peer may read and write it.
    Open,
    /// The peer may read it.
    Readable,
    /// The peer may write it.
    Writable,
    /// The peer may do neither.
    Closed,
    /// The peer may do neither until a window is bound.
    Windowed,
    /// Where receives put their messages.
    Slots,
    /// Where RDMA READs of the victim land.
    Landing,
    /// Memory that a well-behaved peer reads and writes.
    Friendly,
}

impl VictimArea {
    pub(super) const ALL: [Self; 8] = [
        Self::Open,
        Self::Readable,
        Self::Writable,
        Self::Closed,
        Self::Windowed,
        Self::Slots,
        Self::Landing,
        Self::Friendly,
    ];

    fn bytes(self) -> usize {
        match self {
            Self::Open => SOURCE_BYTES,
            Self::Slots => SLOTS * SLOT_BYTES,
            Self::Landing => LANDING_BYTES,
            _ => 1024,
        }
    }

    fn access(self) -> Access {
        match self {
            Self::Open | Self::Friendly => {
                Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
            }
            Self::Readable => Access::REMOTE_READ,
            Self::Writable => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Self::Windowed => Access::LOCAL_WRITE | Access::WINDOW_BIND,
            Self::Closed | Self::Slots | Self::Landing => Access::LOCAL_WRITE,
        }
    }

    /// Range of the area, with unregistered bytes before and behind.
    pub(super) fn range(self) -> Range<usize> {
        let before = Self::ALL.into_iter().take_while(|&area| area != self);
        let start = before.map(|area| area.bytes() + GUARD).sum::<usize>() + GUARD;
        start..start + self.bytes()
    }

    /// Value that fills the area.
    fn content(self) -> u8 {
        match self {
            Self::Open => 0x11,
            Self::Readable => 0x22,
            Self::Windowed => 0x33,
            Self::Friendly => 0x44,
            _ => SECRET,
        }
    }
}

/// The memory and its regions.
pub(super) struct VictimMemory {
    bytes: Box<[u8]>,
    expected: Box<[u8]>,
    regions: Vec<Option<VictimRegion>>,
    /// Ranges that may have changed in this execution, and are to be as before in the next.
    changed: Vec<Range<usize>>,
    /// The open area when its region was dropped.
    revoked: Option<Vec<u8>>,
}

impl VictimMemory {
    pub(super) fn new(device: &ShmDevice) -> Self {
        let mut bytes = vec![SECRET; VictimArea::Friendly.range().end + GUARD].into_boxed_slice();
        for area in VictimArea::ALL {
            bytes[area.range()].fill(area.content());
        }
        let expected = bytes.clone();
        let mut memory = Self {
            bytes,
            expected,
            regions: VictimArea::ALL.map(|_| None).into(),
            changed: Vec::new(),
            revoked: None,
        };
        VictimArea::ALL.into_iter().for_each(|area| memory.register(device, area));
        memory
    }

    fn register(&mut self, device: &ShmDevice, area: VictimArea) {
        let addr = self.bytes.as_mut_ptr().wrapping_add(area.range().start);
        let memory = Mem::Host { addr, length: area.bytes() };
        // SAFETY: the regions are dropped before the memory, which is read only between turns.
        let region = unsafe { device.register(memory, area.access()) };
        self.regions[area as usize] = Some(region.expect("the table has room"));
    }

    pub(super) fn region(&self, area: VictimArea) -> Option<&VictimRegion> {
        self.regions[area as usize].as_ref()
    }

    /// The address of a byte of an area.
    pub(super) fn addr(&self, area: VictimArea, offset: usize) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64 + (area.range().start + offset) as u64
    }

    pub(super) fn sge(&self, area: VictimArea, offset: usize, length: usize) -> Sge {
        let lkey = self.region(area).map_or(0, MemoryRegion::lkey);
        Sge { addr: self.addr(area, offset), length: length as u32, lkey }
    }

    pub(super) fn slice(&self, area: VictimArea, range: Range<usize>) -> &[u8] {
        &self.bytes[area.range()][range]
    }

    /// Part of an area may change from now on.
    pub(super) fn allow(&mut self, area: VictimArea, range: Range<usize>) {
        let start = area.range().start;
        self.changed.push(start + range.start..start + range.end);
    }

    /// The bytes that the well-behaved peer has written.
    pub(super) fn expect_friendly(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.expected[VictimArea::Friendly.range()][range].copy_from_slice(bytes);
    }

    /// Drops the region of the open area: after that nothing touches it.
    pub(super) fn revoke(&mut self) {
        if self.regions[VictimArea::Open as usize].take().is_some() {
            self.revoked = Some(self.bytes[VictimArea::Open.range()].to_vec());
        }
    }

    /// Panics if a byte has changed that no peer could change, and makes all as it was.
    pub(super) fn check_and_restore(&mut self, device: &ShmDevice) {
        if let Some(before) = self.revoked.take() {
            assert!(before == self.bytes[VictimArea::Open.range()], "revoked memory was written");
            self.register(device, VictimArea::Open);
        }
        self.changed.extend([VictimArea::Open.range(), VictimArea::Writable.range()]);
        self.changed.sort_by_key(|range| range.start);
        let mut at = 0;
        for range in &self.changed {
            let gap = at..range.start.max(at);
            assert!(self.bytes[gap.clone()] == self.expected[gap], "closed memory was written");
            at = range.end.max(at);
        }
        assert!(self.bytes[at..] == self.expected[at..], "closed memory was written");
        for range in self.changed.drain(..) {
            if range != VictimArea::Open.range() {
                self.bytes[range.clone()].copy_from_slice(&self.expected[range]);
            }
        }
    }
}

impl Drop for VictimMemory {
    fn drop(&mut self) {
        self.regions.clear();
    }
}

/// Whether there are bytes that no peer may read.
pub(super) fn has_secrets(bytes: &[u8]) -> bool {
    bytes.array_windows::<4>().any(|window| *window == [SECRET; 4])
}

/// Returns the value, changed if it looks like a secret.
pub(super) fn without_secrets(value: u64) -> u64 {
    let bytes = value.to_le_bytes();
    u64::from_le_bytes(bytes.map(|byte| if byte == SECRET { SECRET - 1 } else { byte }))
}
