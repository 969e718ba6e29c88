//! The namespaces that a session has open, as plans number them.

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use feedrail_initiator::{Error, Host, Namespace, Shards};
use pyo3::prelude::*;

use crate::replicas::{NotOpened, ReplicaReport, ReplicaSet};

/// Warnings of one call; the others are counted.
const WARNINGS_AT_MOST: usize = 8;

/// The namespaces that are open. Locked only while the interpreter is attached, so that no other
/// thread holds it at a fork.
pub(crate) struct OpenShards(Mutex<OpenNamespaces>);

struct OpenNamespaces {
    all: Vec<Namespace>,
    /// Shards as plans number them: those of `all`, or those of the manifest.
    numbered: Shards,
    /// Where the shards are those of a manifest.
    replicas: Option<ReplicaSet>,
}

impl Default for OpenShards {
    fn default() -> Self {
        let (all, numbered) = (Vec::new(), Shards::default());
        Self(Mutex::new(OpenNamespaces { all, numbered, replicas: None }))
    }
}

impl OpenShards {
    /// Adds the namespaces of a subsystem, as shards with the next numbers.
    ///
    /// # Errors
    /// They are of another host: nothing is added.
    pub(crate) fn add(&self, opened: Vec<Namespace>) -> Result<(), Error> {
        let mut open = self.lock();
        open.numbered = Shards::new(open.all.iter().chain(&opened).cloned())?;
        open.all.extend(opened);
        Ok(())
    }

    /// Takes the shards of a manifest whose targets have answered.
    ///
    /// # Errors
    /// A shard has no replica.
    pub(crate) fn open(&self, mut replicas: ReplicaSet) -> Result<(), NotOpened> {
        let mut open = self.lock();
        open.numbered = replicas.shards()?;
        open.replicas = Some(replicas);
        Ok(())
    }

    /// Adds the replicas of targets that are there by now. Returns the shards.
    pub(crate) fn advance(&self, host: &Host) -> Shards {
        let open = &mut *self.lock();
        if let Some(replicas) = &mut open.replicas
            && replicas.is_incomplete()
            && replicas.advance(host, Waker::noop())
        {
            replicas.note_changes(&open.numbered);
            // A shard whose last replica was taken out keeps saying so.
            if let Ok(shards) = replicas.shards() {
                open.numbered = shards;
            }
        }
        open.numbered.clone()
    }

    /// Warns of the replicas that are no longer read from, and of the targets that are away, as far
    /// as it has not been done. `frames` are Python's up to the one that is told.
    ///
    /// # Errors
    /// The warning is an error, as its filter has it.
    pub(crate) fn tell(&self, py: Python<'_>, frames: i32) -> PyResult<()> {
        let news = self.take_news();
        if news.is_empty() {
            return Ok(());
        }
        let class = py.import("feedrail._errors")?.getattr("ReplicaWarning")?;
        let untold = news.len().saturating_sub(WARNINGS_AT_MOST);
        let rest = (untold > 0).then(|| {
            format!("{untold} more replicas are not read from: see Source.shards[i].replicas")
        });
        for message in news.into_iter().take(WARNINGS_AT_MOST).chain(rest) {
            let message = CString::new(message.replace('\0', " "))?;
            PyErr::warn(py, &class, &message, frames)?;
        }
        Ok(())
    }

    fn take_news(&self) -> Vec<String> {
        let open = &mut *self.lock();
        let Some(replicas) = &mut open.replicas else { return Vec::new() };
        if replicas.noted_changes() != open.numbered.changed_count() {
            replicas.note_changes(&open.numbered);
        }
        replicas.take_news()
    }

    /// The namespace of a replica of a shard of a manifest, if it is in use.
    pub(crate) fn replica(&self, shard: usize, replica: usize) -> Option<Namespace> {
        self.lock().replicas.as_ref()?.namespace(shard, replica)
    }

    /// Stops reading from a replica of a shard of a manifest. The last one of a shard stays.
    pub(crate) fn take_out(&self, shard: usize, replica: usize, reason: &str) {
        let open = &mut *self.lock();
        let Some(replicas) = &mut open.replicas else { return };
        replicas.note_changes(&open.numbered);
        replicas.take_out(shard, replica, reason.to_owned());
        if let Ok(shards) = replicas.shards() {
            open.numbered = shards;
        }
    }

    /// The replicas of a shard of a manifest.
    pub(crate) fn report(&self, shard: usize) -> Vec<ReplicaReport> {
        let open = self.lock();
        open.replicas.as_ref().map_or_else(Vec::new, |replicas| replicas.report(shard))
    }

    /// Names of the targets of a manifest that have no connection.
    pub(crate) fn away(&self) -> Vec<String> {
        self.lock().replicas.as_ref().map_or_else(Vec::new, ReplicaSet::away)
    }

    fn lock(&self) -> MutexGuard<'_, OpenNamespaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
