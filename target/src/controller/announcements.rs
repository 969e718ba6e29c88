//! Changes by operators and followed directories, with notices to connected hosts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam::channel;
use nvme_proto::log::AnaState;
use nvme_proto::{Nqn, Nsid};

use super::associations::Associations;
use super::event::CloseReason;
use super::state::Controller;
use crate::inventory::ana::{AnaGroupId, AnaStates};
use crate::inventory::apply::Applied;
use crate::inventory::close::Closed;
use crate::inventory::edit::{AlteredNamespace, Edit};
use crate::inventory::error::{ChangeError, ExportError};
use crate::inventory::persist::protection::ProtectionError;
use crate::inventory::port::Port;
use crate::inventory::published::NamespaceChange;
use crate::inventory::report::{EditReport, UnclosedNamespace};
use crate::limits::{ADOPTION_TIMEOUT, CLOSE_TIMEOUT};

impl Associations {
    /// Makes an edit of the exports, notifies connected hosts, ends the associations that are no
    /// longer allowed, and closes removed namespaces. Running commands end normally; later ones are
    /// refused. Returns the value of `edit` and what has changed.
    ///
    /// # Errors
    /// The error of `edit`, or the first [`ExportError`]. Nothing has changed then.
    pub(crate) fn edit<T, E: From<ExportError>>(
        &self,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<T, E>,
    ) -> Result<(T, EditReport), E> {
        let (value, mut applied) = self.inventory.edit(edit)?;
        if applied.changes_access {
            self.end_refused();
        }
        if let Some(generation) = applied.generation {
            // The timeout keeps a stuck core from delaying the notification for ever.
            self.inventory.publication().wait_adopted(generation, ADOPTION_TIMEOUT);
        }
        self.announce(&applied);
        let changes = std::mem::take(&mut applied.changes);
        let unopened = std::mem::take(&mut applied.unopened);
        Ok((value, EditReport { changes, warnings: self.close(applied.closing()), unopened }))
    }

    /// Notifies hosts of an edit, which all cores have adopted.
    pub(crate) fn announce(&self, applied: &Applied) {
        for controller in self.controllers() {
            let Some(subsystem) = controller.subsystem() else { continue };
            for one in applied.added.iter().chain(&applied.removed) {
                let is_visible = || one.namespace.is_visible_to(&controller.host);
                if Arc::ptr_eq(&one.subsystem, subsystem) && is_visible() {
                    controller.namespace_changed(one.namespace.nsid);
                }
            }
            for AlteredNamespace { old, new } in &applied.altered {
                let [saw, sees] =
                    [old, new].map(|one| one.namespace.is_visible_to(&controller.host));
                let is_changed = saw != sees || sees && !old.namespace.looks_like(&new.namespace);
                if Arc::ptr_eq(&new.subsystem, subsystem) && is_changed {
                    controller.namespace_changed(new.namespace.nsid);
                }
            }
        }
        if applied.changes_access {
            self.announce_discovery();
        }
    }

    /// Closes removed namespaces. Returns those that could not be flushed or closed.
    fn close(&self, removed: Vec<NamespaceChange>) -> Vec<UnclosedNamespace> {
        let mut timeout = CLOSE_TIMEOUT;
        let close = |one: NamespaceChange| {
            let (nsid, name) = (one.namespace.nsid, one.namespace.name().to_owned());
            let closed = self.inventory.close(one, timeout);
            if closed == Closed::Busy {
                // Storage had that time for the other namespaces as well.
                timeout = Duration::ZERO;
            }
            Some(UnclosedNamespace { nsid, name, problem: closed.problem()? })
        };
        removed.into_iter().filter_map(close).collect()
    }

    /// Sets or clears write protection of a namespace and stores it, so that it survives a restart.
    /// Running writes end normally.
    pub(crate) fn protect_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        protected: bool,
    ) -> Result<(), ChangeError> {
        let subsystem = self.inventory.find_subsystem(nqn)?;
        let namespace = subsystem.find_namespace(nsid)?;
        if !namespace.writable {
            let refused = || ChangeError::ReadOnly { nqn: nqn.to_string(), nsid };
            return if protected { Ok(()) } else { Err(refused()) };
        }
        // A protection takes effect before it is stored; its removal takes effect after that.
        let mut changed = protected && namespace.protect(true);
        let (sender, kept) = channel::bounded(1);
        let keep = move |result| _ = sender.send(result);
        if self.inventory.keep_protection(&subsystem, &namespace, protected, keep) {
            let kept = kept.recv().unwrap_or(Err(ProtectionError::WriterEnded));
            if let Err(error) = kept {
                if changed {
                    namespace.protect(false);
                }
                return Err(error.into());
            }
        }
        changed |= !protected && namespace.protect(false);
        if changed {
            tracing::info!(%nqn, %nsid, protected, "write protection changed");
            let controllers = self.controllers_of(&subsystem);
            let concerned = controllers.iter().filter(|one| one.namespace(nsid).is_some());
            concerned.for_each(|controller| controller.namespace_changed(nsid));
        }
        Ok(())
    }

    /// Sets the ANA state of a group, or of all groups, at an address, and notifies hosts there.
    pub(crate) fn set_ana_state(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
        group: Option<AnaGroupId>,
        state: AnaState,
    ) -> Result<(), ChangeError> {
        let ana = self.inventory.ana(nqn, address)?;
        let is_meant = |one: &AnaGroupId| group.is_none_or(|group| group == *one);
        if ana.set(AnaGroupId::all().filter(is_meant), state) {
            let group = group.map(AnaGroupId::get);
            tracing::info!(%nqn, %address, group, %state, "ANA state changed");
            self.announce_ana(&ana);
        }
        Ok(())
    }

    /// Advances the timers of groups in ANA Change state by one second, and makes those
    /// inaccessible that reach ANATT. Called once a second.
    pub(crate) fn end_ana_transitions(&self) {
        for port in self.inventory.ports() {
            for ana in port.ana_of_all().iter().filter(|ana| ana.second_passed()) {
                tracing::warn!(
                    address = %port.address(),
                    "namespaces that were in the ANA state change for too long are inaccessible"
                );
                self.announce_ana(ana);
            }
        }
    }

    pub(super) fn announce_ana(&self, ana: &Arc<AnaStates>) {
        let controllers = self.controllers();
        let concerned = controllers.iter().filter(|one| Arc::ptr_eq(&one.ana, ana));
        concerned.for_each(|controller| controller.ana_changed());
    }

    /// Ends the associations of hosts that are not allowed now, or at ports that are not served
    /// now.
    fn end_refused(&self) {
        self.end_where(CloseReason::HostRemoved, |controller| {
            controller.subsystem().is_some_and(|subsystem| !subsystem.allows(&controller.host))
        });
        self.end_where(CloseReason::AuthenticationRequired, |controller| {
            !controller.authenticates
                && controller.kind.demands_authentication(&self.inventory, &controller.host)
        });
        // A removed subsystem is served at no port.
        self.end_where(CloseReason::ListenerRemoved, |controller| !controller.is_served());
    }

    fn end_where(&self, reason: CloseReason, is_meant: impl Fn(&Controller) -> bool) {
        for controller in self.controllers().iter().filter(|controller| is_meant(controller)) {
            controller.end(reason);
        }
    }

    /// Ends the discovery controllers at a port that is no longer listened on.
    pub(crate) fn end_discovery_at(&self, port: &Arc<Port>) {
        self.end_where(CloseReason::ListenerRemoved, |controller| {
            controller.is_discovery() && Arc::ptr_eq(&controller.port, port)
        });
    }

    /// Number of changes since the start of the target after which a discovery log may differ.
    pub(crate) fn discovery_changes(&self) -> u64 {
        self.discovery_changes.load(Ordering::Relaxed)
    }

    /// Notifies hosts that are connected to the discovery service that their log may have changed.
    pub(crate) fn announce_discovery(&self) {
        self.discovery_changes.fetch_add(1, Ordering::Relaxed);
        let controllers = self.controllers();
        let discovery = controllers.iter().filter(|controller| controller.is_discovery());
        discovery.for_each(|controller| controller.discovery_log_changed());
    }
}
