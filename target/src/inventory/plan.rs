//! Plans an edit: opens the new media, so that nothing is left that can be refused.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::backend::FileKey;
use crate::inventory::Inventory;
use crate::inventory::edit::configuration::Refuse;
use crate::inventory::edit::{AlteredNamespace, Edit, StepKind, SubsystemStep, WantedNamespace};
use crate::inventory::error::ExportError;
use crate::inventory::index::SubsystemIndex;
use crate::inventory::namespace::Replacement;
use crate::inventory::open::{self, Decorate, Files};
use crate::inventory::open_warnings::OpenWarnings;
use crate::inventory::persist::protection::ProtectionFile;
use crate::inventory::published::OwnedNamespace;
use crate::inventory::report::{ExportChange, ExportChangeKind, UnopenedFile, change_of};

/// Edit with its namespaces opened.
pub(super) struct Plan<'a> {
    pub(super) edit: Edit<'a>,
    pub(super) added: Vec<OpenedNamespace>,
    /// Files of directories that cannot be opened, and are left out.
    pub(super) unopened: Vec<UnopenedFile>,
}

/// Namespace that has been opened but not published.
pub(super) struct OpenedNamespace {
    pub(super) owned: OwnedNamespace,
    replaces: Option<Replacement>,
}

impl<'a> Plan<'a> {
    /// Opens the namespaces of an edit. Errors go to `refuse`.
    pub(super) fn of(
        mut edit: Edit<'a>,
        decorate: Decorate<'_>,
        refuse: Refuse<'_>,
    ) -> Result<Self, ExportError> {
        let wanted = std::mem::take(&mut edit.wanted);
        let key = |one: &WantedNamespace| one.config.medium.place().and_then(FileKey::of_place);
        let keys: Vec<Option<FileKey>> = wanted.iter().map(key).collect();
        refuse_written(&edit.removed, &wanted, &keys)?;
        let same_files: BTreeSet<FileKey> = keys.iter().copied().flatten().collect();
        let gone: BTreeSet<_> = edit.removed.iter().map(|one| one.namespace.index).collect();
        let exports = Arc::clone(&edit.exports);
        let mut files = Files::of(exports.namespaces().filter(|one| {
            !gone.contains(&one.index) && one.file_key.is_some_and(|key| same_files.contains(&key))
        }));
        let mut slots = exports.free_slots(&edit.removed);
        let mut protections = Protections::default();
        let mut warnings = OpenWarnings::default();
        let (mut added, mut unopened) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (WantedNamespace { subsystem, config, replaces, bdev, opened }, key) in
            wanted.into_iter().zip(keys)
        {
            if let Err(error) = files.add(key, &config) {
                refuse(error)?;
                continue;
            }
            let opened = match opened {
                Some(opened) => Ok(opened),
                None => open::open_medium(&config, edit.inventory.cache_room()),
            };
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) if config.medium.directory().is_some() && !open::is_shortage(&error) => {
                    unopened.push(UnopenedFile { subsystem, config, error });
                    continue;
                }
                Err(error) => {
                    refuse(ExportError::cannot_open(&config, error))?;
                    continue;
                }
            };
            warnings.note(&config, &opened);
            let slot = slots.next().unwrap_or(usize::MAX);
            let index = open::index(slot, edit.serials.namespace)?;
            edit.serials.namespace = edit.serials.namespace.wrapping_add(1);
            let takes_over = replaces.is_some() || subsystem.had_namespace(config.nsid);
            let namespace = open::make(index, config, opened, decorate);
            let namespace = namespace.of_bdev(bdev).taking_over(takes_over);
            let owned = OwnedNamespace::new(&subsystem, &Arc::new(namespace));
            if let Err(error) = protections.restore(edit.inventory, &owned) {
                refuse(error)?;
            }
            added.push(OpenedNamespace { owned, replaces });
        }
        warnings.log_all();
        Ok(Self { edit, added, unopened })
    }

    /// Changes that the plan makes: those of subsystems, then removed and added namespaces.
    pub(super) fn changes(&self) -> Vec<ExportChange> {
        let ends = |step: &&SubsystemStep| matches!(step.kind, StepKind::Remove);
        let ended = self.edit.steps.iter().filter(ends).map(|step| step.subsystem.index);
        let ended: BTreeSet<_> = ended.collect();
        let stays = |one: &&OwnedNamespace| !ended.contains(&one.subsystem.index);
        let place = |one: &OwnedNamespace| (one.subsystem.index, one.namespace.nsid);
        let taken: BTreeSet<_> = self.added.iter().map(|one| place(&one.owned)).collect();
        let only_removed = self.edit.removed.iter().filter(|one| !taken.contains(&place(one)));
        let removal = |one: &OwnedNamespace| {
            let (nsid, name) = (one.namespace.nsid.0, one.namespace.name().to_owned());
            change_of(&one.subsystem, ExportChangeKind::RemoveNs { nsid, name })
        };
        let addition = |OpenedNamespace { owned, replaces }: &OpenedNamespace| {
            let namespace = &owned.namespace;
            let (nsid, name) = (namespace.nsid.0, namespace.name().to_owned());
            let size_bytes = namespace.exact_bytes;
            change_of(
                &owned.subsystem,
                match *replaces {
                    Some(reason) => ExportChangeKind::ReplaceNs { nsid, name, size_bytes, reason },
                    None => ExportChangeKind::AddNs { nsid, name, size_bytes },
                },
            )
        };
        let limited = self.edit.altered.iter().filter_map(|AlteredNamespace { old, new }| {
            let limits = new.namespace.config.qos;
            let (nsid, name) = (new.namespace.nsid.0, new.namespace.name().to_owned());
            (old.namespace.config.qos != limits).then(|| {
                change_of(&new.subsystem, ExportChangeKind::LimitNs { nsid, name, limits })
            })
        });
        let mut changes = self.edit.subsystem_changes();
        changes.extend(only_removed.filter(stays).map(removal));
        changes.extend(self.added.iter().map(addition));
        changes.extend(limited);
        changes
    }
}

/// Returns [`ExportError::Written`] if a file has to be opened again and the old or new namespace
/// is writable: the old one holds a lock on it until its operations have ended.
fn refuse_written(
    removed: &[OwnedNamespace],
    wanted: &[WantedNamespace],
    keys: &[Option<FileKey>],
) -> Result<(), ExportError> {
    let key = |one: &'_ OwnedNamespace| Some((one.namespace.file_key?, one.clone()));
    let held: BTreeMap<FileKey, OwnedNamespace> = removed.iter().filter_map(key).collect();
    for (WantedNamespace { config, .. }, key) in wanted.iter().zip(keys) {
        let found = key.and_then(|key| held.get(&key));
        let Some(OwnedNamespace { subsystem, namespace }) = found else { continue };
        if config.writable || namespace.writable {
            return Err(ExportError::Written {
                name: config.name.to_string(),
                origin: config.origin.clone(),
                nqn: subsystem.nqn.to_string(),
                nsid: namespace.nsid,
            });
        }
    }
    Ok(())
}

/// State files with the write protections that hosts have set earlier.
#[derive(Default)]
struct Protections(BTreeMap<SubsystemIndex, ProtectionFile>);

impl Protections {
    /// Restores the write protection of a namespace.
    fn restore(
        &mut self,
        inventory: &Inventory,
        OwnedNamespace { subsystem, namespace }: &OwnedNamespace,
    ) -> Result<(), ExportError> {
        // Hosts can protect only writable namespaces; a read-only target needs no state file.
        if !namespace.writable {
            return Ok(());
        }
        let file = match self.0.entry(subsystem.index) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let opened = ProtectionFile::open(&inventory.state_dir, &subsystem.nqn);
                let nothing = || ProtectionFile::nothing(&inventory.state_dir, &subsystem.nqn);
                let (file, failed) = match opened {
                    Ok(file) => (file, Ok(())),
                    // The error of a file is told once.
                    Err(error) => (nothing(), Err(error)),
                };
                let file = entry.insert(file);
                failed?;
                file
            }
        };
        if file.contains(namespace.uuid()) {
            namespace.protect(true);
        }
        Ok(())
    }
}
