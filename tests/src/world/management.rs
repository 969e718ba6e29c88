//! The operator of some chaos runs, who changes while hosts work how targets are reached, who may
//! connect, and which namespaces there are.

use std::net::SocketAddr;

use feedrail_target::stepped::{LiveChange, QosLimits, QosOverride};
use nvme_proto::Nsid;
use nvme_proto::log::AnaState;

use super::Random;

/// Percentage of seeds that have an operator.
const SEEDS_PERCENT: u64 = 50;
/// The most changes of a chaos run.
const CHANGES: u64 = 10;
/// The namespace that comes and goes.
const NSID: Nsid = Nsid(4);
/// The namespace that is limited, which hosts read and write.
const LIMITED: Nsid = Nsid(1);
/// Percentage of changes of namespaces that the target does not survive.
const CRASH_PERCENT: u64 = 30;

/// A change at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperatorOrder {
    pub(super) change: LiveChange,
    /// The name under which it is counted.
    pub(super) name: &'static str,
    /// Undoes the change, where hosts could not continue with it.
    pub(super) undo: Option<LiveChange>,
    /// The target crashes before its cores have acknowledged the change.
    pub(super) then_crash: bool,
}

/// When an operator changes something, and what. Its random numbers are its own: whether a seed
/// has an operator changes no other fault of it.
pub(super) struct Management {
    random: Random,
    /// Changes to come, each after this many requests, the next one last.
    due: Vec<u32>,
}

impl Management {
    /// Draws the changes of a seed whose chaos run has this many requests.
    pub(super) fn new(seed: u64, requests: u32) -> Self {
        let mut random = Random::new(seed.rotate_left(32) ^ 0x6d61_6e61_6765);
        let mut due = Vec::new();
        if random.percent(SEEDS_PERCENT) {
            let changes = random.within(1..CHANGES + 1);
            due.extend((0..changes).map(|_| random.within(0..requests.into()) as u32));
        }
        due.sort_unstable_by(|a, b| b.cmp(a));
        Self { random, due }
    }

    /// Draws a target if a change is due after `finished` requests.
    pub(super) fn next(&mut self, finished: u32, targets: usize) -> Option<usize> {
        self.due.pop_if(|due| *due <= finished)?;
        Some(self.random.within(0..targets as u64) as usize)
    }

    /// The next change at the target with an address.
    pub(super) fn order(&mut self, address: SocketAddr) -> OperatorOrder {
        let random = &mut self.random;
        let lasting = |change, name| OperatorOrder { change, name, undo: None, then_crash: false };
        match random.within(0..10) {
            0..3 => {
                let state = random.pick(&[
                    AnaState::NON_OPTIMIZED,
                    AnaState::INACCESSIBLE,
                    AnaState::PERSISTENT_LOSS,
                    AnaState::CHANGE,
                ]);
                let undo = Some(LiveChange::Ana(address, AnaState::OPTIMIZED));
                let change = LiveChange::Ana(address, state);
                OperatorOrder { undo, ..lasting(change, "management: access states changed") }
            }
            3 => {
                let undo = Some(LiveChange::AddListener(address));
                let change = LiveChange::RemoveListener(address);
                OperatorOrder { undo, ..lasting(change, "management: listeners removed") }
            }
            4 => {
                let undo = Some(LiveChange::AllowAnyHost(true));
                let change = LiveChange::AllowAnyHost(false);
                OperatorOrder { undo, ..lasting(change, "management: hosts refused") }
            }
            5 => {
                let undo = Some(LiveChange::LimitEachHost(QosLimits::default()));
                let change = LiveChange::LimitEachHost(limits().over(QosLimits::default()));
                OperatorOrder { undo, ..lasting(change, "management: hosts limited") }
            }
            6 => {
                let undo = Some(LiveChange::LimitNamespace(LIMITED, unlimited()));
                let change = LiveChange::LimitNamespace(LIMITED, limits());
                OperatorOrder { undo, ..lasting(change, "management: namespaces limited") }
            }
            _ => {
                let then_crash = random.percent(CRASH_PERCENT);
                let change = LiveChange::ToggleNamespace(NSID);
                let name = "management: namespaces added or removed";
                OperatorOrder { then_crash, ..lasting(change, name) }
            }
        }
    }
}

/// Limits that the traffic of a world reaches.
fn limits() -> QosOverride {
    let (rw_ios, rw_mbytes) = (1000.try_into().ok(), 8.try_into().ok());
    QosOverride { rw_ios, rw_mbytes, ..QosOverride::default() }
}

fn unlimited() -> QosOverride {
    let (rw_ios, rw_mbytes) = (0.try_into().ok(), 0.try_into().ok());
    QosOverride { rw_ios, rw_mbytes, ..QosOverride::default() }
}
