//! Mounts: the file system at its place, and the threads that serve it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use feedrail_initiator::{Error, Host, HostBuilder};
use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Session, SessionACL};

use crate::answers::Ownership;
use crate::device::FuseDevice;
use crate::lane::{MountLane, Shared};
use crate::mailbox::InterruptMailbox;
use crate::place::{self, UnmountMode};
use crate::protocol::MAX_TRANSFER_BYTES;
use crate::source::{Catalog, MountSource};
use crate::tree::SharedTree;
use crate::watch::Watch;

/// Requests of the kernel's own, such as read-ahead, that are in progress at a time.
const MAX_BACKGROUND: u16 = 64;
/// How long a mount waits for further targets once one has answered.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Whether other users may read it.
    pub allow_other: bool,
    /// Whether `fusermount3` unmounts it when this process ends, in whatever way. Needs
    /// `allow_other`.
    pub auto_unmount: bool,
    /// Whether its files are no programs that can be run.
    pub no_exec: bool,
    /// Threads that answer the kernel, at least 1. Each has a connection to each target, and
    /// 32 MiB of registered memory.
    pub threads: usize,
    /// How long reads wait for a target that is away, before they fail: no longer than the loss
    /// timeout of the hosts.
    pub timeout: Duration,
    /// Bytes that the kernel reads ahead of sequential readers, where it may be set (as root).
    pub read_ahead_bytes: u64,
}

impl Default for MountOptions {
    /// Two threads, 10 s and 2 MiB of read-ahead; others may not read.
    fn default() -> Self {
        Self {
            allow_other: false,
            auto_unmount: false,
            no_exec: false,
            threads: 2,
            timeout: Duration::from_secs(10),
            read_ahead_bytes: 2 << 20,
        }
    }
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The source cannot be reached or used.
    #[error(transparent)]
    Source(#[from] Error),
    /// The kernel, or `fusermount3`, does not mount.
    #[error("cannot mount at {}: {}", place.display(), refusal(error))]
    Mount {
        /// Where it was to be.
        place: PathBuf,
        /// Refusal of the kernel or of `fusermount3`.
        error: io::Error,
    },
    /// The system has no memory, descriptors or threads.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The text of a refusal; `fusermount3` says what is to be done by itself.
fn refusal(error: &io::Error) -> String {
    let text = error.to_string().trim().replace('\n', "; ");
    let hint = match error.raw_os_error() {
        Some(libc::ENOTCONN) => ": the daemon of what is mounted there is gone; unmount it",
        Some(libc::ENOENT) => ": there is no such folder, no /dev/fuse, or no fusermount3",
        Some(libc::EACCES | libc::EPERM) => ": it takes root, or fusermount3 and one's own folder",
        _ => "",
    };
    text + hint
}

/// A file system that is mounted, until this is dropped. Files that are open then can be read for
/// as long as the process lives.
#[derive(Debug)]
pub struct Mounted {
    place: PathBuf,
    lanes: Mutex<Vec<JoinHandle<()>>>,
    /// Never dropped: that would unmount whatever is at the place by then.
    session: ManuallyDrop<Session<Handshake>>,
}

/// Mounts a source below a folder, with hosts of this kind. Returns when the file system can be
/// read: a target has answered, and the kernel.
///
/// # Errors
/// No target can be reached, or nothing can be mounted there.
pub fn mount(
    source: &MountSource,
    host: &HostBuilder,
    place: &Path,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    let threads = options.threads.max(1);
    let mailboxes = (0..threads).map(|_| InterruptMailbox::new()).collect::<io::Result<_>>()?;
    let targets = source.targets.clone();
    let (tree, ownership) = (SharedTree::new(), ownership(source));
    let timeout = options.timeout;
    let shared = Arc::new(Shared { tree, ownership, mailboxes, targets, timeout });
    let watch = Watch::new(host.clone().build()?, Arc::clone(&shared), Catalog::new(source));
    let watch = Arc::new(watch);
    follow(&watch, source.targets.len())?;
    // Before anything is mounted, so that what cannot be had is an error here.
    let hosts = (0..threads).map(|_| host.clone().polled().build());
    let hosts: Vec<Host> = hosts.collect::<Result<_, _>>()?;
    let mount = || Session::new(Handshake, place, &config(source, options));
    let session = mount().map_err(|error| MountError::Mount { place: place.to_owned(), error })?;
    watch.notify(session.notifier());
    let mounted = Mounted {
        place: std::path::absolute(place)?,
        lanes: Mutex::default(),
        session: ManuallyDrop::new(session),
    };
    mounted.start_lanes(hosts, &shared)?;
    place::set_read_ahead(&mounted.place, options.read_ahead_bytes);
    tracing::info!(place = %mounted.place.display(), "mounted {}", source.name);
    Ok(mounted)
}

/// Starts a watcher for each target, and waits until they have listed what they have, or have
/// failed.
fn follow(watch: &Arc<Watch>, targets: usize) -> Result<(), MountError> {
    let (sender, listed) = mpsc::channel();
    for target in 0..targets {
        let (watch, sender) = (Arc::clone(watch), sender.clone());
        let name = format!("watch-{target}");
        thread::Builder::new().name(name).spawn(move || watch.follow(target, sender))?;
    }
    drop(sender);
    let (mut answered, mut failure) = (0, None);
    for _ in 0..targets {
        // The first takes as long as it takes to connect.
        let next = match answered {
            0 => listed.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ => listed.recv_timeout(STRAGGLERS),
        };
        match next {
            Ok(Ok(())) => answered += 1,
            Ok(Err(error)) => failure = Some(error),
            Err(_) => break,
        }
    }
    match failure {
        Some(error) if answered == 0 => return Err(error.into()),
        _ => {}
    }
    for name in watch.missing() {
        tracing::warn!(name, "no target has this shard");
    }
    Ok(())
}

fn ownership(source: &MountSource) -> Ownership {
    #[expect(clippy::disallowed_methods, reason = "the time of the mount is that of its folders")]
    let now = SystemTime::now();
    Ownership {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        mounted: now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        targets: source.targets.iter().map(|target| target.url.clone()).collect(),
    }
}

fn config(source: &MountSource, options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoAtime,
        // A comma would end the option.
        MountOption::FSName(source.name.replace(',', "_")),
        // As the kernel takes it: `fuse.feedrail` is the type that is shown.
        MountOption::CUSTOM("subtype=feedrail".to_owned()),
    ];
    if options.no_exec {
        config.mount_options.push(MountOption::NoExec);
    }
    if options.auto_unmount {
        config.mount_options.push(MountOption::AutoUnmount);
    }
    if options.allow_other {
        config.acl = SessionACL::All;
    }
    config
}

impl Mounted {
    fn start_lanes(&self, hosts: Vec<Host>, shared: &Arc<Shared>) -> Result<(), MountError> {
        let device = FuseDevice::new(self.session.as_fd())?;
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, host) in hosts.into_iter().enumerate() {
            let lane = MountLane::new(number, device.another()?, host, Arc::clone(shared))?;
            let run = move || {
                if let Err(error) = lane.run() {
                    tracing::error!(%error, "a thread of the mount ended");
                }
            };
            let name = format!("lane-{number}");
            lanes.push(thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(())
    }

    /// Where it is mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Waits until it is unmounted, by [`Mounted::unmount`] or by others.
    pub fn wait(&self) {
        loop {
            let lane = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match lane {
                // One that panicked has said so.
                Some(lane) => drop(lane.join()),
                None => break,
            }
        }
        tracing::info!(place = %self.place.display(), "unmounted");
    }

    /// Unmounts it. Files that are open stay so for as long as this process lives.
    ///
    /// # Errors
    /// The refusal of the kernel or of `fusermount3`.
    pub fn unmount(&self) -> io::Result<()> {
        place::unmount(&self.place, UnmountMode::Lazy)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let lanes = self.lanes.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Lanes end when it is unmounted.
        if lanes.iter().any(|lane| !lane.is_finished())
            && let Err(error) = self.unmount()
        {
            tracing::warn!(%error, "cannot unmount");
        }
    }
}

/// The first words with the kernel; the lanes speak all others.
#[derive(Debug)]
struct Handshake;

impl Filesystem for Handshake {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
        for flag in wanted.iter() {
            // One that an older kernel does not have costs speed only.
            let _ = config.add_capabilities(flag);
        }
        // The size of reads follows from that of writes, though none come.
        let _ = config.set_max_write(MAX_TRANSFER_BYTES as u32);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }
}
