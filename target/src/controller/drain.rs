//! Draining of addresses: hosts switch to other paths, and running commands end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel;
use nvme_proto::Nqn;

use super::associations::Associations;
use super::event::{AwaitedCommands, Quiesce};
use super::hold::CommandHold;
use crate::inventory::ana::AnaStates;

/// Subsystems and addresses to drain; all if none is named.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DrainScope {
    pub(crate) nqn: Option<Nqn>,
    pub(crate) address: Option<SocketAddr>,
}

/// State of the commands that were running at the start of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// No subsystem is served at such an address.
    Nothing,
    /// All commands have ended.
    Done,
    /// Some commands are running, or their cores have not checked yet.
    UnderWay,
}

impl Associations {
    /// Makes addresses inaccessible, and waits at most `timeout` for the end of the commands
    /// running there. Later commands are refused.
    pub(crate) fn drain(&self, scope: DrainScope, timeout: Duration) -> Drained {
        let drained = self.served_in(scope);
        if drained.is_empty() {
            return Drained::Nothing;
        }
        for (nqn, address, ana) in &drained {
            if ana.drain() {
                tracing::info!(%nqn, %address, "drained: inaccessible to hosts");
                self.announce_ana(ana);
            }
        }
        // Nothing is sent: the channel disconnects when the last command ends.
        let (sender, over) = channel::bounded::<()>(0);
        let quiesce = Quiesce { commands: AwaitedCommands::All, hold: CommandHold::new(sender) };
        for controller in self.controllers() {
            if drained.iter().any(|(_, _, ana)| Arc::ptr_eq(ana, &controller.ana)) {
                controller.shared().members.quiesce(&quiesce);
            }
        }
        drop(quiesce);
        match over.recv_timeout(timeout) {
            Err(channel::RecvTimeoutError::Timeout) => Drained::UnderWay,
            Ok(()) | Err(channel::RecvTimeoutError::Disconnected) => Drained::Done,
        }
    }

    /// Restores the ANA states of addresses from before the drain. False if no subsystem is served
    /// at such an address.
    pub(crate) fn end_drain(&self, scope: DrainScope) -> bool {
        let served = self.served_in(scope);
        for (nqn, address, ana) in &served {
            if ana.end_drain() {
                tracing::info!(%nqn, %address, "drain ended");
                self.announce_ana(ana);
            }
        }
        !served.is_empty()
    }

    fn served_in(&self, scope: DrainScope) -> Vec<(Nqn, SocketAddr, Arc<AnaStates>)> {
        let DrainScope { nqn, address } = scope;
        let mut served = Vec::new();
        for port in self.registry().ports() {
            let at = port.address();
            for subsystem in port.subsystems() {
                let meant = nqn.is_none_or(|nqn| nqn == subsystem.nqn)
                    && address.is_none_or(|address| address == at);
                if let Some(ana) = port.ana(&subsystem).filter(|_| meant) {
                    served.push((subsystem.nqn, at, ana));
                }
            }
        }
        served
    }
}
