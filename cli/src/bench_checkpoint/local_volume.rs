//! A target of this run on this machine, which serves a file as the volume.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use feedrail_dataset::url::SourceUrl;
use tempfile::TempDir;

use super::model::CheckpointShape;
use super::target_counters::MetricsUrl;
use crate::bench_loader::{Residency, drop_from_page_cache};
use crate::interrupt::Interrupt;
use crate::options::ProviderArg;
use crate::target_child::{TargetChild, free_loopback_address};

/// Size of a unit of a volume.
const UNIT_BYTES: u64 = 1 << 20;
/// Room for superblocks and manifests.
const SPARE_BYTES: u64 = 64 << 20;

/// File of a volume, and the process that serves it. Both end when this is dropped.
#[derive(Debug)]
pub(super) struct LocalVolume {
    target: TargetChild,
    url: SourceUrl,
    folder: TempDir,
}

impl LocalVolume {
    /// Makes a sparse file in a new folder below `parent`, and serves it.
    pub(super) fn start(
        parent: &Path,
        shape: CheckpointShape,
        provider: ProviderArg,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let about = || format!("cannot make a volume in {}", parent.display());
        let folder = tempfile::Builder::new().prefix("feedrail-bench-").tempdir_in(parent);
        let folder = folder.with_context(about)?;
        let image = image(folder.path());
        let file = File::create_new(&image).with_context(about)?;
        file.set_len(image_bytes(shape)).with_context(about)?;
        let address = free_loopback_address().to_string();
        let options = ["--listen", &address, "--provider", provider.name()];
        let more = ["--metrics", "127.0.0.1:0", "--writable"];
        let words = options.into_iter().chain(more).map(OsString::from);
        let target = TargetChild::start(words.chain([image.into()]), 0, interrupt)?;
        let listening = target.listening().first().context("the target does not listen")?;
        let url = format!("nvmf://{}/{}", listening.address, listening.nqn);
        let url = url.parse().with_context(|| url.clone())?;
        Ok(Self { target, url, folder })
    }

    pub(super) fn url(&self) -> &SourceUrl {
        &self.url
    }

    /// Returns the address of the target's counters.
    pub(super) fn metrics(&self) -> Option<MetricsUrl> {
        let address = self.target.metrics()?;
        format!("http://{address}/metrics").parse().ok()
    }

    /// Drops the file from the page cache; `None` if the kernel does not report what stayed.
    pub(super) fn drop_cache(&self) -> Result<Option<Residency>> {
        drop_from_page_cache(&[image(self.folder.path())])
    }

    /// Stops the target, and keeps the file. Returns its path.
    pub(super) fn keep(self) -> Result<PathBuf> {
        let Self { target, folder, .. } = self;
        target.stop()?;
        Ok(image(&folder.keep()))
    }
}

fn image(folder: &Path) -> PathBuf {
    folder.join("volume.img")
}

/// Bytes for one checkpoint.
fn image_bytes(shape: CheckpointShape) -> u64 {
    let rank_bytes = shape.rank_bytes.next_multiple_of(UNIT_BYTES);
    rank_bytes.saturating_mul(shape.ranks.into()).saturating_add(SPARE_BYTES)
}
