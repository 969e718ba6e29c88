//! Queue pair numbers of a device. They are random, so that packets for an earlier process match no
//! queue pair, and have the group's index in the low 8 bits, so that a program can steer packets to
//! the group's socket.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use roce_proto::Qpn;

use super::random::Random;

/// The bits of a queue pair number that hold the group's index.
const GROUP_MASK: u8 = 0xFF;

/// Maximum number of groups of a device.
pub const MAX_GROUPS: usize = GROUP_MASK as usize;

/// Queue pair numbers that one group can have in use: half of all, so that a random one is soon
/// found free.
const MAX_PER_GROUP: usize = 1 << 15;

/// The index of the group of a queue pair number; 0 for the connection manager's queue pair 1,
/// whose low bits would mean group 1.
pub(crate) fn owner_of(qpn: Qpn) -> u8 {
    let [.., group] = qpn.value().to_be_bytes();
    if qpn == Qpn::GSI { 0 } else { group & GROUP_MASK }
}

fn compose(group: u8, upper: u16) -> Qpn {
    Qpn::new(u32::from(upper) << 8 | u32::from(group))
}

/// The queue pair numbers in use on a device.
pub(crate) struct Numbers(Mutex<NumberState>);

struct NumberState {
    random: Random,
    used: BTreeSet<(u8, u16)>,
    serial: u64,
}

/// A queue pair number in use; dropping it frees the number.
pub(crate) struct QpNumber {
    numbers: Arc<Numbers>,
    group: u8,
    upper: u16,
    serial: u64,
}

impl Numbers {
    pub(crate) fn new(random: Random) -> Self {
        Self(Mutex::new(NumberState { random, used: BTreeSet::new(), serial: 0 }))
    }

    /// Allocates a number for a queue pair of group `group`; `None` when it has too many.
    pub(crate) fn take(self: &Arc<Self>, group: u8) -> Option<QpNumber> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.used.range((group, 0)..=(group, u16::MAX)).count() >= MAX_PER_GROUP {
            return None;
        }
        loop {
            let upper = state.random.next_u64().to_le_bytes();
            let upper = u16::from_le_bytes([upper[0], upper[1]]);
            // Zero would allow the reserved numbers 0 and 1.
            if upper != 0 && state.used.insert((group, upper)) {
                state.serial += 1;
                return Some(QpNumber {
                    numbers: self.clone(),
                    group,
                    upper,
                    serial: state.serial,
                });
            }
        }
    }

    /// The number of queue pairs that exist.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).used.len() as u64
    }

    /// The queue pair numbers in use, sorted by group.
    pub(crate) fn in_use(&self) -> Vec<u32> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.used.iter().map(|&(group, upper)| compose(group, upper).value()).collect()
    }

    /// A random 24-bit number, for the first packet sequence number (PSN).
    pub(crate) fn random_psn(&self) -> u32 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        u32::try_from(state.random.below(1 << 24)).expect("below 2^24")
    }
}

impl QpNumber {
    pub(crate) fn get(&self) -> Qpn {
        compose(self.group, self.upper)
    }
}

impl QpNumber {
    /// A number that distinguishes this use of the queue pair number from earlier and later ones.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }
}

impl Drop for QpNumber {
    fn drop(&mut self) {
        let mut state = self.numbers.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.used.remove(&(self.group, self.upper));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_group() {
        let numbers = Arc::new(Numbers::new(Random::seeded(1)));
        for group in [1, 2, 255] {
            let number = numbers.take(group).expect("few are in use");
            assert_eq!(owner_of(number.get()), group);
        }
    }

    #[test]
    fn queue_pair_1_is_the_connection_managers() {
        assert_eq!(owner_of(Qpn::GSI), 0);
    }
}
