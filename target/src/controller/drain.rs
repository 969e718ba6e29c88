//! Draining of addresses before maintenance: they become inaccessible (ANA), so that hosts switch
//! to other paths, and running commands end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel;
use nvme_proto::Nqn;

use super::associations::Associations;
use super::event::{AwaitedCommands, Quiesce};
use super::hold::CommandHold;
use crate::inventory::ana::AnaStates;

/// Subsystem and address to drain; `None` for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DrainScope {
    pub(crate) nqn: Option<Nqn>,
    pub(crate) address: Option<SocketAddr>,
}

/// Result of a drain, about the commands that were running at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// No subsystem is served at such an address.
    Nothing,
    /// All commands that were running at the start have ended.
    Done,
    /// The timeout passed before all cores reported that their commands have ended.
    UnderWay,
}

impl Associations {
    /// Sets the ANA state at the addresses to inaccessible, and waits at most `timeout` for the end
    /// of the commands running there. Later commands are refused.
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
        // No message is sent: the channel disconnects when the last hold is dropped.
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

    /// Restores the ANA states that the addresses had before the drain. False if no subsystem is
    /// served at such an address.
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
        for port in self.inventory().ports() {
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
