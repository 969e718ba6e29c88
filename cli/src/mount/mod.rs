//! `feedrail mount`: namespaces as files.

mod background;
mod ended;
mod mount_log;
mod mount_options;
mod mount_source;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use feedrail_mount::mount;
use feedrail_target::daemon::ProcessLog;

use self::background::Background;
use self::ended::UnmountOnSignal;
use self::mount_options::MountWords;
use self::mount_source::MountArg;
use crate::options::Local;
use crate::session;

const EXAMPLES: &str = "\
Examples:
  feedrail mount nvmf://192.0.2.10/nqn.2026-01.org.example:shards /mnt/shards
  feedrail mount manifest.json /mnt/shards -o allow_other
  feedrail mount nvmf://192.0.2.10/nqn.2026-01.org.example:shards /mnt/shards --foreground
  feedrail unmount /mnt/shards

In /etc/fstab:
  nvmf://192.0.2.10/nqn.2026-01.org.example:shards /mnt/shards feedrail ro,allow_other,_netdev,nofail 0 0";

/// Mounts namespaces as the files of a read-only file system
///
/// The files are the namespaces of a subsystem by their names, or the shards of a manifest, which
/// are read from any of their replicas. The kernel's page cache keeps the data until a namespace
/// changes. Needs /dev/fuse, and root or fusermount3.
///
/// The command returns once the file system can be read; a background process serves it. After an
/// error, nothing is mounted.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mount {
    /// `nvmf://host[:port]/<nqn>`, or a manifest: a file, or the URL of its namespace
    #[arg(value_name = "SOURCE")]
    source: MountArg,
    /// Directory to mount at
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Options as mount(8) has them: ro, noexec, allow_other (others read), auto_unmount, and
    /// those below by their names with `_` for `-`, which replace all that are given beside
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<MountWords>,
    /// Stay in the foreground until it is unmounted, by Ctrl-C for example
    #[arg(long)]
    foreground: bool,
    /// Number of FUSE threads; each has one connection to each target, and 32 MiB of memory
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Readahead of the kernel in KiB; only root can set it
    #[arg(long, value_name = "KIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    read_ahead: u32,
    /// Append the log to this file. Without it the log goes to stderr, and that of a process in the
    /// background to systemd's journal or syslog, as feedrail-mount
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    #[command(flatten)]
    local: Local,
    /// Fake: check the arguments alone, as mount(8) asks of its helpers
    #[arg(short = 'f', hide = true)]
    fake: bool,
    /// Sloppy: pass over options that are not known, as mount(8) asks of its helpers
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    /// No entry in /etc/mtab, as mount(8) asks of its helpers
    #[arg(short = 'n', hide = true)]
    without_mtab: bool,
}

impl Mount {
    pub(crate) fn run(&self, verbose: u8) -> Result<()> {
        let words = MountWords::join(&self.options);
        let known = words.parse(self.sloppy)?;
        let local = known.local.as_ref().unwrap_or(&self.local);
        let about = || self.mountpoint.display().to_string();
        let found = std::fs::symlink_metadata(&self.mountpoint).with_context(about)?;
        ensure!(found.is_dir(), "{} is no folder", about());
        ensure!(
            !known.auto_unmount || known.allow_other,
            "auto_unmount needs allow_other, since fusermount3 unmounts as root"
        );
        if self.fake {
            return Ok(());
        }
        let background = match self.foreground {
            true => None,
            false => match Background::of_this_process() {
                Some(background) => Some(background),
                None => return background::start(),
            },
        };
        let file = known.log_file.as_deref().or(self.log_file.as_deref());
        let log = mount_log::start(verbose, file, background.is_some())?;
        let source = self.source.resolve(local)?;
        let options = feedrail_mount::MountOptions {
            allow_other: known.allow_other,
            auto_unmount: known.auto_unmount,
            no_exec: known.no_exec,
            threads: known.threads.unwrap_or(self.threads).into(),
            timeout: Duration::from_millis(local.timeout),
            read_ahead_bytes: u64::from(known.read_ahead.unwrap_or(self.read_ahead)) << 10,
        };
        let host = session::host_builder(local)?;
        // Before it is mounted, so that no signal finds it without.
        let signals = UnmountOnSignal::install()?;
        let mounted = mount(&source, &host, &self.mountpoint, &options)?;
        if let Some(background) = background {
            background.announce()?;
        }
        signals.wait(mounted)?;
        log.iter().for_each(ProcessLog::flush);
        Ok(())
    }
}
