//! The volume that the ranks save to, with the lease of this process.

use anyhow::{Context as _, Result};
use feedrail_checkpoint_store::{
    FormatOptions, ReplicaPlace, ReplicaSaves, ReplicatedStore, SaveEntry, StoreOptions,
    VolumeNamespace,
};
use feedrail_dataset::url::SourceUrl;
use feedrail_initiator::Host;

use super::figures::RankTimes;
use super::messages::{RankJob, entry_name};
use super::model::CheckpointShape;
use super::rank_group::RankGroup;
use crate::clock::now;
use crate::interrupt::Interrupt;
use crate::options::Local;
use crate::session;

/// Whether the volume is formatted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BenchFormat {
    /// The namespace is a volume.
    Keep,
    /// The namespace is formatted; `is_forced` destroys what it holds.
    Format { is_forced: bool },
}

pub(super) struct BenchVolume {
    urls: Vec<SourceUrl>,
    quorum: usize,
    host: Host,
    store: ReplicatedStore,
    shape: CheckpointShape,
    /// Name of the checkpoint that this run has saved last, while it is on the volume.
    saved: Option<String>,
}

impl BenchVolume {
    /// Connects to the namespaces, and takes the lease. Fails if a checkpoint does not fit.
    pub(super) fn open(
        urls: &[SourceUrl],
        quorum: Option<usize>,
        format: BenchFormat,
        shape: CheckpointShape,
        local: &Local,
    ) -> Result<Self> {
        let about = || urls.first().map(ToString::to_string).unwrap_or_default();
        let quorum = quorum.unwrap_or(urls.len() / 2 + 1);
        let host = session::host(local)?;
        let connect = |url| VolumeNamespace::connect(&host, url);
        let places: Vec<ReplicaPlace> = urls.iter().map(connect).collect();
        if let BenchFormat::Format { is_forced } = format {
            let options = FormatOptions { is_forced, ..FormatOptions::default() };
            ReplicatedStore::format(&places, &options).with_context(about)?;
        }
        let store = ReplicatedStore::open_writer(places, quorum, StoreOptions::default());
        let store = store.with_context(about)?;
        let lengths = (0..shape.ranks).map(|_| shape.rank_bytes);
        store.newest()?.check_space("bench", lengths).with_context(about)?;
        Ok(Self { urls: urls.to_vec(), quorum, host, store, shape, saved: None })
    }

    /// URLs of the replicas, for ranks.
    pub(super) fn urls(&self) -> Vec<String> {
        self.urls.iter().map(ToString::to_string).collect()
    }

    pub(super) fn quorum(&self) -> usize {
        self.quorum
    }

    pub(super) fn providers(&self) -> String {
        self.host.providers().join("; ")
    }

    /// Name of the checkpoint that was saved last.
    pub(super) fn saved(&self) -> Option<&str> {
        self.saved.as_deref()
    }

    /// Saves a checkpoint: reserves an entry for each rank, has them written, and commits. All of
    /// that is measured. If it fails, the ranks are ended, and nothing of it remains.
    pub(super) fn save(
        &mut self,
        name: &str,
        ranks: &mut RankGroup,
        interrupt: &Interrupt,
    ) -> Result<RankTimes> {
        self.remove()?;
        let began = now();
        let mut saves = self.store.begin_saves(name, 0, b"")?;
        let mut entries = Vec::new();
        let written = self.write(&mut saves, &mut entries, ranks, interrupt);
        let mut times = match written {
            Ok(times) => times,
            Err(error) => {
                // Space is free again once nobody writes to it.
                ranks.end();
                entries.into_iter().for_each(|entry| saves.withdraw(entry));
                return Err(error);
            }
        };
        saves.commit(&mut self.store)?;
        times.whole = began.elapsed().as_secs_f64();
        self.saved = Some(name.to_owned());
        Ok(times)
    }

    fn write(
        &mut self,
        saves: &mut ReplicaSaves,
        entries: &mut Vec<SaveEntry>,
        ranks: &mut RankGroup,
        interrupt: &Interrupt,
    ) -> Result<RankTimes> {
        let store = &mut self.store;
        let mut reservations = Vec::new();
        for rank in 0..self.shape.ranks {
            let entry = saves.add(store, &entry_name(rank), self.shape.rank_bytes)?;
            reservations.push(saves.reserve(store, entry)?);
            entries.push(entry);
        }
        ranks.begin(|rank| RankJob::SaveEntry { reservations: reservations[rank].clone() })?;
        let results = ranks.results(interrupt, &mut || Ok(store.renew_if_due()?))?;
        for (&entry, written) in entries.iter().zip(&results.written) {
            saves.accept(store, entry, written.as_ref().context("a rank gave no checksums")?)?;
        }
        Ok(results.times)
    }

    /// Deletes the checkpoint of this run.
    pub(super) fn remove(&mut self) -> Result<()> {
        if let Some(name) = self.saved.take() {
            self.store.delete(&name).with_context(|| format!("cannot remove {name:?}"))?;
        }
        Ok(())
    }

    /// Gives the lease back. Returns the name of the checkpoint that was kept.
    pub(super) fn close(self) -> Result<Option<String>> {
        self.store.close().context("cannot give the lease back; it ends by its time")?;
        Ok(self.saved)
    }
}
