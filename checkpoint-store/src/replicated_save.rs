//! A save on several replicas.

use std::fmt;
use std::thread;

use crate::clock::unix_ms;
use crate::error::StoreError;
use crate::replicated_store::ReplicatedStore;
use crate::save::{SaveEntry, StoreSave};

/// A checkpoint in the making, on all replicas that have the newest ones. A replica that fails is
/// left out, as long as a quorum is left.
pub struct ReplicatedSave<'a> {
    store: &'a mut ReplicatedStore,
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
        self.renew_if_due()?;
        ReplicatedSave::begin(self, name, step, metadata)
    }
}

impl<'a> ReplicatedSave<'a> {
    fn begin(
        store: &'a mut ReplicatedStore,
        name: &str,
        step: u64,
        metadata: &[u8],
    ) -> Result<Self, StoreError> {
        let created_ms = unix_ms();
        let begun: Vec<_> = store
            .currents()
            .map(|(index, one)| (index, one.begin_at(name, step, metadata.to_vec(), created_ms)))
            .collect();
        let mut saves = Vec::new();
        let mut results = Vec::new();
        for (index, save) in begun {
            results.push((index, save.map(|save| saves.push((index, save)))));
        }
        store.conclude(results)?;
        let unit_bytes = store.newest()?.unit_bytes();
        Ok(Self { store, saves, unit_bytes })
    }

    /// Deletes all checkpoints but the last `count` with the commit; this one counts.
    pub fn keep(&mut self, count: usize) {
        self.saves.iter_mut().for_each(|(_, save)| save.keep(count));
    }

    /// Returns the size of a unit; [`ReplicatedSave::write_at`] begins at multiples of it.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Adds an entry of a length, and reserves its space.
    ///
    /// # Errors
    /// As [`StoreSave::add`], if fewer replicas than a quorum can do it.
    pub fn add(&mut self, name: &str, length: u64) -> Result<SaveEntry, StoreError> {
        let mut added = None;
        self.on_each(|save| {
            // The same on all of them, since all have the same entries.
            added = Some(save.add(name, length)?);
            Ok(())
        })?;
        added.ok_or(StoreError::SaveLost)
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
        self.on_each(|save| save.write_at(entry, offset, bytes))?;
        self.drop_lost();
        Ok(())
    }

    /// Calls a function for each save. Saves for which it fails are dropped, and their members are
    /// away.
    fn on_each(
        &mut self,
        mut call: impl FnMut(&mut StoreSave) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut results = Vec::new();
        for (index, save) in &mut self.saves {
            // One that is lost takes its time to fail.
            self.store.renew_if_due()?;
            let result = call(save);
            if let Err(error) = &result
                && self.store.is_replicated()
            {
                self.store.put_away(*index, error.clone());
            }
            results.push((*index, result));
        }
        if results.iter().all(|(_, result)| result.is_ok()) {
            return Ok(());
        }
        let failed: Vec<_> =
            results.iter().filter(|(_, one)| one.is_err()).map(|(index, _)| *index).collect();
        self.saves.retain(|(index, _)| !failed.contains(index));
        // Nothing was committed, so that the error is that of a replica.
        self.store.conclude(results).map_err(|error| match error {
            StoreError::Unknown(error) => *error,
            error => error,
        })
    }

    /// Drops the saves of members that are away.
    fn drop_lost(&mut self) {
        let store = &self.store;
        self.saves.retain(|(index, _)| store.currents().any(|(one, _)| one == *index));
    }

    /// Makes the checkpoint durable and visible on all replicas that are left.
    ///
    /// # Errors
    /// As [`StoreSave::commit`], if no replica has it; [`StoreError::Unknown`] if fewer than a
    /// quorum have it.
    pub fn commit(mut self) -> Result<(), StoreError> {
        self.store.renew_if_due()?;
        self.drop_lost();
        self.store.check_quorum(self.saves.len())?;
        let saves = std::mem::take(&mut self.saves);
        let results = thread::scope(|scope| {
            let spawn =
                |(index, save): (usize, StoreSave)| (index, scope.spawn(move || save.commit()));
            let threads: Vec<_> = saves.into_iter().map(spawn).collect();
            let join = |(index, thread): (usize, thread::ScopedJoinHandle<'_, _>)| {
                (index, thread.join().expect("commits do not panic"))
            };
            threads.into_iter().map(join).collect()
        });
        self.store.conclude(results)
    }
}

impl fmt::Debug for ReplicatedSave<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedSave").field("saves", &self.saves).finish_non_exhaustive()
    }
}
