//! Writers of local files that are measured beside the volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::figures::RankTimes;
use super::messages::{RankJob, RankSetup};
use super::rank_group::RankGroup;
use crate::bench_loader::{Residency, drop_from_page_cache};
use crate::interrupt::Interrupt;

/// Program of the ranks that save with torch.
const TORCH_RANKS: &str = include_str!("torch_ranks.py");

/// Folder for checkpoints in local files, removed when it is dropped.
#[derive(Debug)]
pub(super) struct BesideFolder(TempDir);

/// Checkpoints of one writer. Only the last one is kept.
#[derive(Debug)]
pub(super) struct BesideFiles {
    /// Folder of the last checkpoint.
    last: Option<PathBuf>,
    parent: PathBuf,
}

impl BesideFolder {
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("feedrail-beside-").tempdir_in(parent);
        folder.map(Self).with_context(|| format!("cannot make a folder in {}", parent.display()))
    }

    /// Makes a folder for the checkpoints of a writer.
    pub(super) fn files(&self, writer: &str) -> Result<BesideFiles> {
        let parent = self.0.path().join(writer);
        fs::create_dir(&parent).with_context(|| format!("cannot make {}", parent.display()))?;
        Ok(BesideFiles { last: None, parent })
    }

    /// Starts ranks of torch. They meet at a file of this folder.
    pub(super) fn torch_ranks(
        &self,
        python: &Path,
        setups: &[RankSetup],
        interrupt: &Interrupt,
    ) -> Result<RankGroup> {
        let program = self.0.path().join("torch_ranks.py");
        fs::write(&program, TORCH_RANKS)
            .with_context(|| format!("cannot write {}", program.display()))?;
        let meeting = self.0.path().join("meeting");
        let command = || {
            let mut command = Command::new(python);
            command.arg(&program).arg(&meeting);
            Ok(command)
        };
        RankGroup::start(setups, command, interrupt)
            .with_context(|| format!("--python {}", python.display()))
    }

    pub(super) fn keep(self) -> PathBuf {
        self.0.keep()
    }
}

impl BesideFiles {
    /// Makes all ranks write a checkpoint, in a new folder. The one before is removed first.
    pub(super) fn save(
        &mut self,
        round: u32,
        ranks: &mut RankGroup,
        interrupt: &Interrupt,
    ) -> Result<RankTimes> {
        if let Some(last) = self.last.take() {
            fs::remove_dir_all(&last)
                .with_context(|| format!("cannot remove {}", last.display()))?;
        }
        let folder = self.parent.join(format!("save-{round}"));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        ranks.begin(|_| RankJob::SaveFile { folder: folder.clone() })?;
        let results = ranks.results(interrupt, &mut || Ok(()))?;
        self.last = Some(folder);
        Ok(results.times)
    }

    /// Makes all ranks read the last checkpoint.
    pub(super) fn load(&self, ranks: &mut RankGroup, interrupt: &Interrupt) -> Result<RankTimes> {
        let folder = self.last.clone().context("nothing was saved")?;
        ranks.begin(|_| RankJob::LoadFile { folder: folder.clone() })?;
        let results = ranks.results(interrupt, &mut || Ok(()))?;
        ranks.compare(interrupt)?;
        Ok(results.times)
    }

    /// Drops the files of the last checkpoint from the page cache.
    pub(super) fn drop_cache(&self) -> Result<Option<Residency>> {
        let folder = self.last.as_ref().context("nothing was saved")?;
        let about = || format!("cannot read {}", folder.display());
        let paths = fs::read_dir(folder).with_context(about)?;
        let paths = paths.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>();
        let paths = paths.with_context(about)?;
        ensure!(!paths.is_empty(), "{} is empty", folder.display());
        drop_from_page_cache(&paths)
    }
}
