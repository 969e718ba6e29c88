//! A target without threads or a clock: its caller drives it. For simulators and tests.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::log::AnaState;
use nvme_proto::{Nqn, Nsid};
use rdma::{Device, Provider, Time};

use crate::config::Medium;
use crate::controller::Associations;
use crate::core_context::events::BufferEvent;
use crate::driver::assembly::Assembly;
use crate::driver::devices::{DeviceRole, Devices, Receptions};
use crate::inventory::Registry;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::ana::AnaGroupId;
use crate::inventory::change::NewNamespace;
use crate::inventory::exports::NamespaceChange;
use crate::listen_error::{AddError, ListenError};
use crate::poll_group::{PollGroup, PollGroupStats, StopRequest, Turn};
use crate::storage::Engine;
use crate::transport::Stop;

/// A target that its caller drives.
pub struct Stepped {
    associations: Arc<Associations>,
    orders: Arc<StopRequest>,
    groups: Vec<PollGroup>,
    devices: Devices,
    receptions: Receptions,
    /// Until then a group gets no turn.
    stalled: Vec<Time>,
    /// Namespaces that came or went, of which hosts hear when all cores know it.
    unannounced: Vec<PublishedNamespace>,
}

/// A change of a subsystem that an operator makes while hosts work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveChange {
    /// How all of its namespaces can be reached at an address.
    Ana(SocketAddr, AnaState),
    /// It is served at an address from now on.
    AddListener(SocketAddr),
    /// It is not any more, and associations there end.
    RemoveListener(SocketAddr),
    /// Whether hosts may connect that are not listed; associations of others end.
    AllowAnyHost(bool),
    /// It loses the namespace with an id, or gets one of 64 KiB that reads zeros.
    ToggleNamespace(Nsid),
}

/// A namespace that came or went in a published generation.
struct PublishedNamespace {
    change: NamespaceChange,
    removed: bool,
}

impl Stepped {
    /// The target of these parts, with an engine for each core.
    pub fn new(assembly: Assembly, mut engine: impl FnMut() -> Box<dyn Engine>) -> Self {
        let Assembly { associations, seeds, devices, mut receptions, orders, .. } = assembly;
        receptions.obey();
        let groups: Vec<_> = seeds.into_iter().map(|seed| seed.build(engine())).collect();
        let stalled = vec![Time::ZERO; groups.len()];
        let unannounced = Vec::new();
        Self { associations, orders, groups, devices, receptions, stalled, unannounced }
    }

    /// Adds a device while hosts work. Otherwise as [`Assembly::add`].
    ///
    /// # Errors
    /// The same as those of [`Assembly::add`].
    pub fn add_device<P>(&mut self, device: P::Device) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        let ports = self.registry().ports_of(device.local_ip());
        let refused = self.devices.add::<P>(device, DeviceRole::Main, &ports)?;
        self.receptions.obey();
        Ok(refused)
    }

    /// Does all that is ready at `now`.
    pub fn turn(&mut self, now: Time) -> Turn {
        let mut busy = false;
        let mut next: Option<Time> = None;
        for reception in self.receptions.iter_mut() {
            busy |= reception.turn(now);
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
        self.receptions.drop_gone();
        self.finish_changes();
        // A message that groups just sent is not left for the next step.
        busy |= self.receptions.iter().any(|reception| !reception.may_sleep());
        let receptions = self.receptions.iter().filter_map(|reception| reception.deadline());
        let next = receptions.chain(next).min();
        if busy { Turn::Busy } else { Turn::SleepUntil(next) }
    }

    /// Makes a change from one moment to the next. That a namespace came or went is published;
    /// cores acknowledge it in their turns, and then hosts are told.
    ///
    /// # Errors
    /// The cause for which nothing changes.
    pub fn change(&mut self, nqn: &Nqn, change: LiveChange) -> Result<(), Box<dyn Error>> {
        let associations = &self.associations;
        match change {
            LiveChange::Ana(address, state) => {
                associations.set_ana_state(nqn, address, None, state)?;
            }
            LiveChange::AddListener(address) => associations.add_listener(nqn, address)?,
            LiveChange::RemoveListener(address) => associations.remove_listener(nqn, address)?,
            LiveChange::AllowAnyHost(allowed) => {
                associations.change_hosts(nqn, HostsChange::AllowAny(allowed))?;
            }
            LiveChange::ToggleNamespace(nsid) => {
                let registry = associations.registry();
                let index = registry.find_subsystem(nqn)?.index;
                let removed = registry.exports().list(index).get(nsid).is_some();
                let change = match removed {
                    true => registry.remove_namespace(nqn, nsid)?,
                    false => registry.add_namespace(nqn, zeros(nsid))?,
                };
                self.unannounced.push(PublishedNamespace { change, removed });
            }
        }
        Ok(())
    }

    /// Changes of namespaces that cores have not acknowledged, or that are not closed yet.
    pub fn unfinished_changes(&self) -> usize {
        self.unannounced.len() + self.registry().closing()
    }

    /// Tells hosts of changes that all cores know by now, and closes what is idle.
    fn finish_changes(&mut self) {
        let registry = self.associations.registry();
        let publication = registry.publication();
        let is_known = |it: &mut PublishedNamespace| {
            publication.wait_adopted(it.change.generation, Duration::ZERO)
        };
        for PublishedNamespace { change, removed } in self.unannounced.extract_if(.., is_known) {
            self.associations.announce(&[&change]);
            if removed {
                // One that is busy is closed in a later turn.
                let _ = registry.close(change, Duration::ZERO);
            }
        }
        registry.close_idle();
    }

    /// Gives the group of a core no turn before a time, as a core that others keep busy. Nothing
    /// without that core.
    pub fn stall(&mut self, core: usize, until: Time) {
        if let Some(stalled) = self.stalled.get_mut(core) {
            *stalled = until;
        }
    }

    /// The ports, subsystems and namespaces that it exports.
    pub fn registry(&self) -> &Arc<Registry> {
        self.associations.registry()
    }

    /// The live controllers of the target.
    pub fn associations(&self) -> &Arc<Associations> {
        &self.associations
    }

    /// Takes no more connections and ends those that there are.
    pub fn stop(&mut self, how: Stop) {
        self.receptions.iter_mut().for_each(|reception| reception.close());
        if how == Stop::Now {
            self.associations.stop();
        }
        self.orders.set(how);
    }

    /// Whether it was stopped and every connection has ended.
    pub fn is_over(&self) -> bool {
        self.groups_are_over() && self.receptions.iter().all(|reception| reception.is_empty())
    }

    /// Whether it was stopped and every poll group has ended its connections, or waits for storage
    /// no longer.
    pub fn groups_are_over(&self) -> bool {
        self.groups.iter().all(PollGroup::is_over)
    }

    /// Number of connections, those that are disconnecting included.
    pub fn connections(&self) -> u64 {
        self.receptions.iter().map(|reception| reception.stats().connections).sum()
    }

    /// The events since the last call of the buffers of hosts and of those of anonymous
    /// connections, for each poll group. A caller that wants all events calls it before the first
    /// turn.
    pub fn buffer_events(&mut self) -> impl Iterator<Item = [Vec<BufferEvent>; 2]> {
        self.groups.iter_mut().map(PollGroup::buffer_events)
    }

    /// Counters of each poll group.
    pub fn stats(&mut self) -> Vec<PollGroupStats> {
        self.groups.iter_mut().map(PollGroup::stats).collect()
    }
}

fn zeros(nsid: Nsid) -> NewNamespace {
    let name = format!("zeros {nsid}");
    NewNamespace {
        nsid: Some(nsid),
        bdev: name.clone(),
        name,
        uuid: None,
        nguid: None,
        eui64: None,
        content_id: None,
        direct_io: crate::config::DirectIo::default(),
        medium: Medium::Null { size_bytes: 64 << 10 },
        writable: false,
        lba_shift: None,
        ana_group: AnaGroupId::DEFAULT,
        masked: false,
        opened: None,
    }
}
