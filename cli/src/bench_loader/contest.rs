//! Methods of reading that are compared: each takes one turn in every round.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use super::figures::LoaderFigures;
use super::local_files::{DirectReader, LocalFiles, MappedReader, PreadReader};
use super::local_target::LocalTarget;
use super::page_cache::{CacheState, Residency};
use super::pool::{PoolParts, PoolReader, RangeReader};
use super::reader::{BatchReader, NoReader};
use super::remote::{RemoteReader, RemoteShards};
use super::schedule::Schedule;
use super::turn::{self, LoopSettings};
use super::uring_reader::UringReader;
use crate::clock::cpu_time;
use crate::progress::Progress;

/// Method of reading local files, as a value of `--baselines`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum LocalMethod {
    /// Threads, each with pread
    Pread,
    /// Threads that copy from the mapped file
    Mmap,
    /// One thread with 64 reads in flight
    IoUring,
}

/// Source of the batches in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// Reads from the targets. The state is that of the page cache of a target on this machine,
    /// which shares it with the local readers; `None` if the target's cache is not known.
    Remote(Option<CacheState>),
    Local(LocalMethod, CacheState),
    /// The loop without any reads.
    Nothing,
}

/// Connections, local files and buffers that the readers of all turns are made from.
pub(super) struct Sources {
    pub(super) remote: RemoteShards,
    pub(super) local: Option<LocalFiles>,
    pub(super) target: Option<LocalTarget>,
    /// Threads of each rank for the pread and mmap readers.
    pub(super) read_threads: usize,
}

/// Measurements of one way to read, over all of its turns.
pub(super) struct Contestant {
    pub(super) way: ReadWay,
    pub(super) figures: LoaderFigures,
    /// Reason why this machine cannot read in this way, for example that it has no io_uring.
    pub(super) unavailable: Option<String>,
}

impl ReadWay {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Remote(_) => "feedrail",
            Self::Local(LocalMethod::Pread, _) => "pread",
            Self::Local(LocalMethod::Mmap, _) => "mmap",
            Self::Local(LocalMethod::IoUring, _) => "io_uring",
            Self::Nothing => "no reads",
        }
    }

    pub(super) fn cache(self) -> Option<CacheState> {
        match self {
            Self::Remote(cache) => cache,
            Self::Local(_, cache) => Some(cache),
            Self::Nothing => None,
        }
    }

    pub(super) fn is_local(self) -> bool {
        matches!(self, Self::Local(..))
    }

    /// Whether the combination can be measured: a mapped file cannot bypass the page cache.
    fn exists(self) -> bool {
        self != Self::Local(LocalMethod::Mmap, CacheState::Direct)
    }
}

impl Sources {
    /// Returns the ways to read that are measured, in the order of their turns in a round.
    pub(super) fn ways(&self, methods: &[LocalMethod], caches: &[CacheState]) -> Vec<ReadWay> {
        let shared = self.local.as_ref().zip(self.target);
        let is_shared = shared.is_some_and(|(files, target)| target.has_open(files));
        let is_cached = |cache: &&CacheState| **cache != CacheState::Direct;
        let cached = caches.iter().filter(is_cached).map(|&cache| ReadWay::Remote(Some(cache)));
        let mut ways: Vec<ReadWay> = cached.filter(|_| is_shared).collect();
        if ways.is_empty() {
            ways.push(ReadWay::Remote(None));
        }
        if self.local.is_some() {
            let all = methods
                .iter()
                .flat_map(|&method| caches.iter().map(move |&cache| ReadWay::Local(method, cache)));
            ways.extend(all.filter(|way| way.exists()));
        }
        ways.push(ReadWay::Nothing);
        ways
    }

    fn prepare(&self, way: ReadWay, settings: &LoopSettings<'_>) -> Result<Option<Residency>> {
        match (way.cache(), &self.local) {
            (Some(cache), Some(files)) => cache.prepare(files, settings.interrupt),
            _ => Ok(None),
        }
    }

    /// Creates one reader for each rank.
    fn open(
        &self,
        way: ReadWay,
        schedule: &Schedule,
        slots: usize,
    ) -> Result<Vec<Box<dyn BatchReader>>> {
        let slot_bytes = usize::try_from(schedule.largest_bytes())?.max(1);
        let open = |_| -> Result<Box<dyn BatchReader>> {
            Ok(match way {
                ReadWay::Nothing => Box::new(NoReader),
                ReadWay::Remote(_) => {
                    Box::new(RemoteReader::new(self.remote.clone(), slots, slot_bytes)?)
                }
                ReadWay::Local(method, cache) => {
                    let (readers, parts) = self.range_readers(method, cache)?;
                    Box::new(PoolReader::new(readers, parts, slots, slot_bytes)?)
                }
            })
        };
        schedule.ranks().map(open).collect()
    }

    /// Creates the readers of one rank, one for each thread.
    fn range_readers(
        &self,
        method: LocalMethod,
        cache: CacheState,
    ) -> Result<(Vec<Box<dyn RangeReader>>, PoolParts)> {
        let local = self.local.as_ref().context("no local files")?;
        let past_cache = cache == CacheState::Direct;
        let files: Arc<[File]> =
            if past_cache { local.open_direct()? } else { local.open()? }.into();
        let threads = 0..self.read_threads;
        let readers = match method {
            LocalMethod::IoUring => {
                let reader = UringReader::new(files, past_cache)?;
                return Ok((vec![Box::new(reader)], PoolParts::Batch));
            }
            LocalMethod::Mmap => {
                let maps = local.map()?;
                threads.map(|_| boxed(MappedReader(Arc::clone(&maps)))).collect()
            }
            LocalMethod::Pread if past_cache => threads
                .map(|_| DirectReader::new(Arc::clone(&files)).map(boxed))
                .collect::<Result<_>>()?,
            LocalMethod::Pread => threads.map(|_| boxed(PreadReader(Arc::clone(&files)))).collect(),
        };
        Ok((readers, PoolParts::Few))
    }

    fn target_cpu(&self, way: ReadWay) -> Option<core::time::Duration> {
        let is_remote = matches!(way, ReadWay::Remote(_));
        self.target.filter(|_| is_remote).and_then(|target| target.cpu_time().ok())
    }
}

fn boxed(reader: impl RangeReader + 'static) -> Box<dyn RangeReader> {
    Box::new(reader)
}

impl Contestant {
    pub(super) fn new(way: ReadWay) -> Self {
        Self { way, figures: LoaderFigures::default(), unavailable: None }
    }

    /// Runs one turn and adds its figures. If this machine cannot do the way to read, the reason is
    /// stored in `unavailable` and the turn is no error.
    pub(super) fn take_turn(
        &mut self,
        sources: &Sources,
        schedule: &Schedule,
        settings: LoopSettings<'_>,
        progress: &mut Progress,
    ) -> Result<()> {
        let found = sources.prepare(self.way, &settings)?;
        let readers = match sources.open(self.way, schedule, settings.prefetch + 1) {
            Ok(readers) => readers,
            Err(error) if self.way.is_local() => {
                self.unavailable = Some(format!("{error:#}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let settings = match self.way {
            ReadWay::Nothing => LoopSettings { verifier: None, ..settings },
            _ => settings,
        };
        let (cpu, target_cpu) = (cpu_time(), sources.target_cpu(self.way));
        let (ranks, ended) = turn::run(readers, schedule, settings, progress);
        let figures = &mut self.figures;
        figures.client_cpu += cpu_time() - cpu;
        let target_used = sources.target_cpu(self.way).zip(target_cpu);
        if let Some((after, before)) = target_used {
            *figures.target_cpu.get_or_insert_default() += after.saturating_sub(before);
        }
        figures.residency =
            self.way.cache().and_then(|cache| further(cache, figures.residency, found));
        figures.add_turn(&ranks);
        ended.with_context(|| self.way.name())
    }
}

/// Returns the residency that deviates more from the requested cache state.
fn further(
    cache: CacheState,
    one: Option<Residency>,
    other: Option<Residency>,
) -> Option<Residency> {
    let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
    let is_less = one.percent() < other.percent();
    Some(if is_less == (cache == CacheState::Warm) { one } else { other })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_that_was_prepared_worst_is_told() {
        let of = |resident_pages| Some(Residency { resident_pages, pages: 10 });
        assert_eq!(further(CacheState::Warm, of(10), of(9)), of(9));
        assert_eq!(further(CacheState::Cold, of(1), of(0)), of(1));
        assert_eq!(further(CacheState::Cold, None, of(0)), of(0));
        assert_eq!(further(CacheState::Cold, of(3), None), of(3));
    }
}
