//! `feedrail unmount`: unmounts a file system that `feedrail mount` mounted.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_mount::UnmountMode;

const EXAMPLES: &str = "\
Examples:
  feedrail unmount /mnt/shards
  feedrail unmount --lazy /mnt/shards";

/// Unmounts what `feedrail mount` has mounted
///
/// Works whether or not the target can be reached, and where the daemon of the file system is gone.
/// Without --lazy or --force it is refused while files are open.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Unmount {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Even if it is in use: nobody finds it from now on, and it ends with its last user
    #[arg(long, conflicts_with = "force")]
    lazy: bool,
    /// Even if it is in use: reads in progress and open files fail
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
