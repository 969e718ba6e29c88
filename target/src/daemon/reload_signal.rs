//! SIGHUP: reads the configuration again on a separate thread, since a file system may block that
//! thread for ever.

use std::io;
use std::sync::Arc;

use crossbeam::channel::{self, Receiver, Sender};

use super::notify;
use crate::inventory::export::OpenPurpose;
use crate::reloader::Reloader;

/// Wakes the thread that reloads.
pub(super) struct ReloadSignal(Option<Sender<()>>);

impl ReloadSignal {
    /// Starts the thread for a target whose configuration can be read again.
    ///
    /// # Errors
    /// A thread is not available.
    pub(super) fn start(reloader: Option<&Arc<Reloader>>) -> io::Result<Self> {
        let Some(reloader) = reloader.cloned() else { return Ok(Self(None)) };
        // A waiting signal reads the configuration as it is later, so that more need not wait.
        let (sender, asked) = channel::bounded(1);
        let run = move || obey(&reloader, &asked);
        std::thread::Builder::new().name("feedrail-reload".into()).spawn(run)?;
        Ok(Self(Some(sender)))
    }

    /// Requests a reload of the configuration.
    pub(super) fn raise(&self) {
        match &self.0 {
            // Full if a signal waits already.
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
