//! Asymmetric Namespace Access (ANA): state of each ANA group at each port (Base, 8.1.1).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_proto::Status;
use nvme_proto::log::AnaState;
use serde::Deserialize;

use crate::limits::{ANA_GROUPS, ANA_TRANSITION};

/// ANA Group Identifier, 1 to `ANA_GROUPS`. The namespaces of a group share one state at each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u32")]
pub struct AnaGroupId(u32);

impl TryFrom<u32> for AnaGroupId {
    type Error = String;

    fn try_from(id: u32) -> Result<Self, String> {
        Self::new(id).ok_or_else(|| format!("must be a group of 1 to {ANA_GROUPS}"))
    }
}

impl Default for AnaGroupId {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl AnaGroupId {
    /// Group of namespaces without an explicit group.
    pub const DEFAULT: Self = Self(1);

    /// Creates an identifier; `None` if `id` is not in 1 to `ANA_GROUPS`.
    pub fn new(id: u32) -> Option<Self> {
        (1..=ANA_GROUPS).contains(&id).then_some(Self(id))
    }

    /// All groups in ascending order.
    pub(crate) fn all() -> impl Iterator<Item = Self> + Clone {
        (1..=ANA_GROUPS).map(Self)
    }

    /// Number of the group as hosts see it (ANAGRPID).
    pub fn get(self) -> u32 {
        self.0
    }

    /// Index of the group in an array of all groups, from 0.
    fn place(self) -> usize {
        self.0 as usize - 1
    }

    /// Bit offset of the group's state in [`AnaStates`].
    fn shift(self) -> u32 {
        STATE_BITS * (self.0 - 1)
    }
}

/// Width in bits of the ANA State field (Base, ANA Group Descriptor).
const STATE_BITS: u32 = 4;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const _: () = assert!(ANA_GROUPS * STATE_BITS == u64::BITS);

/// ANA states of a subsystem's groups at a port. Cores read them for each command without a lock.
#[derive(Debug)]
pub(crate) struct AnaStates {
    /// [`STATE_BITS`] bits for the state of each group, group 1 in the lowest bits.
    states: AtomicU64,
    transitions: Mutex<Transitions>,
}

#[derive(Debug, Default)]
struct Transitions {
    /// Number of calls that changed the state of at least one group.
    changes: u64,
    /// Seconds that each group has been in the ANA Change state.
    seconds: [u8; ANA_GROUPS as usize],
    /// States that [`AnaStates::end_drain`] restores; `None` unless the groups are drained.
    before_drain: Option<u64>,
}

impl Default for AnaStates {
    /// Creates states in which all groups are optimized.
    fn default() -> Self {
        let optimized = |states, group: AnaGroupId| with(states, group, AnaState::OPTIMIZED);
        let states = AnaGroupId::all().fold(0, optimized);
        Self { states: AtomicU64::new(states), transitions: Mutex::default() }
    }
}

fn state_in(states: u64, group: AnaGroupId) -> AnaState {
    AnaState((states >> group.shift() & STATE_MASK) as u8)
}

fn with(states: u64, group: AnaGroupId, state: AnaState) -> u64 {
    states & !(STATE_MASK << group.shift()) | (u64::from(state.0) & STATE_MASK) << group.shift()
}

impl AnaStates {
    pub(crate) fn state(&self, group: AnaGroupId) -> AnaState {
        state_in(self.states.load(Ordering::Acquire), group)
    }

    /// Checks that the state of the group allows commands to its namespaces.
    ///
    /// # Errors
    /// Path-related status for each state other than Optimized and Non-Optimized. The host may
    /// retry the command on another path, or here later.
    pub(crate) fn access(&self, group: AnaGroupId) -> Result<(), Status> {
        match self.state(group) {
            AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED => Ok(()),
            AnaState::PERSISTENT_LOSS => Err(Status::ANA_PERSISTENT_LOSS),
            AnaState::CHANGE => Err(Status::ANA_TRANSITION),
            _ => Err(Status::ANA_INACCESSIBLE),
        }
    }

    /// Sets the state of `groups`, now and after a drain. Returns whether a state has changed.
    pub(crate) fn set(
        &self,
        groups: impl Iterator<Item = AnaGroupId> + Clone,
        state: AnaState,
    ) -> bool {
        let mut transitions = self.lock();
        if let Some(before) = &mut transitions.before_drain {
            *before = groups.clone().fold(*before, |states, group| with(states, group, state));
        }
        self.set_locked(&mut transitions, groups, state)
    }

    /// Makes all groups Inaccessible until [`AnaStates::end_drain`]. Returns whether a state
    /// changed.
    pub(crate) fn drain(&self) -> bool {
        let mut transitions = self.lock();
        transitions.before_drain.get_or_insert(self.states.load(Ordering::Acquire));
        self.set_locked(&mut transitions, AnaGroupId::all(), AnaState::INACCESSIBLE)
    }

    /// Restores the states from before the drain. Returns whether a state has changed.
    pub(crate) fn end_drain(&self) -> bool {
        let mut transitions = self.lock();
        let Some(before) = transitions.before_drain.take() else { return false };
        let mut changed = false;
        for group in AnaGroupId::all() {
            let state = state_in(before, group);
            changed |= self.set_locked(&mut transitions, std::iter::once(group), state);
        }
        changed
    }

    fn set_locked(
        &self,
        transitions: &mut Transitions,
        groups: impl Iterator<Item = AnaGroupId>,
        state: AnaState,
    ) -> bool {
        let old = self.states.load(Ordering::Acquire);
        let mut new = old;
        for group in groups {
            if self.state(group) != state {
                transitions.seconds[group.place()] = 0;
            }
            new = with(new, group, state);
        }
        self.states.store(new, Ordering::Release);
        transitions.changes += u64::from(new != old);
        new != old
    }

    /// Number of state changes so far, for the Change Count field of the ANA log page.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Advances the time by one second. A group that has been in the ANA Change state for as long
    /// as Identify allows (ANATT) becomes Inaccessible. Returns whether a state has changed.
    pub(crate) fn second_passed(&self) -> bool {
        let mut transitions = self.lock();
        let mut late = Vec::new();
        for group in AnaGroupId::all() {
            let seconds = &mut transitions.seconds[group.place()];
            if self.state(group) == AnaState::CHANGE {
                *seconds += 1;
                // The first count came within a second of the change, so at most ANATT has passed.
                if u64::from(*seconds) >= ANA_TRANSITION.as_secs() {
                    late.push(group);
                }
            }
        }
        self.set_locked(&mut transitions, late.into_iter(), AnaState::INACCESSIBLE)
    }

    fn lock(&self) -> MutexGuard<'_, Transitions> {
        self.transitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(id: u32) -> AnaGroupId {
        AnaGroupId::new(id).expect("a group")
    }

    #[test]
    fn groups_are_numbered_from_one() {
        assert_eq!(AnaGroupId::new(0), None);
        assert_eq!(AnaGroupId::new(ANA_GROUPS + 1), None);
        assert_eq!(AnaGroupId::all().last(), AnaGroupId::new(ANA_GROUPS));
    }

    #[test]
    fn each_group_has_its_state() {
        let states = AnaStates::default();
        for (id, state, access) in [
            (1, AnaState::NON_OPTIMIZED, Ok(())),
            (2, AnaState::INACCESSIBLE, Err(Status::ANA_INACCESSIBLE)),
            (3, AnaState::PERSISTENT_LOSS, Err(Status::ANA_PERSISTENT_LOSS)),
            (ANA_GROUPS, AnaState::CHANGE, Err(Status::ANA_TRANSITION)),
        ] {
            assert_eq!(states.access(group(id)), Ok(()));
            assert!(states.set([group(id)].into_iter(), state));
            assert!(!states.set([group(id)].into_iter(), state), "it has it");
            assert_eq!((states.state(group(id)), states.access(group(id))), (state, access));
        }
        assert_eq!(states.state(group(4)), AnaState::OPTIMIZED);
        assert_eq!(states.changes(), 4);
        assert!(states.set(AnaGroupId::all(), AnaState::OPTIMIZED));
        assert!(AnaGroupId::all().all(|group| states.state(group) == AnaState::OPTIMIZED));
    }

    #[test]
    fn a_drain_ends_with_the_states_from_before() {
        let states = AnaStates::default();
        assert!(!states.end_drain(), "nothing is drained");
        let set = |id, state| states.set([group(id)].into_iter(), state);
        set(1, AnaState::NON_OPTIMIZED);
        set(2, AnaState::INACCESSIBLE);
        assert!(states.drain());
        assert!(!states.drain(), "again");
        assert!(AnaGroupId::all().all(|group| states.state(group) == AnaState::INACCESSIBLE));
        // A state that is set during a drain applies after it.
        set(3, AnaState::PERSISTENT_LOSS);
        assert!(states.end_drain());
        let now = [1, 2, 3, 4].map(|id| states.state(group(id)));
        let [one, two] = [AnaState::NON_OPTIMIZED, AnaState::INACCESSIBLE];
        assert_eq!(now, [one, two, AnaState::PERSISTENT_LOSS, AnaState::OPTIMIZED]);
        assert!(!states.end_drain(), "once");
    }

    #[test]
    fn a_transition_ends_in_time() {
        let states = AnaStates::default();
        states.set([group(2)].into_iter(), AnaState::CHANGE);
        for _ in 1..ANA_TRANSITION.as_secs() {
            assert!(!states.second_passed());
        }
        states.set([group(3)].into_iter(), AnaState::CHANGE);
        assert!(states.second_passed());
        let now = [1, 2, 3].map(|id| states.state(group(id)));
        assert_eq!(now, [AnaState::OPTIMIZED, AnaState::INACCESSIBLE, AnaState::CHANGE]);
        // Each transition gets the full time.
        states.set([group(2)].into_iter(), AnaState::CHANGE);
        assert!(!states.second_passed());
    }
}
