//! A save on several replicas.

use std::fmt;

use crate::clock::unix_ms;
use crate::error::StoreError;
use crate::rank_writer::WrittenEntry;
use crate::replicated_store::{ReplicatedStore, common_refusal, concurrently};
use crate::reservation::EntryReservation;
use crate::save::{SaveEntry, StoreSave};
use crate::store::CheckpointStore;

/// A checkpoint in the making, on all replicas that have the newest ones. A replica that fails is
/// left out, as long as a quorum is left.
pub struct ReplicatedSave<'a> {
    store: &'a mut ReplicatedStore,
    saves: ReplicaSaves,
}

/// The saves of one checkpoint on the replicas of a store, for callers that cannot borrow the store
/// as long as [`ReplicatedSave`] does. Each call must get the store that began them.
#[derive(Debug)]
pub struct ReplicaSaves {
    /// The saves of the members, by index.
    saves: Vec<(usize, StoreSave)>,
    unit_bytes: u64,
}

impl ReplicatedStore {
    /// Begins a save on all replicas that have the newest checkpoints.
    ///
    /// # Errors
    /// As [`CheckpointStore::begin`](crate::CheckpointStore::begin), if fewer replicas than a
    /// quorum can do it.
    pub fn begin(
        &mut self,
        name: &str,
        step: u64,
        metadata: &[u8],
    ) -> Result<ReplicatedSave<'_>, StoreError> {
        let saves = self.begin_saves(name, step, metadata)?;
        Ok(ReplicatedSave { store: self, saves })
    }

    /// Begins a save as [`ReplicatedStore::begin`], without borrowing the store.
    ///
    /// # Errors
    /// As [`CheckpointStore::begin`](crate::CheckpointStore::begin), if fewer replicas than a
    /// quorum can do it.
    pub fn begin_saves(
        &mut self,
        name: &str,
        step: u64,
        metadata: &[u8],
    ) -> Result<ReplicaSaves, StoreError> {
        ReplicaSaves::begin(self, name, step, metadata)
    }
}

impl ReplicatedSave<'_> {
    /// Deletes all checkpoints but the last `count` with the commit; this one counts.
    pub fn keep(&mut self, count: usize) {
        self.saves.keep(count);
    }

    /// Returns the size of a unit; [`ReplicatedSave::write_at`] begins at multiples of it.
    pub fn unit_bytes(&self) -> u64 {
        self.saves.unit_bytes()
    }

    /// Adds an entry of a length, and reserves its space.
    ///
    /// # Errors
    /// As [`StoreSave::add`], if fewer replicas than a quorum can do it.
    pub fn add(&mut self, name: &str, length: u64) -> Result<SaveEntry, StoreError> {
        self.saves.add(self.store, name, length)
    }

    /// Writes bytes of an entry as [`StoreSave::write_at`].
    ///
    /// # Errors
    /// As [`StoreSave::write_at`], if fewer replicas than a quorum can do it.
    pub fn write_at(
        &mut self,
        entry: SaveEntry,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.saves.write_at(self.store, entry, offset, bytes)
    }

    /// Makes the checkpoint durable and visible on all replicas that are left.
    ///
    /// # Errors
    /// As [`StoreSave::commit`], if no replica has it; [`StoreError::Unknown`] if fewer than a
    /// quorum have it.
    pub fn commit(self) -> Result<(), StoreError> {
        self.saves.commit(self.store)
    }
}

impl ReplicaSaves {
    fn begin(
        store: &mut ReplicatedStore,
        name: &str,
        step: u64,
        metadata: &[u8],
    ) -> Result<Self, StoreError> {
        let created_ms = unix_ms();
        Self::begin_with(store, |one| one.begin_at(name, step, metadata.to_vec(), created_ms))
    }

    /// Begins a save on each current member.
    pub(crate) fn begin_with(
        store: &mut ReplicatedStore,
        begin: impl Fn(&CheckpointStore) -> Result<StoreSave, StoreError>,
    ) -> Result<Self, StoreError> {
        store.renew_replicas_if_due()?;
        let begun: Vec<_> = store.currents().map(|(index, one)| (index, begin(one))).collect();
        let mut saves = Vec::new();
        let mut results = Vec::new();
        for (index, save) in begun {
            results.push((index, save.map(|save| saves.push((index, save)))));
        }
        store.conclude(results)?;
        let unit_bytes = store.newest()?.unit_bytes();
        Ok(Self { saves, unit_bytes })
    }

    /// Deletes all checkpoints but the last `count` with the commit; this one counts.
    pub fn keep(&mut self, count: usize) {
        self.saves.iter_mut().for_each(|(_, save)| save.keep(count));
    }

    /// Returns the size of a unit; [`ReplicaSaves::write_at`] begins at multiples of it.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Adds an entry as [`ReplicatedSave::add`].
    ///
    /// # Errors
    /// As [`StoreSave::add`], if fewer replicas than a quorum can do it.
    pub fn add(
        &mut self,
        store: &mut ReplicatedStore,
        name: &str,
        length: u64,
    ) -> Result<SaveEntry, StoreError> {
        // The same on all of them, since all have the same entries.
        let mut added = None;
        self.on_each(store, |_, save| {
            added = Some(save.add(name, length)?);
            Ok(())
        })?;
        added.ok_or(StoreError::SaveLost)
    }

    /// Makes an entry longer on all of them as [`StoreSave::extend`].
    ///
    /// # Errors
    /// As [`StoreSave::extend`], if fewer replicas than a quorum can do it. If none has the space,
    /// the save can continue.
    pub fn extend(
        &mut self,
        store: &mut ReplicatedStore,
        entry: SaveEntry,
        by: u64,
    ) -> Result<(), StoreError> {
        self.on_each(store, |_, save| save.extend(entry, by))
    }

    /// Writes bytes of an entry as [`ReplicatedSave::write_at`].
    ///
    /// # Errors
    /// As [`StoreSave::write_at`], if fewer replicas than a quorum can do it.
    pub fn write_at(
        &mut self,
        store: &mut ReplicatedStore,
        entry: SaveEntry,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.on_each(store, |_, save| save.write_at(entry, offset, bytes))
    }

    /// Reserves an entry that other processes write: see [`StoreSave::reserve`]. The reservations
    /// have the order of the store's replicas, `None` for those without the save.
    ///
    /// # Errors
    /// As [`StoreSave::reserve`], for any of the replicas.
    pub fn reserve(
        &mut self,
        store: &ReplicatedStore,
        entry: SaveEntry,
    ) -> Result<Vec<Option<EntryReservation>>, StoreError> {
        let mut all: Vec<_> = store.members.iter().map(|_| None).collect();
        for (index, save) in &mut self.saves {
            all[*index] = Some(save.reserve(entry)?);
        }
        Ok(all)
    }

    /// Takes the checksums of an entry that another process wrote on these replicas, by index; the
    /// others are away from now on.
    ///
    /// # Errors
    /// As [`StoreSave::accept`], if fewer than a quorum have the entry.
    pub fn accept(
        &mut self,
        store: &mut ReplicatedStore,
        entry: SaveEntry,
        written: &WrittenEntry,
    ) -> Result<(), StoreError> {
        self.on_each(store, |index, save| {
            match written.replicas.iter().find(|(one, _)| *one == index) {
                Some((_, number)) => save.accept(entry, *number, &written.checksums),
                None => {
                    save.withdraw(entry);
                    Err(StoreError::NotWritten)
                }
            }
        })
    }

    /// Gives up an entry that another process was to write: see [`StoreSave::withdraw`].
    pub fn withdraw(&mut self, entry: SaveEntry) {
        self.saves.iter_mut().for_each(|(_, save)| save.withdraw(entry));
    }

    /// Calls a function for each save. Saves for which it fails are dropped, and their members are
    /// away, unless all of them refuse it.
    fn on_each(
        &mut self,
        store: &mut ReplicatedStore,
        mut call: impl FnMut(usize, &mut StoreSave) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut results = Vec::new();
        self.drop_lost(store);
        for (index, save) in &mut self.saves {
            // One that is lost takes its time to fail.
            store.renew_replicas_if_due()?;
            let result = call(*index, save);
            if let Err(error) = &result
                && store.is_replicated()
                && !error.is_refusal()
            {
                store.put_away(*index, error.clone());
            }
            results.push((*index, result));
        }
        self.settle(store, results)?;
        self.drop_lost(store);
        Ok(())
    }

    /// Drops the saves that failed, and decides whether a quorum is left.
    fn settle(
        &mut self,
        store: &mut ReplicatedStore,
        results: Vec<(usize, Result<(), StoreError>)>,
    ) -> Result<(), StoreError> {
        if results.iter().all(|(_, result)| result.is_ok()) {
            return Ok(());
        }
        if let Some(error) = common_refusal(&results) {
            return Err(error);
        }
        let failed: Vec<_> =
            results.iter().filter(|(_, one)| one.is_err()).map(|(index, _)| *index).collect();
        self.saves.retain(|(index, _)| !failed.contains(index));
        // Nothing was committed, so that the error is that of a replica.
        store.conclude(results).map_err(|error| match error {
            StoreError::Unknown(error) => *error,
            error => error,
        })
    }

    /// Drops the saves of members that are away.
    fn drop_lost(&mut self, store: &ReplicatedStore) {
        self.saves.retain(|(index, _)| store.currents().any(|(one, _)| one == *index));
    }

    /// Makes the checkpoint durable and visible as [`ReplicatedSave::commit`].
    ///
    /// # Errors
    /// As [`StoreSave::commit`], if no replica has it; [`StoreError::Unknown`] if fewer than a
    /// quorum have it.
    pub fn commit(mut self, store: &mut ReplicatedStore) -> Result<(), StoreError> {
        store.renew_replicas_if_due()?;
        self.drop_lost(store);
        store.check_quorum(self.saves.len())?;
        // Those that were repaired since the save began miss its commit.
        let has_save = |index| self.saves.iter().any(|(one, _)| *one == index);
        let others: Vec<_> = store.currents().map(|(index, _)| index).collect();
        for index in others.into_iter().filter(|index| !has_save(*index)) {
            store.put_away(index, StoreError::SaveLost);
        }
        let saves = std::mem::take(&mut self.saves);
        let results = concurrently(saves, StoreSave::commit);
        store.conclude(results)
    }
}

impl fmt::Debug for ReplicatedSave<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedSave").field("saves", &self.saves.saves).finish_non_exhaustive()
    }
}
