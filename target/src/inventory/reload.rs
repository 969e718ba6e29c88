//! Applies a new configuration to the exports: all of its changes in one generation, or none.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::{Nqn, Nsid};

use crate::backend::FileKey;
use crate::config::{Config, ConfigError, NamespaceConfig};
use crate::inventory::allowed_host::{AllowedHosts, HostsChange};
use crate::inventory::error::ExportError;
use crate::inventory::export::{Candidate, Files, ListedNamespaces, OpenPurpose, distinct, index};
use crate::inventory::exports::{NamespaceChange, OwnedNamespace};
use crate::inventory::index::SubsystemIndex;
use crate::inventory::left_out::LeftOutFiles;
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::ProtectionFile;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::inventory::subsystem_change::free_index;
use crate::inventory::{NextSerials, Registry};
use crate::limits::MAX_SUBSYSTEMS;
use crate::listen_error::AddressError;

/// Result of a successful reload.
#[derive(Debug)]
pub(crate) struct ReloadReport {
    pub(crate) changes: Vec<ExportChange>,
    /// Failures to close removed namespaces, one line each.
    pub(crate) warnings: Vec<String>,
}

/// Reason that a reload is refused; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The configuration file cannot be read or is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration changes these keys, which are read only at the start of the target.
    #[error("nothing is changed, since these are read at the start only: {}; restart the target", .0.join(", "))]
    AtStart(Vec<&'static str>),
    /// The configuration changes a setting that is fixed while its subsystem exists.
    #[error(
        "nothing is changed, since {key} of subsystem {nqn} has changed; take the subsystem out of the configuration, \
         reload, and put it in again"
    )]
    OfSubsystem {
        nqn: String,
        /// Key in the configuration file that has changed.
        key: &'static str,
    },
    /// The configuration has more than `MAX_SUBSYSTEMS` subsystems.
    #[error("nothing is changed: more than {MAX_SUBSYSTEMS} subsystems")]
    TooManySubsystems,
    /// A namespace or directory cannot be opened.
    #[error("nothing is changed: {0}")]
    Export(#[from] ExportError),
    /// The target cannot listen at a new address.
    #[error("nothing is changed: {0}")]
    Address(#[from] AddressError),
    /// The target listens at an address already, under another port ID than the configuration has.
    #[error(
        "nothing is changed, since the target listens at {address} as port id {id} already; give it that id, or take \
         the address out of the configuration, reload, and put it in again"
    )]
    PortId {
        address: SocketAddr,
        /// ID of the existing port.
        id: u16,
    },
    /// A file would be opened again with other settings, while the present namespace holds a lock
    /// on it because hosts may write it.
    #[error(
        "nothing is changed: {name} ({origin}) is exported as namespace {nsid} of {nqn} already, and hosts may write \
         it; take it out of the configuration, reload, and put it in again"
    )]
    Written {
        /// Name that the namespace would have.
        name: String,
        /// Place in the configuration that names the new namespace.
        origin: String,
        /// NQN of the subsystem that exports the file now.
        nqn: String,
        /// NSID under which the file is exported now.
        nsid: Nsid,
    },
}

/// Reason that a namespace is replaced by a new one with the same NSID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// The configuration changes its settings.
    Keys,
    /// Its path leads to another file or device now.
    File,
    /// The file of a read-only namespace has another size now.
    Size,
}

/// Change that a configuration makes to one subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportChange {
    pub(crate) nqn: Nqn,
    pub(crate) kind: ExportChangeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExportChangeKind {
    /// The namespace is new.
    Added {
        nsid: Nsid,
        name: String,
        size_bytes: u64,
    },
    /// The namespace is removed, and none gets its NSID.
    Removed {
        nsid: Nsid,
        name: String,
    },
    /// A new namespace gets the NSID of one that is removed.
    Replaced {
        nsid: Nsid,
        name: String,
        size_bytes: u64,
        why: Replacement,
    },
    Host(HostsChange),
    SubsystemAdded,
    /// The subsystem and all its namespaces are removed.
    SubsystemRemoved,
    ListenerAdded(SocketAddr),
    ListenerRemoved(SocketAddr),
}

/// Changes that a configuration has made, or would make if it was only checked.
#[derive(Debug, Default)]
pub(crate) struct Reloaded {
    pub(crate) changes: Vec<ExportChange>,
    /// Namespaces that are no longer exported.
    pub(crate) removed: Vec<NamespaceChange>,
    /// Namespaces that are newly exported.
    pub(crate) added: Vec<NamespaceChange>,
}

/// Changes to make, with all new namespaces opened.
struct ReloadPlan {
    changes: Vec<ExportChange>,
    removed: Vec<OwnedNamespace>,
    added: Vec<OwnedNamespace>,
    subsystems: SubsystemPlan,
    /// Namespaces of each subsystem; the NSIDs of new files have to be written to the state folder.
    listed: Vec<ListedNamespaces>,
    /// Serial numbers after the changes.
    serials: NextSerials,
}

struct SubsystemPlan {
    /// Subsystems of the configuration, kept or new, in its order.
    wanted: Vec<WantedSubsystem>,
    /// Subsystems that the configuration no longer has.
    gone: Vec<Arc<Subsystem>>,
    /// All ports, each with the subsystems that it shall serve.
    ports: Vec<(Arc<Port>, Vec<Arc<Subsystem>>)>,
}

/// Subsystem of the configuration, with the hosts that it shall allow.
struct WantedSubsystem {
    subsystem: Arc<Subsystem>,
    is_new: bool,
    hosts: AllowedHosts,
}

/// Namespaces that a configuration adds and removes.
#[derive(Default)]
pub(super) struct Difference {
    removed: Vec<OwnedNamespace>,
    wanted: Vec<WantedNamespace>,
}

struct WantedNamespace {
    subsystem: Arc<Subsystem>,
    candidate: Candidate,
    /// Reason for replacing the namespace with the same NSID; `None` if no namespace has it.
    replaces: Option<Replacement>,
}

/// Namespace that has been opened but not published.
pub(super) struct ReadyNamespace {
    pub(super) owned: OwnedNamespace,
    replaces: Option<Replacement>,
}

impl Registry {
    /// Applies a new configuration, and serves its subsystems at the existing ports and
    /// `new_ports`. With [`OpenPurpose::Check`], only returns the changes.
    ///
    /// # Errors
    /// The first [`ReloadError`]. Nothing has changed then.
    pub(crate) fn reload(
        &self,
        config: &Config,
        new_ports: &[Arc<Port>],
        purpose: OpenPurpose,
    ) -> Result<Reloaded, ReloadError> {
        let mut serials = self.serials();
        let plan = self.plan(config, new_ports, *serials)?;
        match purpose {
            OpenPurpose::Check => Ok(Reloaded { changes: plan.changes, ..Reloaded::default() }),
            OpenPurpose::Serve => self.apply(plan, &mut serials),
        }
    }

    /// Determines the changes and opens the new namespaces.
    fn plan(
        &self,
        config: &Config,
        new_ports: &[Arc<Port>],
        mut serials: NextSerials,
    ) -> Result<ReloadPlan, ReloadError> {
        let exports = self.publication().exports();
        let subsystems = self.plan_subsystems(config, new_ports, &mut serials)?;
        let mut difference = Difference::default();
        let mut listed = Vec::new();
        for (wanted, subsystem_config) in subsystems.wanted.iter().zip(&config.subsystems) {
            let mut namespaces = ListedNamespaces::of(config, subsystem_config)?;
            namespaces.keep(OpenPurpose::Check).map_err(ExportError::from)?;
            distinct(&namespaces.candidates)?;
            let subsystem = &wanted.subsystem;
            subsystem.set_left_out_files(namespaces.left_out.clone());
            difference.add(subsystem, exports.list(subsystem.index).iter(), &namespaces.candidates);
            listed.push(namespaces);
        }
        for subsystem in &subsystems.gone {
            difference.add(subsystem, exports.list(subsystem.index).iter(), &[]);
        }
        let mut left_out = LeftOutFiles::default();
        let (removed, ready) = self.open_difference(difference, &mut serials, &mut left_out)?;
        let mut changes = subsystems.changes();
        let stays = |one: &&OwnedNamespace| {
            !subsystems.gone.iter().any(|gone| Arc::ptr_eq(gone, &one.subsystem))
        };
        changes.extend(namespace_changes(removed.iter().filter(stays), &ready));
        let added = ready.into_iter().map(|one| one.owned).collect();
        Ok(ReloadPlan { changes, removed, added, subsystems, listed, serials })
    }

    /// Opens the namespaces to add. Returns those to remove and those that were opened.
    pub(super) fn open_difference(
        &self,
        Difference { removed, wanted }: Difference,
        serials: &mut NextSerials,
        left_out: &mut LeftOutFiles,
    ) -> Result<(Vec<OwnedNamespace>, Vec<ReadyNamespace>), ReloadError> {
        refuse_written(&removed, &wanted)?;
        let exports = self.publication().exports();
        let gone: BTreeSet<_> = removed.iter().map(|one| one.namespace.index).collect();
        let stay = exports.namespaces().filter(|one| !gone.contains(&one.index));
        let mut files = Files::of(stay, self.cache_room());
        let mut slots = exports.free_slots(&removed);
        let mut ready = Vec::with_capacity(wanted.len());
        for WantedNamespace { subsystem, candidate, replaces } in wanted {
            files.add(&candidate.namespace)?;
            let index = index(slots.next().unwrap_or(usize::MAX), serials.namespace)?;
            let takes_over =
                replaces.is_some() || subsystem.had_namespace(candidate.namespace.nsid);
            let opened = candidate.open(index, takes_over, self.cache_room(), left_out)?;
            let Some(namespace) = opened else { continue };
            serials.namespace = serials.namespace.wrapping_add(1);
            let owned = OwnedNamespace { subsystem, namespace };
            ready.push(ReadyNamespace { owned, replaces });
        }
        self.protect_as_before(&ready)?;
        Ok((removed, ready))
    }

    fn plan_subsystems(
        &self,
        config: &Config,
        new_ports: &[Arc<Port>],
        serials: &mut NextSerials,
    ) -> Result<SubsystemPlan, ReloadError> {
        let mut all = self.subsystems();
        let mut gone = all.clone();
        let mut wanted = Vec::with_capacity(config.subsystems.len());
        for subsystem_config in &config.subsystems {
            let hosts = AllowedHosts::from(&subsystem_config.hosts);
            let found = gone.iter().position(|other| other.nqn == subsystem_config.nqn);
            let subsystem = match found.map(|at| gone.remove(at)) {
                Some(subsystem) => {
                    if let Some(key) = subsystem.difference(subsystem_config) {
                        let nqn = subsystem.nqn.to_string();
                        return Err(ReloadError::OfSubsystem { nqn, key });
                    }
                    subsystem
                }
                None => {
                    let index = free_index(&all, serials);
                    let new = Subsystem::new(subsystem_config, index, true, self.publication());
                    all.push(Arc::new(new));
                    Arc::clone(&all[all.len() - 1])
                }
            };
            wanted.push(WantedSubsystem { subsystem, is_new: found.is_none(), hosts });
        }
        if wanted.len() > MAX_SUBSYSTEMS.max(self.lock_subsystems().len()) {
            return Err(ReloadError::TooManySubsystems);
        }
        let of_port = |port: Arc<Port>| {
            // A port that the configuration lacks shall serve no subsystem.
            let config = config.ports.iter().find(|config| port.is_of(config));
            let serves = |one: &&WantedSubsystem| {
                config.is_some_and(|config| config.serves(&one.subsystem.nqn))
            };
            let served = wanted.iter().filter(serves).map(|one| Arc::clone(&one.subsystem));
            let served = served.collect();
            (port, served)
        };
        let known = self.ports();
        let is_new = |port: &&Arc<Port>| !known.iter().any(|other| Arc::ptr_eq(other, port));
        let new: Vec<_> = new_ports.iter().filter(is_new).cloned().collect();
        let ports = known.into_iter().chain(new).map(of_port).collect();
        Ok(SubsystemPlan { wanted, gone, ports })
    }

    /// Publishes a plan. The caller has held the lock on `serials` since before it made the plan.
    fn apply(&self, plan: ReloadPlan, serials: &mut NextSerials) -> Result<Reloaded, ReloadError> {
        let ReloadPlan { changes, removed, added, subsystems, mut listed, serials: next } = plan;
        for namespaces in &mut listed {
            namespaces.keep(OpenPurpose::Serve).map_err(ExportError::from)?;
        }
        *serials = next;
        let SubsystemPlan { wanted, gone, ports } = subsystems;
        for one in &wanted {
            one.subsystem.set_hosts(one.hosts.clone());
        }
        // First remove and then add, so that hosts that find a new subsystem find all its
        // namespaces.
        for (port, served) in &ports {
            port.retain(|subsystem| served.iter().any(|one| Arc::ptr_eq(one, subsystem)));
        }
        *self.lock_subsystems() = wanted.iter().map(|one| Arc::clone(&one.subsystem)).collect();
        for OwnedNamespace { subsystem, namespace } in &removed {
            subsystem.note_removed(namespace.nsid);
        }
        let changes_namespaces = !(removed.is_empty() && added.is_empty());
        let generation = changes_namespaces.then(|| self.publish_change(&removed, &added));
        for (port, served) in &ports {
            served.iter().for_each(|subsystem| _ = port.add(subsystem));
        }
        for subsystem in &gone {
            self.core_io_stats().iter().for_each(|io_stats| io_stats.close(subsystem.index));
        }
        let change = |one: OwnedNamespace| Some(one.changed_in(generation?));
        let removed = removed.into_iter().filter_map(change).collect();
        let added = added.into_iter().filter_map(change).collect();
        Ok(Reloaded { changes, removed, added })
    }

    /// Restores the write protection that hosts have set on these namespaces earlier.
    fn protect_as_before(&self, added: &[ReadyNamespace]) -> Result<(), ExportError> {
        let mut files: BTreeMap<SubsystemIndex, ProtectionFile> = BTreeMap::new();
        for OwnedNamespace { subsystem, namespace } in added.iter().map(|one| &one.owned) {
            if !namespace.writable {
                continue;
            }
            let file = match files.entry(subsystem.index) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    entry.insert(ProtectionFile::open(&self.state_dir, &subsystem.nqn)?)
                }
            };
            if file.contains(namespace.uuid()) {
                namespace.protect(true);
            }
        }
        Ok(())
    }
}

/// Returns [`ReloadError::Written`] if a file has to be opened again and the old or new namespace
/// is writable.
fn refuse_written(
    removed: &[OwnedNamespace],
    wanted: &[WantedNamespace],
) -> Result<(), ReloadError> {
    let key = |one: &'_ OwnedNamespace| Some((one.namespace.file_key?, one.clone()));
    let held: BTreeMap<FileKey, OwnedNamespace> = removed.iter().filter_map(key).collect();
    for NamespaceConfig { name, origin, medium, writable, .. } in
        wanted.iter().map(|one| &one.candidate.namespace)
    {
        let found = medium.place().and_then(FileKey::of_place).and_then(|key| held.get(&key));
        let Some(OwnedNamespace { subsystem, namespace }) = found else { continue };
        if *writable || namespace.writable {
            return Err(ReloadError::Written {
                name: name.clone(),
                origin: origin.to_string(),
                nqn: subsystem.nqn.to_string(),
                nsid: namespace.nsid,
            });
        }
    }
    Ok(())
}

pub(super) fn namespace_changes<'a>(
    removed: impl Iterator<Item = &'a OwnedNamespace>,
    added: &[ReadyNamespace],
) -> Vec<ExportChange> {
    let place = |one: &OwnedNamespace| (one.subsystem.index, one.namespace.nsid);
    let taken: BTreeSet<_> = added.iter().map(|one| place(&one.owned)).collect();
    let removal = |one: &OwnedNamespace| {
        let (nsid, name) = (one.namespace.nsid, one.namespace.name().to_owned());
        ExportChange { nqn: one.subsystem.nqn, kind: ExportChangeKind::Removed { nsid, name } }
    };
    let addition = |ReadyNamespace { owned, replaces }: &ReadyNamespace| {
        let namespace = &owned.namespace;
        let (nsid, name) = (namespace.nsid, namespace.name().to_owned());
        let size_bytes = namespace.exact_bytes;
        let kind = match *replaces {
            Some(why) => ExportChangeKind::Replaced { nsid, name, size_bytes, why },
            None => ExportChangeKind::Added { nsid, name, size_bytes },
        };
        ExportChange { nqn: owned.subsystem.nqn, kind }
    };
    let only_removed = removed.filter(|one| !taken.contains(&place(one)));
    only_removed.map(removal).chain(added.iter().map(addition)).collect()
}

impl SubsystemPlan {
    /// Changes to subsystems, the ports that serve them, and their hosts.
    fn changes(&self) -> Vec<ExportChange> {
        let gone = self.gone.iter();
        let mut changes: Vec<_> = gone
            .map(|one| ExportChange { nqn: one.nqn, kind: ExportChangeKind::SubsystemRemoved })
            .collect();
        for WantedSubsystem { subsystem, is_new, hosts } in &self.wanted {
            let change = |kind| ExportChange { nqn: subsystem.nqn, kind };
            if *is_new {
                changes.push(change(ExportChangeKind::SubsystemAdded));
            } else {
                let hosts = subsystem.hosts().changes_to(hosts);
                changes.extend(hosts.into_iter().map(ExportChangeKind::Host).map(change));
            }
            for (port, served) in &self.ports {
                let wanted = served.iter().any(|one| Arc::ptr_eq(one, subsystem));
                match (port.serves(subsystem), wanted) {
                    (false, true) => {
                        changes.push(change(ExportChangeKind::ListenerAdded(port.address())));
                    }
                    (true, false) => {
                        changes.push(change(ExportChangeKind::ListenerRemoved(port.address())));
                    }
                    (true, true) | (false, false) => {}
                }
            }
        }
        changes
    }
}

impl Difference {
    /// Compares the exported namespaces of one subsystem with those that it shall have
    /// (`candidates`).
    pub(super) fn add<'a>(
        &mut self,
        subsystem: &Arc<Subsystem>,
        exported: impl Iterator<Item = &'a Arc<Namespace>>,
        candidates: &[Candidate],
    ) {
        let mut old: BTreeMap<Nsid, &Arc<Namespace>> =
            exported.map(|namespace| (namespace.nsid, namespace)).collect();
        for candidate in candidates {
            let held = old.get(&candidate.namespace.nsid);
            let replaces = held.map(|held| held.replacement(&candidate.namespace));
            if replaces == Some(None) {
                old.remove(&candidate.namespace.nsid);
                continue;
            }
            self.wanted.push(WantedNamespace {
                subsystem: Arc::clone(subsystem),
                candidate: candidate.clone(),
                replaces: replaces.flatten(),
            });
        }
        let owned = |namespace| OwnedNamespace::new(subsystem, namespace);
        self.removed.extend(old.into_values().map(owned));
    }
}

impl Namespace {
    /// Returns why the namespace has to be replaced to match a configuration; `None` if it can
    /// stay. A changed size counts only for read-only files, since writes may change the size of
    /// others.
    fn replacement(&self, config: &NamespaceConfig) -> Option<Replacement> {
        if !self.described().describes_same(config) {
            return Some(Replacement::Keys);
        }
        let place = self.config.medium.place()?;
        if FileKey::of_place(place) != self.file_key {
            return Some(Replacement::File);
        }
        let file = place.find().ok()?.metadata().ok().filter(fs::Metadata::is_file)?;
        (!self.writable && file.len() != self.exact_bytes).then_some(Replacement::Size)
    }
}
