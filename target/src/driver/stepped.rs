//! Target without threads or a clock, for simulators and tests: its caller calls each turn.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::log::AnaState;
use nvme_proto::{Nqn, Nsid};
use rdma::{Device, Provider, Time};

use crate::config::{Medium, NamespaceName, NamespaceSettings, QosLimits, QosOverride};
use crate::controller::Associations;
use crate::core_context::events::BufferEvent;
use crate::driver::assembly::Assembly;
use crate::driver::devices::{Acceptors, DeviceRole, Devices};
use crate::inventory::Inventory;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::apply::Applied;
use crate::inventory::edit::Edit;
use crate::inventory::edit::namespaces::NewNamespace;
use crate::listen_error::{AddError, ListenError};
use crate::poll_group::{PollGroup, PollGroupStats, StopRequest, Turn};
use crate::storage::Engine;
use crate::transport::Stop;

/// A target whose caller calls each turn with the time.
pub struct Stepped {
    associations: Arc<Associations>,
    stop_request: Arc<StopRequest>,
    groups: Vec<PollGroup>,
    devices: Devices,
    acceptors: Acceptors,
    /// Time before which each group gets no turn.
    stalled: Vec<Time>,
    /// Changes of namespaces. Hosts are notified of each once all cores have adopted it.
    unannounced: Vec<Applied>,
}

/// Change of a subsystem that an operator makes at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveChange {
    /// Sets the ANA state of all groups of the subsystem at an address.
    Ana(SocketAddr, AnaState),
    /// Serves the subsystem at an address.
    AddListener(SocketAddr),
    /// Stops serving the subsystem at an address, and ends the associations there.
    RemoveListener(SocketAddr),
    /// Sets whether hosts that are not listed may connect; if not, their associations end.
    AllowAnyHost(bool),
    /// Removes the namespace with this NSID, or adds one of 64 KiB that reads as zeros.
    ToggleNamespace(Nsid),
    /// Limits each host that has no limits of its own.
    LimitEachHost(QosLimits),
    /// Limits the namespace with this NSID.
    LimitNamespace(Nsid, QosOverride),
}

impl Stepped {
    /// Creates the target from its parts, with one storage engine for each core.
    pub fn new(assembly: Assembly, mut engine: impl FnMut() -> Box<dyn Engine>) -> Self {
        let Assembly { associations, seeds, devices, mut acceptors, stop_request, .. } = assembly;
        acceptors.obey();
        let groups: Vec<_> = seeds.into_iter().map(|seed| seed.build(engine())).collect();
        let stalled = vec![Time::ZERO; groups.len()];
        let unannounced = Vec::new();
        Self { associations, stop_request, groups, devices, acceptors, stalled, unannounced }
    }

    /// Adds a device at run time, like [`Assembly::add`].
    ///
    /// # Errors
    /// The errors of [`Assembly::add`].
    pub fn add_device<P>(&mut self, device: P::Device) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        let ports = self.inventory().ports_of(device.local_ip());
        let refused = self.devices.add::<P>(device, DeviceRole::Main, &ports)?;
        self.acceptors.obey();
        Ok(refused)
    }

    /// Does all work of all cores and acceptors that is due at `now`.
    pub fn turn(&mut self, now: Time) -> Turn {
        let mut busy = false;
        let mut next: Option<Time> = None;
        for acceptor in self.acceptors.iter_mut() {
            busy |= acceptor.turn(now);
        }
        for (group, &until) in self.groups.iter_mut().zip(&self.stalled) {
            if until > now {
                next = next.into_iter().chain([until]).min();
                continue;
            }
            match group.turn(now) {
                Turn::Busy => busy = true,
                Turn::SleepUntil(at) => next = next.into_iter().chain(at).min(),
            }
        }
        self.acceptors.drop_gone();
        busy |= self.associations.authenticator().execute_next();
        self.finish_changes();
        // Messages that groups have just sent are handled before the caller may sleep.
        busy |= self.acceptors.iter().any(|acceptor| !acceptor.may_sleep());
        let acceptors = self.acceptors.iter().filter_map(|acceptor| acceptor.deadline());
        let next = acceptors.chain(next).min();
        if busy { Turn::Busy } else { Turn::SleepUntil(next) }
    }

    /// Makes a change. A namespace change is published first; hosts are notified once all cores
    /// have adopted it in their turns.
    ///
    /// # Errors
    /// The reason for which nothing has changed.
    pub fn change(&mut self, nqn: &Nqn, change: LiveChange) -> Result<(), Box<dyn Error>> {
        let associations = &self.associations;
        match change {
            LiveChange::Ana(address, state) => {
                associations.set_ana_state(nqn, address, None, state)?;
            }
            LiveChange::AddListener(address) => {
                associations.edit(|edit| edit.add_listener(nqn, address))?;
            }
            LiveChange::RemoveListener(address) => {
                associations.edit(|edit| edit.remove_listener(nqn, address))?;
            }
            LiveChange::AllowAnyHost(allowed) => {
                let change = HostsChange::AllowAny(allowed);
                associations.edit(|edit| edit.change_hosts(nqn, change))?;
            }
            LiveChange::LimitEachHost(limits) => {
                let change = HostsChange::LimitEach(limits);
                associations.edit(|edit| edit.change_hosts(nqn, change))?;
            }
            LiveChange::LimitNamespace(nsid, limits) => {
                let limit = |edit: &mut Edit<'_>| edit.limit_namespace(nqn, nsid, limits);
                let (_, applied) = associations.inventory().edit(limit)?;
                self.unannounced.push(applied);
            }
            LiveChange::ToggleNamespace(nsid) => {
                let inventory = associations.inventory();
                let is_there = inventory.find_subsystem(nqn)?.namespace(nsid).is_some();
                let (_, applied) = inventory.edit(|edit| match is_there {
                    true => edit.remove_namespace(nqn, nsid),
                    false => edit.add_namespace(nqn, zeros(nsid)).map(drop),
                })?;
                self.unannounced.push(applied);
            }
        }
        Ok(())
    }

    /// Number of namespaces whose change not all cores have adopted, or that are not closed yet.
    pub fn unfinished_changes(&self) -> usize {
        self.unannounced.len() + self.inventory().closing()
    }

    /// Notifies hosts of the changes that all cores have adopted, and closes idle namespaces.
    fn finish_changes(&mut self) {
        let inventory = self.associations.inventory();
        let publication = inventory.publication();
        let is_known = |applied: &mut Applied| {
            let is_adopted = |generation| publication.wait_adopted(generation, Duration::ZERO);
            applied.generation.is_none_or(is_adopted)
        };
        for applied in self.unannounced.extract_if(.., is_known) {
            self.associations.announce(&applied);
            for closing in applied.closing() {
                // A busy namespace is closed in a later turn.
                let _ = inventory.close(closing, Duration::ZERO);
            }
        }
        inventory.close_idle();
    }

    /// Gives the group of a core no turn before a time, as if other threads kept the core busy. No
    /// effect if there is no such core.
    pub fn stall(&mut self, core: usize, until: Time) {
        if let Some(stalled) = self.stalled.get_mut(core) {
            *stalled = until;
        }
    }

    /// Ports, subsystems and namespaces that the target exports.
    pub fn inventory(&self) -> &Arc<Inventory> {
        self.associations.inventory()
    }

    /// Live controllers of the target, and its state about hosts.
    pub fn associations(&self) -> &Arc<Associations> {
        &self.associations
    }

    /// Rejects later connections and ends the existing ones, as `how` says.
    pub fn stop(&mut self, how: Stop) {
        self.acceptors.iter_mut().for_each(|acceptor| acceptor.close());
        if how == Stop::Now {
            self.associations.stop();
        }
        self.stop_request.set(how);
    }

    /// Whether the target was stopped and every connection has ended.
    pub fn is_over(&self) -> bool {
        self.groups_are_over() && self.acceptors.iter().all(|acceptor| acceptor.is_empty())
    }

    /// Whether the target was stopped and every poll group has ended its connections, or has
    /// stopped waiting for storage.
    pub fn groups_are_over(&self) -> bool {
        self.groups.iter().all(PollGroup::is_over)
    }

    /// Number of connections, including those that are disconnecting.
    pub fn connections(&self) -> u64 {
        self.acceptors.iter().map(|acceptor| acceptor.stats().connections).sum()
    }

    /// Returns for each poll group the events since the last call of the buffers of hosts and of
    /// anonymous connections. A caller that wants all events calls it before the first turn.
    pub fn buffer_events(&mut self) -> impl Iterator<Item = [Vec<BufferEvent>; 2]> {
        self.groups.iter_mut().map(PollGroup::buffer_events)
    }

    /// Counters of each poll group.
    pub fn stats(&mut self) -> Vec<PollGroupStats> {
        self.groups.iter_mut().map(PollGroup::stats).collect()
    }
}

fn zeros(nsid: Nsid) -> NewNamespace {
    let bdev = format!("zeros {nsid}");
    let name = NamespaceName::of_file(bdev.as_ref());
    let medium = Medium::Null { size_bytes: 64 << 10 };
    let spec = NamespaceSettings::new(name, medium, false).into();
    NewNamespace { nsid: Some(nsid), spec, bdev, opened: None }
}
