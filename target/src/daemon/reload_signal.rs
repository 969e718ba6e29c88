//! SIGHUP: reloads the configuration on a separate thread, since reading a file may block forever.

use std::io;
use std::sync::Arc;

use crossbeam::channel::{self, Receiver, Sender};

use super::notify;
use crate::inventory::open::OpenPurpose;
use crate::reloader::Reloader;

/// Handle that wakes the thread for reloads; `None` if the configuration cannot be reloaded.
pub(super) struct ReloadSignal(Option<Sender<()>>);

impl ReloadSignal {
    /// Starts the thread, unless `reloader` is `None`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(reloader: Option<&Arc<Reloader>>) -> io::Result<Self> {
        let Some(reloader) = reloader.cloned() else { return Ok(Self(None)) };
        // One pending request suffices: it reads the configuration that is present then.
        let (sender, asked) = channel::bounded(1);
        let run = move || obey(&reloader, &asked);
        std::thread::Builder::new().name("feedrail-reload".into()).spawn(run)?;
        Ok(Self(Some(sender)))
    }

    /// Requests a reload; logs a warning if that is impossible.
    pub(super) fn raise(&self) {
        match &self.0 {
            // The channel is full if a request is pending already.
            Some(sender) => _ = sender.try_send(()),
            None => tracing::warn!(
                "SIGHUP is ignored: the configuration is read again only by a target with --config and --management; \
                 restart this one to change it"
            ),
        }
    }
}

fn obey(reloader: &Reloader, asked: &Receiver<()>) {
    for () in asked {
        notify::reloading();
        match reloader.reload(OpenPurpose::Serve) {
            Ok(report) => tracing::info!(changes = report.changes.len(), "reloaded"),
            Err(error) => tracing::error!("cannot reload: {error}"),
        }
        notify::ready();
    }
}
