//! Units in flight, each in registered memory of its own.

use feedrail_initiator::{Error, Grant, RangeCompletion, RegionSlice, Ring};
use slab::Slab;

use crate::driver::batch_options;
use crate::volume_namespace::VolumeNamespace;

/// Most units in flight, however small they are.
const DEPTH_MAX: usize = 1024;

/// Zeroes behind the last bytes of an entry.
static PADDING: [u8; 4096] = [0; 4096];

/// Reads and writes of units, with memory that is allocated when it is first needed and then used
/// again.
pub(crate) struct UnitPipe {
    place: VolumeNamespace,
    ring: Ring,
    unit_bytes: usize,
    /// Memory of one unit each.
    idle: Vec<RegionSlice>,
    allocated: usize,
    depth: usize,
    /// Units in flight, by token.
    busy: Slab<BusyUnit>,
    ended: Vec<RangeCompletion>,
}

struct BusyUnit {
    tag: u64,
    /// Part of the memory that the operation does not use.
    rest: RegionSlice,
}

pub(crate) struct EndedUnit {
    /// Number that the caller gave it.
    pub(crate) tag: u64,
    pub(crate) result: Result<(), Error>,
    /// Memory of the operation.
    pub(crate) bytes: RegionSlice,
    rest: RegionSlice,
}

impl UnitPipe {
    /// Prepares as many units as fit `staging_bytes`, at least one.
    pub(crate) fn new(place: &VolumeNamespace, unit_bytes: usize, staging_bytes: usize) -> Self {
        let depth = (staging_bytes / unit_bytes).clamp(1, DEPTH_MAX);
        Self {
            place: place.clone(),
            ring: place.host.ring_with(depth, batch_options()),
            unit_bytes,
            idle: Vec::new(),
            allocated: 0,
            depth,
            busy: Slab::with_capacity(depth),
            ended: Vec::with_capacity(depth),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.busy.len()
    }

    /// Takes memory of one unit; `None` if all is in use.
    pub(crate) fn claim(&mut self) -> Result<Option<RegionSlice>, Error> {
        match self.idle.pop() {
            Some(memory) => Ok(Some(memory)),
            None if self.allocated == self.depth => Ok(None),
            None => {
                let memory = RegionSlice::allocate(self.unit_bytes, Grant::Persistent)?;
                self.allocated += 1;
                Ok(Some(memory))
            }
        }
    }

    /// Returns memory that was claimed and not used.
    pub(crate) fn put_back(&mut self, memory: RegionSlice) {
        self.idle.push(memory);
    }

    /// Starts to write bytes and the zeroes behind them.
    pub(crate) fn write(
        &mut self,
        mut memory: RegionSlice,
        offset: u64,
        bytes: &[u8],
        padding: usize,
        tag: u64,
    ) {
        memory.copy_in(0, bytes);
        memory.copy_in(bytes.len(), &PADDING[..padding]);
        let rest = memory.split_off(bytes.len() + padding);
        let token = self.busy.insert(BusyUnit { tag, rest }) as u64;
        let begun = self.ring.write(&self.place.namespace, offset, memory, token);
        begun.expect("the ring has room for all memory");
    }

    /// Starts to read `length` bytes.
    pub(crate) fn read(&mut self, mut memory: RegionSlice, offset: u64, length: usize, tag: u64) {
        let rest = memory.split_off(length);
        let token = self.busy.insert(BusyUnit { tag, rest }) as u64;
        let begun = self.ring.read(&self.place.namespace, offset, memory, token);
        begun.expect("the ring has room for all memory");
    }

    /// Sends what was started.
    pub(crate) fn submit(&mut self) {
        self.ring.submit();
    }

    /// Waits until a unit has ended, if there is one in flight.
    pub(crate) fn wait(&mut self) {
        if self.ended.is_empty() && self.ring.wait(1, None, &mut self.ended) == 0 {
            // In a forked process the units in flight are those of the parent.
            self.busy.clear();
        }
    }

    /// Returns a unit that has ended. Its memory stays in use until [`UnitPipe::release`].
    pub(crate) fn next_ended(&mut self) -> Option<EndedUnit> {
        let RangeCompletion { token, slice, result } = self.ended.pop()?;
        let BusyUnit { tag, rest } = self.busy.remove(token as usize);
        Some(EndedUnit { tag, result, bytes: slice, rest })
    }

    /// Takes back the memory of a unit that has ended.
    pub(crate) fn release(&mut self, ended: EndedUnit) {
        // The two parts of one unit's memory are adjacent.
        match ended.bytes.join(ended.rest) {
            Ok(memory) => self.idle.push(memory),
            Err(_) => self.allocated -= 1,
        }
    }
}
