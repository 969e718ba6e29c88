//! The end of a mount: by a signal, or by somebody who unmounts it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use feedrail_mount::Mounted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long files that are open may be read on, once a signal has unmounted the file system.
const LINGER: Duration = Duration::from_millis(500);

/// Unmounts a file system on SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub(super) struct UnmountOnSignal {
    mounted: Arc<Mutex<Option<Arc<Mounted>>>>,
}

impl UnmountOnSignal {
    pub(super) fn install() -> Result<Self> {
        let mounted = Arc::new(Mutex::new(None::<Arc<Mounted>>));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let seen = Arc::clone(&mounted);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let mounted = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
                // A second signal, or one before it is mounted, ends the process.
                let Some(mounted) = mounted else { std::process::exit(128 + signal) };
                if let Err(error) = mounted.unmount() {
                    tracing::error!(%error, "cannot unmount {}", mounted.place().display());
                }
                thread::spawn(|| {
                    thread::park_timeout(LINGER);
                    std::process::exit(0);
                });
            }
        })?;
        Ok(Self { mounted })
    }

    /// Returns when it is unmounted.
    pub(super) fn wait(self, mounted: Mounted) -> Result<()> {
        let mounted = Arc::new(mounted);
        *self.mounted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&mounted));
        mounted.wait();
        Ok(())
    }
}
