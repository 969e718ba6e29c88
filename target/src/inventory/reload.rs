//! How the exports follow a new configuration: all of it in one generation, or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, PoisonError};

use nvme_proto::{Nqn, Nsid};

use crate::backend::FileKey;
use crate::config::{Config, ConfigError, NamespaceConfig};
use crate::inventory::Registry;
use crate::inventory::allowed_host::{AllowedHosts, HostsChange};
use crate::inventory::change::NamespaceChange;
use crate::inventory::export::{
    Candidate, ExportError, Files, ListedNamespaces, OpenPurpose, distinct, index,
};
use crate::inventory::exports::PlacedNamespace;
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::ProtectionFile;
use crate::inventory::subsystem::Subsystem;

/// The cause for which the exports stay as they are: one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It differs in what can not change while the target runs.
    #[error("nothing is changed, since these are read at the start only: {}; restart the target", .0.join(", "))]
    AtStart(Vec<String>),
    /// Something can not be exported.
    #[error("nothing is changed: {0}")]
    Export(#[from] ExportError),
    /// A file that is exported differently from now on, and locked by the target as long as it is
    /// exported as before.
    #[error(
        "nothing is changed: {name} ({origin}) is exported as namespace {nsid} of {nqn} already, and hosts may write \
         it; take it out of the configuration, reload, and put it in again"
    )]
    Written {
        /// The name that the namespace would have.
        name: String,
        /// Where the configuration names it.
        origin: String,
        /// The subsystem that exports it now.
        nqn: String,
        /// The id that it has now.
        nsid: Nsid,
    },
}

/// Why a namespace takes the place of another one with its NSID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// Its keys are others.
    Keys,
    /// Another file has its path.
    File,
    /// Its file has another size.
    Size,
}

/// A change that follows from a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportChange {
    pub(crate) nqn: Nqn,
    pub(crate) kind: ExportChangeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExportChangeKind {
    Added { nsid: Nsid, name: String, size_bytes: u64 },
    Removed { nsid: Nsid, name: String },
    Replaced { nsid: Nsid, name: String, size_bytes: u64, why: Replacement },
    Host(HostsChange),
}

/// What a configuration changes, or would change.
#[derive(Debug, Default)]
pub(crate) struct Reloaded {
    pub(crate) changes: Vec<ExportChange>,
    /// The namespaces that are not exported any more.
    pub(crate) removed: Vec<NamespaceChange>,
    /// The namespaces that are, and were not.
    pub(crate) added: Vec<NamespaceChange>,
}

/// What is to change, with all that is needed for it at hand.
struct ReloadPlan {
    changes: Vec<ExportChange>,
    removed: Vec<PlacedNamespace>,
    added: Vec<PlacedNamespace>,
    /// All hosts of each subsystem.
    hosts: Vec<(Arc<Subsystem>, AllowedHosts)>,
    /// With NSIDs that are to be kept.
    listed: Vec<ListedNamespaces>,
    next_serial: u32,
}

/// The namespaces that a configuration changes.
#[derive(Default)]
struct Difference {
    removed: Vec<PlacedNamespace>,
    wanted: Vec<WantedNamespace>,
}

/// A namespace that is not exported yet.
struct WantedNamespace {
    subsystem: Arc<Subsystem>,
    candidate: Candidate,
    replaces: Option<Replacement>,
}

/// A namespace that has been opened.
struct ReadyNamespace {
    placed: PlacedNamespace,
    replaces: Option<Replacement>,
}

impl Registry {
    /// Exports what a configuration says, whose subsystems are those of the target. With
    /// [`OpenPurpose::Check`] nothing changes.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing changes then.
    pub(crate) fn reload(
        &self,
        config: &Config,
        purpose: OpenPurpose,
    ) -> Result<Reloaded, ReloadError> {
        let mut next_serial = self.next_serial.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = self.plan(config, *next_serial)?;
        match purpose {
            OpenPurpose::Check => Ok(Reloaded { changes: plan.changes, ..Reloaded::default() }),
            OpenPurpose::Serve => self.apply(plan, &mut next_serial),
        }
    }

    /// Opens all that is to be exported and is not yet.
    fn plan(&self, config: &Config, mut next_serial: u32) -> Result<ReloadPlan, ReloadError> {
        let exports = self.publication().exports();
        let mut difference = Difference::default();
        let mut hosts = Vec::new();
        let mut listed = Vec::new();
        for subsystem_config in &config.subsystems {
            let Some(subsystem) = self.subsystem(&subsystem_config.nqn) else {
                let new = format!("subsystem {} is new", subsystem_config.nqn);
                return Err(ReloadError::AtStart(vec![new]));
            };
            let mut namespaces = ListedNamespaces::of(config, subsystem_config)?;
            namespaces.keep(OpenPurpose::Check).map_err(ExportError::from)?;
            distinct(&namespaces.candidates)?;
            difference.add(subsystem, exports.list(subsystem.place), &namespaces.candidates);
            listed.push(namespaces);
            hosts.push((Arc::clone(subsystem), AllowedHosts::from(&subsystem_config.hosts)));
        }
        let Difference { removed, wanted } = difference;
        self.refuse_written(&removed, &wanted)?;
        let gone: BTreeSet<_> = removed.iter().map(|one| one.namespace.index).collect();
        let stay = exports.namespaces().filter(|one| !gone.contains(&one.index));
        let mut files = Files::of(stay, self.cache_room());
        let mut slots = exports.free_slots(&removed);
        let mut ready = Vec::with_capacity(wanted.len());
        for WantedNamespace { subsystem, candidate, replaces } in wanted {
            files.add(&candidate.namespace)?;
            let index = index(slots.next().unwrap_or(usize::MAX), next_serial)?;
            let Some(namespace) = candidate.open(index, self.cache_room())? else { continue };
            next_serial = next_serial.wrapping_add(1);
            let placed = PlacedNamespace { subsystem: subsystem.place, namespace };
            ready.push(ReadyNamespace { placed, replaces });
        }
        self.protect_as_before(&ready)?;
        let mut changes = self.namespace_changes(&removed, &ready);
        for (subsystem, wanted) in &hosts {
            let of_subsystem =
                |change| ExportChange { nqn: subsystem.nqn, kind: ExportChangeKind::Host(change) };
            changes.extend(subsystem.hosts().changes_to(wanted).into_iter().map(of_subsystem));
        }
        let added = ready.into_iter().map(|one| one.placed).collect();
        Ok(ReloadPlan { changes, removed, added, hosts, listed, next_serial })
    }

    /// Publishes what was opened. The caller keeps others from changing the exports since.
    fn apply(&self, plan: ReloadPlan, next_serial: &mut u32) -> Result<Reloaded, ReloadError> {
        let ReloadPlan { changes, removed, added, hosts, mut listed, .. } = plan;
        for namespaces in &mut listed {
            namespaces.keep(OpenPurpose::Serve).map_err(ExportError::from)?;
        }
        *next_serial = plan.next_serial;
        for (subsystem, wanted) in hosts {
            subsystem.set_hosts(wanted);
        }
        if removed.is_empty() && added.is_empty() {
            return Ok(Reloaded { changes, ..Reloaded::default() });
        }
        let settled = self.publication().settled();
        let next = self.publication().exports().changed(settled, &removed, &added);
        let generation = next.generation();
        self.publication().publish(next);
        let change = |PlacedNamespace { subsystem, namespace }| NamespaceChange {
            generation,
            subsystem: Arc::clone(&self.subsystems()[subsystem]),
            namespace,
        };
        let removed = removed.into_iter().map(change).collect();
        let added = added.into_iter().map(change).collect();
        Ok(Reloaded { changes, removed, added })
    }

    /// An error if a file would have to be opened again while hosts may write it.
    fn refuse_written(
        &self,
        removed: &[PlacedNamespace],
        wanted: &[WantedNamespace],
    ) -> Result<(), ReloadError> {
        let key = |one: &'_ PlacedNamespace| Some((one.namespace.file_key?, one.clone()));
        let held: BTreeMap<FileKey, PlacedNamespace> = removed.iter().filter_map(key).collect();
        for NamespaceConfig { name, origin, medium, writable, .. } in
            wanted.iter().map(|one| &one.candidate.namespace)
        {
            let found = medium.path().and_then(FileKey::of_path).and_then(|key| held.get(&key));
            let Some(PlacedNamespace { subsystem, namespace }) = found else { continue };
            if *writable || namespace.writable {
                return Err(ReloadError::Written {
                    name: name.clone(),
                    origin: origin.to_string(),
                    nqn: self.subsystems()[*subsystem].nqn.to_string(),
                    nsid: namespace.nsid,
                });
            }
        }
        Ok(())
    }

    /// Applies the write protections of earlier runs.
    fn protect_as_before(&self, added: &[ReadyNamespace]) -> Result<(), ExportError> {
        let mut files: BTreeMap<usize, ProtectionFile> = BTreeMap::new();
        for PlacedNamespace { subsystem, namespace } in added.iter().map(|one| &one.placed) {
            if !namespace.writable {
                continue;
            }
            if !files.contains_key(subsystem) {
                let nqn = &self.subsystems()[*subsystem].nqn;
                files.insert(*subsystem, ProtectionFile::open(&self.state_dir, nqn)?);
            }
            if files[subsystem].contains(namespace.uuid()) {
                namespace.protect(true);
            }
        }
        Ok(())
    }

    fn namespace_changes(
        &self,
        removed: &[PlacedNamespace],
        added: &[ReadyNamespace],
    ) -> Vec<ExportChange> {
        let place = |one: &PlacedNamespace| (one.subsystem, one.namespace.nsid);
        let taken: BTreeSet<_> = added.iter().map(|one| place(&one.placed)).collect();
        let nqn = |one: &PlacedNamespace| self.subsystems()[one.subsystem].nqn;
        let removal = |one: &PlacedNamespace| {
            let (nsid, name) = (one.namespace.nsid, one.namespace.name().to_owned());
            ExportChange { nqn: nqn(one), kind: ExportChangeKind::Removed { nsid, name } }
        };
        let addition = |ReadyNamespace { placed, replaces }: &ReadyNamespace| {
            let namespace = &placed.namespace;
            let (nsid, name) = (namespace.nsid, namespace.name().to_owned());
            let size_bytes = namespace.exact_bytes;
            let kind = match *replaces {
                Some(why) => ExportChangeKind::Replaced { nsid, name, size_bytes, why },
                None => ExportChangeKind::Added { nsid, name, size_bytes },
            };
            ExportChange { nqn: nqn(placed), kind }
        };
        let only_removed = removed.iter().filter(|one| !taken.contains(&place(one)));
        only_removed.map(removal).chain(added.iter().map(addition)).collect()
    }
}

impl Difference {
    /// Adds that of a subsystem.
    fn add(
        &mut self,
        subsystem: &Arc<Subsystem>,
        exported: &[Arc<Namespace>],
        candidates: &[Candidate],
    ) {
        let mut old: BTreeMap<Nsid, &Arc<Namespace>> =
            exported.iter().map(|namespace| (namespace.nsid, namespace)).collect();
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
        let placed = |namespace: &Arc<Namespace>| PlacedNamespace {
            subsystem: subsystem.place,
            namespace: Arc::clone(namespace),
        };
        self.removed.extend(old.into_values().map(placed));
    }
}

impl Namespace {
    /// Why another one has to take its place so that it is what a configuration says, if one has
    /// to. A file that hosts write may have another size than it had.
    fn replacement(&self, config: &NamespaceConfig) -> Option<Replacement> {
        if !self.config.describes_same(config) {
            return Some(Replacement::Keys);
        }
        let path = self.path()?;
        if FileKey::of_path(path) != self.file_key {
            return Some(Replacement::File);
        }
        let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        (!self.writable && file.len() != self.exact_bytes).then_some(Replacement::Size)
    }
}
