//! Rounds of saves and loads, in which the volume and the writers of local files alternate.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::bench_volume::BenchVolume;
use super::beside::{BesideFiles, BesideFolder};
use super::cold_reads::ColdReads;
use super::figures::RankTimes;
use super::local_volume::LocalVolume;
use super::messages::{RankDirection, RankJob, RankSetup, entry_name};
use super::model::CheckpointShape;
use super::rank_group::{RankGroup, own_program};
use super::seeded_bytes::SeededBytes;
use super::target_counters::MetricsUrl;
use crate::interrupt::Interrupt;

/// Writer that takes part in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterKind {
    /// Ranks write to the volume.
    Feedrail,
    /// Ranks write files: write, fsync, rename, fsync of the folder.
    Files,
    /// Ranks write with torch's `FileSystemWriter`, which calls fsync.
    Torch,
}

#[derive(Clone, Debug)]
pub(super) struct WriterFigures {
    pub(super) kind: WriterKind,
    pub(super) saves: Vec<RankTimes>,
    pub(super) loads: Vec<RankTimes>,
}

/// Everything that the rounds need.
pub(super) struct BenchRounds<'a> {
    pub(super) shape: CheckpointShape,
    pub(super) seed: u64,
    pub(super) saves: u32,
    pub(super) loads: u32,
    /// Registered memory of each rank for bytes on their way.
    pub(super) staging_bytes: usize,
    pub(super) is_cache_dropped: bool,
    pub(super) volume: BenchVolume,
    /// Target of this run; `None` if the volume is elsewhere.
    pub(super) local: Option<&'a LocalVolume>,
    /// Counters of the targets, with the NQNs whose namespaces count.
    pub(super) counters: Vec<(MetricsUrl, String)>,
    pub(super) beside: Option<&'a BesideFolder>,
    pub(super) python: Option<PathBuf>,
    pub(super) interrupt: &'a Interrupt,
}

/// Figures of all writers so far.
pub(super) struct BenchFigures {
    pub(super) writers: Vec<WriterFigures>,
    pub(super) cold: ColdReads,
    /// Longest time in seconds in which a rank connected.
    pub(super) connect_seconds: f64,
}

/// Files and processes of the writers of local files.
struct BesideWriters {
    files: BesideFiles,
    torch: Option<(BesideFiles, RankGroup)>,
}

impl WriterKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Feedrail => "feedrail",
            Self::Files => "files",
            Self::Torch => "torch",
        }
    }
}

impl BenchFigures {
    fn of(&mut self, kind: WriterKind) -> &mut WriterFigures {
        let at = self.writers.iter().position(|one| one.kind == kind);
        let at = at.unwrap_or_else(|| {
            let (saves, loads) = (Vec::new(), Vec::new());
            self.writers.push(WriterFigures { kind, saves, loads });
            self.writers.len() - 1
        });
        &mut self.writers[at]
    }
}

impl BenchRounds<'_> {
    /// Runs all rounds. Figures of the rounds before an error are kept.
    pub(super) fn run(&mut self, figures: &mut BenchFigures) -> Result<()> {
        let kinds = self.kinds();
        kinds.iter().for_each(|kind| _ = figures.of(*kind));
        let mut beside = self.beside_writers()?;
        let mut ranks = self.own_ranks(RankDirection::Save, figures)?;
        for round in 0..self.saves {
            for kind in in_order(&kinds, round) {
                let times = self.save(kind, round, &mut ranks, beside.as_mut());
                figures.of(kind).saves.push(times.with_context(|| kind.name())?);
            }
        }
        drop(ranks);
        for round in 0..self.loads {
            // Other processes than those that saved, and than those of the loads before.
            let mut ranks = self.own_ranks(RankDirection::Load, figures)?;
            for kind in in_order(&kinds, round) {
                let times = self.load(kind, &mut ranks, beside.as_mut(), &mut figures.cold);
                figures.of(kind).loads.push(times.with_context(|| kind.name())?);
            }
        }
        Ok(())
    }

    fn kinds(&self) -> Vec<WriterKind> {
        let mut kinds = vec![WriterKind::Feedrail];
        kinds.extend(self.beside.map(|_| WriterKind::Files));
        kinds.extend(self.python.as_ref().map(|_| WriterKind::Torch));
        kinds
    }

    fn setups(&self, direction: RankDirection, urls: &[String]) -> Vec<RankSetup> {
        let setup = |rank| RankSetup {
            rank,
            ranks: self.shape.ranks,
            bytes: self.shape.rank_bytes,
            seed: SeededBytes::of_rank(self.seed, rank).seed(),
            direction,
            urls: urls.to_vec(),
            quorum: self.volume.quorum(),
            staging_bytes: self.staging_bytes,
        };
        (0..self.shape.ranks).map(setup).collect()
    }

    fn own_ranks(&self, direction: RankDirection, figures: &mut BenchFigures) -> Result<RankGroup> {
        let setups = self.setups(direction, &self.volume.urls());
        let ranks = RankGroup::start(&setups, own_program, self.interrupt)?;
        figures.connect_seconds = figures.connect_seconds.max(ranks.connect_seconds());
        Ok(ranks)
    }

    fn beside_writers(&self) -> Result<Option<BesideWriters>> {
        let Some(folder) = self.beside else { return Ok(None) };
        let torch = match &self.python {
            None => None,
            Some(python) => {
                let setups = self.setups(RankDirection::Save, &[]);
                let ranks = folder.torch_ranks(python, &setups, self.interrupt)?;
                Some((folder.files(WriterKind::Torch.name())?, ranks))
            }
        };
        Ok(Some(BesideWriters { files: folder.files(WriterKind::Files.name())?, torch }))
    }

    fn save(
        &mut self,
        kind: WriterKind,
        round: u32,
        ranks: &mut RankGroup,
        beside: Option<&mut BesideWriters>,
    ) -> Result<RankTimes> {
        match (kind, beside) {
            (WriterKind::Feedrail, _) => {
                let name = format!("bench-{:016x}-{round}", self.seed);
                self.volume.save(&name, ranks, self.interrupt)
            }
            (WriterKind::Files, Some(beside)) => beside.files.save(round, ranks, self.interrupt),
            (WriterKind::Torch, Some(BesideWriters { torch: Some((files, torch)), .. })) => {
                files.save(round, torch, self.interrupt)
            }
            _ => unreachable!("the writer takes part"),
        }
    }

    fn load(
        &self,
        kind: WriterKind,
        ranks: &mut RankGroup,
        beside: Option<&mut BesideWriters>,
        cold: &mut ColdReads,
    ) -> Result<RankTimes> {
        let (interrupt, is_dropped) = (self.interrupt, self.is_cache_dropped);
        match (kind, beside) {
            (WriterKind::Feedrail, _) => self.load_volume(ranks, cold),
            (WriterKind::Files, Some(BesideWriters { files, .. })) => {
                cold.prepare_files(is_dropped, || files.drop_cache())?;
                files.load(ranks, interrupt)
            }
            (WriterKind::Torch, Some(BesideWriters { torch: Some((files, torch)), .. })) => {
                cold.prepare_files(is_dropped, || files.drop_cache())?;
                files.load(torch, interrupt)
            }
            _ => unreachable!("the writer takes part"),
        }
    }

    fn load_volume(&self, ranks: &mut RankGroup, cold: &mut ColdReads) -> Result<RankTimes> {
        if let Some(local) = self.local.filter(|_| self.is_cache_dropped) {
            cold.note_residency(local.drop_cache()?);
        }
        let checkpoint = self.volume.saved().context("nothing was saved")?.to_owned();
        let before = self.target_bytes()?;
        ranks.begin(|rank| RankJob::LoadEntry {
            checkpoint: checkpoint.clone(),
            entry: entry_name(rank as u16),
        })?;
        let results = ranks.results(self.interrupt, &mut || Ok(()))?;
        ranks.compare(self.interrupt)?;
        let target_bytes = self.target_bytes()?.zip(before).map(|(now, before)| now - before);
        cold.note_load(results.received_bytes, target_bytes);
        Ok(results.times)
    }

    /// Bytes that the targets have read so far; `None` without counters.
    fn target_bytes(&self) -> Result<Option<u64>> {
        if self.counters.is_empty() {
            return Ok(None);
        }
        self.counters.iter().map(|(page, nqn)| page.read_bytes(nqn)).sum::<Result<u64>>().map(Some)
    }
}

/// Returns the writers, rotated by one place in each round.
fn in_order(kinds: &[WriterKind], round: u32) -> Vec<WriterKind> {
    let mut kinds = kinds.to_vec();
    let first = round as usize % kinds.len();
    kinds.rotate_left(first);
    kinds
}
