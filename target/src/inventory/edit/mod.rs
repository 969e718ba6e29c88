//! An edit of the exports: a list of differences from those that are published.
//!
//! A configuration, an operator and a followed directory all describe their changes as an [`Edit`].
//! `Inventory::edit` plans it, which opens all new media, and then applies it.

pub(super) mod configuration;
pub(crate) mod directories;
pub(crate) mod namespaces;
pub(crate) mod subsystems;

use std::collections::BTreeMap;
use std::sync::Arc;

use nvme_proto::{Nqn, Nsid};

use crate::backend::OpenedBackend;
use crate::config::NamespaceConfig;
use crate::inventory::allowed_host::AllowedHosts;
use crate::inventory::error::ChangeError;
use crate::inventory::host_keys::HostKeyring;
use crate::inventory::index::SubsystemIndex;
use crate::inventory::listed::ListedNamespaces;
use crate::inventory::namespace::{Namespace, Replacement};
use crate::inventory::port::Port;
use crate::inventory::published::{Exports, OwnedNamespace};
use crate::inventory::report::{ExportChange, ExportChangeKind, change_of};
use crate::inventory::subsystem::Subsystem;
use crate::inventory::{Inventory, NextSerials};

/// Differences from the published exports, in the order in which they were added.
/// Its methods look at what is published, not at the earlier differences.
pub(crate) struct Edit<'a> {
    pub(super) inventory: &'a Inventory,
    /// Latest exports, which do not change before the edit is applied.
    pub(super) exports: Arc<Exports>,
    pub(super) serials: NextSerials,
    /// Subsystems after the edit.
    pub(super) subsystems: Vec<Arc<Subsystem>>,
    pub(super) steps: Vec<SubsystemStep>,
    pub(super) removed: Vec<OwnedNamespace>,
    pub(super) altered: Vec<AlteredNamespace>,
    pub(super) wanted: Vec<WantedNamespace>,
    /// Keys of the discovery service after the edit; `None` if they stay.
    pub(super) discovery_keyring: Option<HostKeyring>,
    /// Directories that were listed: NSIDs to write to the state folder, and files left out.
    pub(super) listed: Vec<(Arc<Subsystem>, ListedNamespaces)>,
}

pub(super) struct SubsystemStep {
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) kind: StepKind,
}

pub(super) enum StepKind {
    /// The subsystem is new.
    Add,
    /// The subsystem ends, with its listeners; its namespaces are among [`Edit::removed`].
    Remove,
    /// Hosts that may connect are replaced.
    Allow(AllowedHosts),
    Serve(Arc<Port>),
    /// The port no longer serves it.
    Unserve(Arc<Port>),
}

/// Namespace that gets another name, visibility or size, and keeps its index.
#[derive(Debug)]
pub(crate) struct AlteredNamespace {
    pub(crate) old: OwnedNamespace,
    pub(crate) new: OwnedNamespace,
}

/// Namespace that the plan has to open.
pub(super) struct WantedNamespace {
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) config: NamespaceConfig,
    /// Reason for replacing the namespace with the same NSID; `None` if no namespace has it.
    pub(super) replaces: Option<Replacement>,
    /// Name of its bdev; `None` for a namespace of the configuration.
    pub(super) bdev: Option<String>,
    /// Medium that is open already.
    pub(super) opened: Option<OpenedBackend>,
}

impl<'a> Edit<'a> {
    /// Creates an edit without differences. The caller holds the lock on the serial numbers until
    /// the edit is applied.
    pub(super) fn new(inventory: &'a Inventory, serials: NextSerials) -> Self {
        Self {
            inventory,
            exports: inventory.exports(),
            serials,
            subsystems: inventory.subsystems(),
            steps: Vec::new(),
            removed: Vec::new(),
            altered: Vec::new(),
            wanted: Vec::new(),
            discovery_keyring: None,
            listed: Vec::new(),
        }
    }

    fn subsystem(&self, nqn: &Nqn) -> Result<Arc<Subsystem>, ChangeError> {
        self.inventory.find_subsystem(nqn)
    }

    fn step(&mut self, subsystem: &Arc<Subsystem>, kind: StepKind) {
        self.steps.push(SubsystemStep { subsystem: Arc::clone(subsystem), kind });
    }

    fn remove(&mut self, subsystem: &Arc<Subsystem>) {
        self.subsystems.retain(|other| !Arc::ptr_eq(other, subsystem));
        self.step(subsystem, StepKind::Remove);
        let exports = Arc::clone(&self.exports);
        self.follow(subsystem, exports.list(subsystem.index), Vec::new());
    }

    /// Returns the index for a new subsystem: the lowest slot that the others leave free, and a new
    /// serial number.
    fn free_index(&mut self) -> SubsystemIndex {
        let mut is_taken = vec![false; self.subsystems.len() + 1];
        for other in &self.subsystems {
            is_taken.get_mut(other.index.slot as usize).into_iter().for_each(|place| *place = true);
        }
        let slot = (0..).zip(is_taken).find(|(_, is_taken)| !is_taken);
        let slot = slot.map_or(0, |(slot, _)| slot);
        let serial = self.serials.subsystem;
        self.serials.subsystem = serial.wrapping_add(1);
        SubsystemIndex { slot, serial }
    }

    /// Replaces namespaces of a subsystem (`exported`) by those that a configuration describes
    /// (`wanted`). Those that it describes as they are stay.
    fn follow(
        &mut self,
        subsystem: &Arc<Subsystem>,
        exported: &[Arc<Namespace>],
        wanted: Vec<NamespaceConfig>,
    ) {
        let mut old: BTreeMap<Nsid, &Arc<Namespace>> =
            exported.iter().map(|namespace| (namespace.nsid, namespace)).collect();
        for config in wanted {
            let replaces = match old.get(&config.nsid).map(|held| held.replacement(&config)) {
                Some(None) => {
                    let held = old.remove(&config.nsid);
                    if let Some(held) = held.filter(|held| held.config.qos != config.qos) {
                        let held = OwnedNamespace::new(subsystem, held);
                        self.alter(held, |namespace| namespace.limited_to(config.qos));
                    }
                    continue;
                }
                held => held.flatten(),
            };
            let subsystem = Arc::clone(subsystem);
            let wanted = WantedNamespace { subsystem, config, replaces, bdev: None, opened: None };
            self.wanted.push(wanted);
        }
        self.removed.extend(old.into_values().map(|old| OwnedNamespace::new(subsystem, old)));
    }

    /// Changes to subsystems, their hosts and the ports that serve them.
    pub(super) fn subsystem_changes(&self) -> Vec<ExportChange> {
        let mut changes = Vec::new();
        for SubsystemStep { subsystem, kind } in &self.steps {
            let mut push = |kind| changes.push(change_of(subsystem, kind));
            match kind {
                StepKind::Add => push(ExportChangeKind::AddSubsystem),
                StepKind::Remove => push(ExportChangeKind::RemoveSubsystem),
                StepKind::Allow(hosts) => {
                    let hosts = subsystem.hosts().changes_to(hosts);
                    hosts.into_iter().for_each(|change| push(change.into()));
                }
                StepKind::Serve(port) => {
                    push(ExportChangeKind::AddListener { address: port.address() });
                }
                StepKind::Unserve(port) => {
                    push(ExportChangeKind::RemoveListener { address: port.address() });
                }
            }
        }
        changes
    }
}
