//! The open namespaces of a session, by the shard numbers of plans.

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use feedrail_initiator::{Error, Host, Namespace, Shards};
use pyo3::prelude::*;

use crate::replicas::{NotOpened, ReplicaReport, ReplicaSet};

/// Most warnings of one call; a last one gives the number of the others.
const WARNINGS_AT_MOST: usize = 8;

/// The open namespaces. Locked only while the interpreter is attached, so that no other thread
/// holds the lock at a fork.
pub(crate) struct OpenShards(Mutex<OpenNamespaces>);

struct OpenNamespaces {
    all: Vec<Namespace>,
    /// Shards by number: those of `all`, or those of the manifest.
    numbered: Shards,
    /// Replicas, if the shards are those of a manifest.
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
    /// They are of another host; nothing is added.
    pub(crate) fn add(&self, opened: Vec<Namespace>) -> Result<(), Error> {
        let mut open = self.lock();
        open.numbered = Shards::new(open.all.iter().chain(&opened).cloned())?;
        open.all.extend(opened);
        Ok(())
    }

    /// Sets the shards of a manifest, after its targets were connected.
    ///
    /// # Errors
    /// A shard has no replica.
    pub(crate) fn open(&self, mut replicas: ReplicaSet) -> Result<(), NotOpened> {
        let mut open = self.lock();
        open.numbered = replicas.shards()?;
        open.replicas = Some(replicas);
        Ok(())
    }

    /// Adds the replicas of targets that have been connected since. Returns the shards.
    pub(crate) fn advance(&self, host: &Host) -> Shards {
        let open = &mut *self.lock();
        if let Some(replicas) = &mut open.replicas
            && replicas.is_incomplete()
            && replicas.advance(host, Waker::noop())
        {
            replicas.note_changes(&open.numbered);
            // If the last replica of a shard was taken out, the old shards stay, and reads return
            // the reason.
            if let Ok(shards) = replicas.shards() {
                open.numbered = shards;
            }
        }
        open.numbered.clone()
    }

    /// Issues warnings for the replicas that were taken out and the targets that are disconnected,
    /// unless that was done before. `frames` is the stack level of the caller that the warning
    /// names.
    ///
    /// # Errors
    /// The exception of a warning that Python's filter turns into one.
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

    /// Returns the namespace of a replica of a manifest's shard, if it is in use.
    pub(crate) fn replica(&self, shard: usize, replica: usize) -> Option<Namespace> {
        self.lock().replicas.as_ref()?.namespace(shard, replica)
    }

    /// Takes out a replica of a manifest's shard: it is not read from again, unless it is the last.
    pub(crate) fn take_out(&self, shard: usize, replica: usize, reason: &str) {
        let open = &mut *self.lock();
        let Some(replicas) = &mut open.replicas else { return };
        replicas.note_changes(&open.numbered);
        replicas.take_out(shard, replica, reason.to_owned());
        if let Ok(shards) = replicas.shards() {
            open.numbered = shards;
        }
    }

    /// Returns the replicas of a manifest's shard.
    pub(crate) fn report(&self, shard: usize) -> Vec<ReplicaReport> {
        let open = self.lock();
        open.replicas.as_ref().map_or_else(Vec::new, |replicas| replicas.report(shard))
    }

    /// Returns the names of a manifest's targets without a connection.
    pub(crate) fn away(&self) -> Vec<String> {
        self.lock().replicas.as_ref().map_or_else(Vec::new, ReplicaSet::away)
    }

    fn lock(&self) -> MutexGuard<'_, OpenNamespaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
