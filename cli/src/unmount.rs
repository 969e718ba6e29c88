//! `feedrail unmount`: unmounts a file system that `feedrail mount` mounted.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_mount::UnmountMode;

const EXAMPLES: &str = "\
Examples:
  feedrail unmount /mnt/shards
  feedrail unmount --lazy /mnt/shards";

/// Unmounts a file system that `feedrail mount` has mounted
///
/// Works even if the target cannot be reached or the file system's daemon has ended. Without --lazy
/// or --force, it fails while files are open.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Unmount {
    /// Mount point of the file system
    mountpoint: PathBuf,
    /// Detach the mount point now although it is in use; the file system ends once no file is open
    #[arg(long, conflicts_with = "force")]
    lazy: bool,
    /// Unmount although it is in use: running reads and open files fail with an error
    #[arg(long)]
    force: bool,
}

impl Unmount {
    pub(crate) fn run(&self) -> Result<()> {
        let mode = match (self.lazy, self.force) {
            (true, _) => UnmountMode::Lazy,
            (_, true) => UnmountMode::Force,
            _ => UnmountMode::Idle,
        };
        feedrail_mount::unmount(&self.mountpoint, mode)
            .with_context(|| format!("cannot unmount {}", self.mountpoint.display()))
    }
}
