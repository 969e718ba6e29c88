//! Gates: calls held back from a device that does better with many at a time.
//!
//! Many a virtual disk takes the calls that it finds queued as one job, does one job after the
//! other, and reports the end of all calls of a job at once. Every job has a fixed cost. A target
//! that answers one call after the other and submits the next ones one by one gives such a device
//! small jobs for ever. Behind a gate, calls wait while the device is busy, until as many wait as
//! it still has: so it works on one half while the target answers the other. A device that works on
//! many calls side by side may lose by that; a [`Trial`] measures which kind it is.

use std::collections::VecDeque;
use std::time::Duration;

use rdma::Time;

use super::trial::Trial;
use crate::backend::{DeviceId, SystemCall};
use crate::storage::engine::CallId;

/// Weight of the calls from which on a device is busy, and more may be held back from it: 8 calls
/// of 512 bytes, or one of 224 KiB. Doubled, fewer devices are tried, and jobs begin larger; not
/// measured.
const BUSY_WEIGHT: u64 = 256 * 1024;
/// Weight of a call besides its bytes: the price of a short call. Doubled, four short calls make a
/// device busy instead of eight; not measured.
const CALL_BYTES: u64 = 32 * 1024;
/// The longest that a call is held back, whatever the device does. Doubled, a stuck device delays
/// calls by 20 ms; not measured.
const MAX_HOLD: Duration = Duration::from_millis(10);

/// The gates of one core's devices.
#[derive(Default)]
pub(crate) struct Gates {
    // A core has few devices.
    gates: Vec<Gate>,
    /// Calls that may be held back at once.
    room: usize,
}

/// The result of handing over a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum GateDecision {
    /// It may be handed over. If a gate counts it, that is to be told of its end.
    Admitted(Option<Visit>),
    /// It was kept, and will be among [`Gates::next_released`].
    Held,
}

/// A call's stay at its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    gate: u32,
    weight: u64,
}

/// A call that was held back and may be handed over now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) call: CallId,
    pub(crate) what: SystemCall,
    pub(crate) visit: Visit,
}

struct Gate {
    device: DeviceId,
    /// Weight of the calls that the device has.
    inside: u64,
    held: VecDeque<HeldCall>,
    /// Weight of the calls that are held back.
    waiting: u64,
    /// How many of those are to go.
    going: usize,
    trial: Trial,
}

struct HeldCall {
    call: CallId,
    what: SystemCall,
    since: Time,
    visit: Visit,
}

impl Gates {
    /// Room for this many calls.
    pub(crate) fn reserve(&mut self, calls: usize) {
        self.room = self.room.max(calls);
        for gate in &mut self.gates {
            gate.held.reserve(self.room.saturating_sub(gate.held.len()));
        }
    }

    /// Whether a call may be handed over now; if not, it is kept.
    pub(crate) fn admit(&mut self, now: Time, call: CallId, what: SystemCall) -> GateDecision {
        let (SystemCall::Read { file, part, .. } | SystemCall::Write { file, part, .. }) = what
        else {
            return GateDecision::Admitted(None);
        };
        // Calls that the page cache answers do not reach the device.
        if !file.direct {
            return GateDecision::Admitted(None);
        }
        let index = self.gate_of(file.device);
        let visit = Visit { gate: index as u32, weight: CALL_BYTES + u64::from(part.length()) };
        let gate = &mut self.gates[index];
        if gate.inside >= BUSY_WEIGHT {
            gate.trial.met_busy_device(now);
        }
        if gate.holds() {
            gate.waiting += visit.weight;
            gate.held.push_back(HeldCall { call, what, since: now, visit });
            return GateDecision::Held;
        }
        gate.inside += visit.weight;
        GateDecision::Admitted(Some(visit))
    }

    /// A call that was admitted ended.
    pub(crate) fn leave(&mut self, visit: Visit) {
        let gate = &mut self.gates[visit.gate as usize];
        gate.inside -= visit.weight;
        gate.trial.ended(visit.weight);
    }

    /// Decides which held calls may go, after all ends until now were reported.
    pub(crate) fn settle(&mut self, now: Time) {
        for gate in &mut self.gates {
            gate.trial.settle(now);
            let overdue = gate.deadline().is_some_and(|time| time <= now);
            if overdue || !gate.holds() || gate.waiting >= gate.inside {
                gate.going = gate.held.len();
            }
        }
    }

    /// The next call to hand over that was held back.
    pub(crate) fn next_released(&mut self) -> Option<Released> {
        let gate = self.gates.iter_mut().find(|gate| gate.going > 0)?;
        gate.going -= 1;
        gate.release(0)
    }

    /// Releases one call, if it is held back.
    pub(crate) fn release(&mut self, call: CallId) -> Option<Released> {
        self.gates.iter_mut().find_map(|gate| {
            let place = gate.held.iter().position(|held| held.call == call)?;
            gate.release(place)
        })
    }

    /// When calls must be released though none ended.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.gates.iter().filter_map(Gate::deadline).min()
    }

    /// Drops all devices and the calls held back from them.
    pub(crate) fn clear(&mut self) {
        self.gates.clear();
    }

    fn gate_of(&mut self, device: DeviceId) -> usize {
        if let Some(index) = self.gates.iter().position(|gate| gate.device == device) {
            return index;
        }
        let held = VecDeque::with_capacity(self.room);
        let trial = Trial::default();
        self.gates.push(Gate { device, inside: 0, held, waiting: 0, going: 0, trial });
        self.gates.len() - 1
    }
}

impl Gate {
    /// Whether a call is held back that comes now.
    fn holds(&self) -> bool {
        self.inside >= BUSY_WEIGHT && self.trial.holds()
    }

    fn release(&mut self, place: usize) -> Option<Released> {
        let HeldCall { call, what, visit, .. } = self.held.remove(place)?;
        self.inside += visit.weight;
        self.waiting -= visit.weight;
        Some(Released { call, what, visit })
    }

    fn deadline(&self) -> Option<Time> {
        self.held.front().map(|held| held.since + MAX_HOLD)
    }
}
