//! Gates: hold back calls from a device that is faster if it gets many at a time.
//!
//! Many virtual disks take the queued calls as one job, process one job at a time, and report the
//! end of all calls of a job together. Every job has a fixed cost. A target that answers calls one
//! by one and submits the next ones one by one gives such a device only small jobs. Behind a gate,
//! calls wait while the device is busy, until as many wait as the device has. So it processes one
//! half while the target answers the other. A device that processes calls in parallel may become
//! slower; a [`Trial`] measures which kind it is.

use std::collections::VecDeque;
use std::time::Duration;

use rdma::Time;

use super::trial::Trial;
use crate::backend::{DeviceId, SystemCall};
use crate::storage::engine::CallId;

/// Weight of the calls at a device from which on it is busy, so that further ones may be held back:
/// 8 calls of 512 bytes, or one of 224 KiB.
const BUSY_WEIGHT: u64 = 256 * 1024;
/// Weight of a call in addition to its length in bytes, for its fixed cost.
const CALL_BYTES: u64 = 32 * 1024;
/// Longest time that a call is held back, even if the device completes none.
const MAX_HOLD: Duration = Duration::from_millis(10);

/// Gates of the devices that one core accesses with direct I/O.
#[derive(Default)]
pub(crate) struct Gates {
    // One for each device. A core uses few.
    gates: Vec<Gate>,
    /// Number of calls that memory is reserved for in each gate.
    room: usize,
}

/// Decision whether a call may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum GateDecision {
    /// The call may be started. If a gate counts it, report its end with [`Gates::leave`].
    Admitted(Option<Visit>),
    /// The call was kept, and will be returned by [`Gates::next_released`].
    Held,
}

/// A call that its gate counts as being at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    gate: u32,
    weight: u64,
}

/// A call that was held back and may be started now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) call: CallId,
    pub(crate) what: SystemCall,
    pub(crate) visit: Visit,
}

/// Progress of an operation with its system calls. It makes one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallProgress {
    /// No call was started: the operation waits for a timer or to read the page cache.
    Between,
    /// A gate holds the call back.
    Held,
    /// The call is running; with the visit if a gate counts it.
    Running(Option<Visit>),
}

/// Event of an operation for [`CallProgress::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEvent {
    /// The gates have decided on the next call.
    Decided(GateDecision),
    /// The gate has released the call.
    Released(Visit),
    /// The call has returned.
    Returned,
}

impl CallProgress {
    /// Returns the progress after an event; `None` for an event that cannot follow.
    pub(crate) fn step(self, event: CallEvent) -> Option<Self> {
        match (self, event) {
            (Self::Between, CallEvent::Decided(GateDecision::Admitted(visit))) => {
                Some(Self::Running(visit))
            }
            (Self::Between, CallEvent::Decided(GateDecision::Held)) => Some(Self::Held),
            (Self::Held, CallEvent::Released(visit)) => Some(Self::Running(Some(visit))),
            (Self::Running(_), CallEvent::Returned) => Some(Self::Between),
            _ => None,
        }
    }
}

struct Gate {
    device: DeviceId,
    /// Weight of the calls at the device.
    inside: u64,
    held: VecDeque<HeldCall>,
    /// Weight of the calls that are held back.
    waiting: u64,
    /// Number of held calls that [`Gates::next_released`] is to return.
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
    /// Reserves memory for holding back `calls` calls of each device.
    pub(crate) fn reserve(&mut self, calls: usize) {
        self.room = self.room.max(calls);
        for gate in &mut self.gates {
            gate.held.reserve(self.room.saturating_sub(gate.held.len()));
        }
    }

    /// Decides whether a call may be started now; if not, keeps it. Holds back direct I/O only.
    pub(crate) fn admit(&mut self, now: Time, call: CallId, what: SystemCall) -> GateDecision {
        let (SystemCall::Read { file, part, .. } | SystemCall::Write { file, part, .. }) = what
        else {
            return GateDecision::Admitted(None);
        };
        // Calls answered from the page cache do not reach the device.
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

    /// Records the end of a call that was admitted.
    pub(crate) fn leave(&mut self, visit: Visit) {
        let gate = &mut self.gates[visit.gate as usize];
        gate.inside -= visit.weight;
        gate.trial.ended(visit.weight);
    }

    /// Selects the held calls to release. Called after [`Gates::leave`] for all ended calls.
    pub(crate) fn update(&mut self, now: Time) {
        for gate in &mut self.gates {
            gate.trial.update(now);
            let overdue = gate.deadline().is_some_and(|time| time <= now);
            if overdue || !gate.holds() || gate.waiting >= gate.inside {
                gate.going = gate.held.len();
            }
        }
    }

    /// Returns the next call that [`Gates::update`] has released.
    pub(crate) fn next_released(&mut self) -> Option<Released> {
        let gate = self.gates.iter_mut().find(|gate| gate.going > 0)?;
        gate.going -= 1;
        gate.release(0)
    }

    /// Releases one call if it is held back, so that it can be cancelled.
    pub(crate) fn release(&mut self, call: CallId) -> Option<Released> {
        self.gates.iter_mut().find_map(|gate| {
            let place = gate.held.iter().position(|held| held.call == call)?;
            gate.release(place)
        })
    }

    /// Time at which [`Gates::update`] must run to release calls, even if none ends.
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
    /// Whether the gate holds back new calls now.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_makes_one_call_at_a_time() {
        let visit = Visit { gate: 0, weight: 4096 };
        let decided = |decision| CallEvent::Decided(decision);
        let events = [
            decided(GateDecision::Admitted(None)),
            decided(GateDecision::Admitted(Some(visit))),
            decided(GateDecision::Held),
            CallEvent::Released(visit),
            CallEvent::Returned,
        ];
        let steps = |from: CallProgress| events.map(|event| from.step(event));
        let (between, held) = (CallProgress::Between, CallProgress::Held);
        let [uncounted, counted] = [None, Some(visit)].map(CallProgress::Running);
        assert_eq!(steps(between), [Some(uncounted), Some(counted), Some(held), None, None]);
        assert_eq!(steps(held), [None, None, None, Some(counted), None]);
        for running in [uncounted, counted] {
            assert_eq!(steps(running), [None, None, None, None, Some(between)]);
        }
    }
}
