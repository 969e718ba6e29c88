//! Edits of the table of checkpoints, which a change consists of.

use super::save::{Save, SaveMode, extents};
use crate::allocation::Extent;
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::manifest::{Checkpoint, CheckpointEntry, CheckpointTable};
use crate::name::{CheckpointName, EntryName};
use crate::selection::EntrySelection;

/// New name of a checkpoint, of an entry, or of all entries of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    from: CheckpointName,
    to: CheckpointName,
    kind: RenameKind,
    is_replacing: bool,
    created_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RenameKind {
    Checkpoint,
    Entry(EntryName, EntryName),
    /// Beginnings of the names: empty, or with `/` at the end.
    Folder(String, String),
}

impl Rename {
    /// Renames what `from` selects in a checkpoint of the volume. The target may be in another
    /// checkpoint; a missing one is made, with this time of creation.
    ///
    /// An entry that has the new name is replaced if `is_replacing`. A checkpoint that has the new
    /// name of a checkpoint is never replaced.
    ///
    /// # Errors
    /// [`Error::RenameKind`] unless both are entries, or neither is.
    pub fn new(
        (from, selected): (CheckpointName, EntrySelection),
        (to, target): (CheckpointName, EntrySelection),
        is_replacing: bool,
        created_ms: u64,
    ) -> Result<Self, Error> {
        let kind = match (selected, target) {
            (EntrySelection::Whole, EntrySelection::Whole) => RenameKind::Checkpoint,
            (EntrySelection::Entry(from), EntrySelection::Entry(to)) => RenameKind::Entry(from, to),
            (EntrySelection::Entry(_), _) | (_, EntrySelection::Entry(_)) => {
                return Err(Error::RenameKind);
            }
            (from, to) => RenameKind::Folder(from.beginning(), to.beginning()),
        };
        Ok(Self { from, to, kind, is_replacing, created_ms })
    }

    /// Returns the new name of an entry, `None` if it is not renamed.
    fn new_name(&self, entry: &EntryName) -> Result<Option<EntryName>, Error> {
        Ok(match &self.kind {
            RenameKind::Checkpoint => None,
            RenameKind::Entry(from, to) => (entry == from).then(|| to.clone()),
            RenameKind::Folder(from, to) => match entry.as_str().strip_prefix(from) {
                Some(rest) => Some(EntryName::new(&format!("{to}{rest}"))?),
                None => None,
            },
        })
    }

    /// Returns what is renamed, for the error that it is missing.
    fn source(&self) -> String {
        match &self.kind {
            RenameKind::Checkpoint => self.from.as_str().to_owned(),
            RenameKind::Entry(from, _) => from.as_str().to_owned(),
            RenameKind::Folder(from, _) => from.clone(),
        }
    }
}

/// Edit of the table. Edits of one change are made one after the other.
#[derive(Clone, Debug)]
pub(super) enum Edit<'a> {
    /// Adds a checkpoint, or entries to one.
    Commit(&'a Save),
    /// Removes entries, and the checkpoint with the last of them.
    Remove(String, EntrySelection),
    Rename(Rename),
    /// Removes all checkpoints but the last ones.
    Keep(usize),
}

impl Edit<'_> {
    /// Whether the edit only removes, so that the table gets no longer.
    pub(super) fn is_removal(&self) -> bool {
        matches!(self, Self::Remove(..) | Self::Keep(_))
    }

    /// Edits the table, and adds the extents that are not used afterwards to `freed`.
    pub(super) fn apply(
        &self,
        table: &mut CheckpointTable,
        freed: &mut Vec<Extent>,
    ) -> Result<(), Error> {
        match self {
            Self::Commit(save) => commit(table, save, freed),
            Self::Remove(checkpoint, selection) => remove(table, checkpoint, selection, freed),
            Self::Rename(rename) => apply_rename(table, rename, freed),
            Self::Keep(count) => {
                let surplus = table.checkpoints.len().saturating_sub(*count);
                freed.extend(table.checkpoints.drain(..surplus).flat_map(|one| extents(&one)));
                Ok(())
            }
        }
    }
}

fn position(table: &CheckpointTable, name: &str) -> Result<usize, Error> {
    let place = table.checkpoints.iter().position(|one| one.name.as_str() == name);
    place.ok_or_else(|| Error::Missing(name.to_owned()))
}

fn commit(table: &mut CheckpointTable, save: &Save, freed: &mut Vec<Extent>) -> Result<(), Error> {
    let saved = save.whole()?;
    let present = table.checkpoints.iter_mut().find(|one| one.name == saved.name);
    match (present, save.mode()) {
        (None, _) => table.checkpoints.push(saved.clone()),
        (Some(_), SaveMode::Checkpoint) => {
            return Err(Error::Exists(saved.name.as_str().to_owned()));
        }
        (Some(present), SaveMode::Entries) => {
            for entry in &saved.entries {
                place(present, entry.clone(), true, freed)?;
            }
        }
    }
    Ok(())
}

/// Adds an entry to a checkpoint, instead of one of the same name if `is_replacing`.
fn place(
    checkpoint: &mut Checkpoint,
    entry: CheckpointEntry,
    is_replacing: bool,
    freed: &mut Vec<Extent>,
) -> Result<(), Error> {
    let is_replacing = is_replacing || deliberate_bugs::has(Bug::ReplaceUnasked);
    let name = entry.name.as_str();
    // A file system has no file and folder of one name.
    let clashes = |other: &&CheckpointEntry| {
        is_below(other.name.as_str(), name) || is_below(name, other.name.as_str())
    };
    if let Some(other) = checkpoint.entries.iter().find(clashes) {
        return Err(Error::Exists(other.name.as_str().to_owned()));
    }
    match checkpoint.entries.iter_mut().find(|other| other.name == entry.name) {
        Some(other) if is_replacing => {
            let replaced = std::mem::replace(other, entry);
            if !deliberate_bugs::has(Bug::LeakReplaced) {
                freed.extend(replaced.extents);
            }
        }
        Some(other) => return Err(Error::Exists(other.name.as_str().to_owned())),
        None => checkpoint.entries.push(entry),
    }
    Ok(())
}

/// Whether a name has those parts at its beginning, and more behind.
fn is_below(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn remove(
    table: &mut CheckpointTable,
    name: &str,
    selection: &EntrySelection,
    freed: &mut Vec<Extent>,
) -> Result<(), Error> {
    let index = position(table, name)?;
    if *selection == EntrySelection::Whole {
        freed.extend(extents(&table.checkpoints.remove(index)));
        return Ok(());
    }
    let entries = &mut table.checkpoints[index].entries;
    let removed: Vec<_> = entries.extract_if(.., |entry| selection.has(&entry.name)).collect();
    if removed.is_empty() {
        return Err(Error::Missing(selection.to_string()));
    }
    freed.extend(removed.into_iter().flat_map(|entry| entry.extents));
    remove_empty(table, name);
    Ok(())
}

/// Removes a checkpoint that has lost its last entry.
fn remove_empty(table: &mut CheckpointTable, name: &str) {
    let is_empty = |one: &Checkpoint| one.name.as_str() == name && one.entries.is_empty();
    if !deliberate_bugs::has(Bug::KeepEmpty) {
        table.checkpoints.retain(|one| !is_empty(one));
    }
}

fn apply_rename(
    table: &mut CheckpointTable,
    rename: &Rename,
    freed: &mut Vec<Extent>,
) -> Result<(), Error> {
    let index = position(table, rename.from.as_str())?;
    if rename.kind == RenameKind::Checkpoint {
        if rename.from != rename.to && table.checkpoint(rename.to.as_str()).is_some() {
            return Err(Error::Exists(rename.to.as_str().to_owned()));
        }
        table.checkpoints[index].name = rename.to.clone();
        return Ok(());
    }
    let (mut moved, mut left) = (Vec::new(), Vec::new());
    for mut entry in std::mem::take(&mut table.checkpoints[index].entries) {
        match rename.new_name(&entry.name)? {
            Some(name) => {
                entry.name = name;
                moved.push(entry);
            }
            None => left.push(entry),
        }
    }
    if moved.is_empty() {
        return Err(Error::Missing(rename.source()));
    }
    table.checkpoints[index].entries = left;
    let target = match position(table, rename.to.as_str()) {
        Ok(target) => target,
        Err(_) => {
            table.checkpoints.push(Checkpoint::empty(rename.to.clone(), rename.created_ms));
            table.checkpoints.len() - 1
        }
    };
    for entry in moved {
        place(&mut table.checkpoints[target], entry, rename.is_replacing, freed)?;
    }
    remove_empty(table, rename.from.as_str());
    Ok(())
}
