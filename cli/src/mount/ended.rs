//! The end of a mount: by a signal, or by somebody who unmounts it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use feedrail_mount::Mounted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long files that are open may be read on, once a signal has unmounted the file system.
const LINGER: Duration = Duration::from_millis(500);
/// How long a signal waits for a mount in progress: a process that ends once the kernel has mounted
/// would leave a file system without its daemon.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// Progress of a mount, as far as signals go.
#[derive(Debug)]
enum Progress {
    Starting,
    /// A signal came before it was mounted.
    Stopping,
    Mounted(Arc<Mounted>),
}

/// Unmounts a file system on SIGINT, SIGTERM and SIGHUP. A second signal ends the process.
#[derive(Debug)]
pub(super) struct UnmountOnSignal {
    progress: Arc<Mutex<Progress>>,
}

impl UnmountOnSignal {
    pub(super) fn install() -> Result<Self> {
        let progress = Arc::new(Mutex::new(Progress::Starting));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let seen = Arc::clone(&progress);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let before = std::mem::replace(&mut *lock(&seen), Progress::Stopping);
                match before {
                    Progress::Starting => exit_after(START_TIMEOUT, 128 + signal),
                    Progress::Stopping => std::process::exit(128 + signal),
                    Progress::Mounted(mounted) => end(&mounted),
                }
            }
        })?;
        Ok(Self { progress })
    }

    /// Returns when it is unmounted.
    pub(super) fn wait(self, mounted: Mounted) -> Result<()> {
        let mounted = Arc::new(mounted);
        let mut progress = lock(&self.progress);
        match *progress {
            Progress::Stopping => end(&mounted),
            _ => *progress = Progress::Mounted(Arc::clone(&mounted)),
        }
        drop(progress);
        mounted.wait();
        Ok(())
    }
}

/// Unmounts, and ends the process soon.
fn end(mounted: &Mounted) {
    if let Err(error) = mounted.unmount() {
        tracing::error!(%error, "cannot unmount {}", mounted.place().display());
    }
    exit_after(LINGER, 0);
}

fn exit_after(time: Duration, status: i32) {
    thread::spawn(move || {
        thread::park_timeout(time);
        std::process::exit(status);
    });
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
