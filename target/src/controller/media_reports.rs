//! Reports about media: errors, slow commands, and files that other programs change.

use std::fmt;
use std::time::Duration;

use rdma::Time;

use super::associations::Associations;
use super::command::{IoKind, IoWork};
use super::command_trace::{CommandStages, TracedCommand};
use crate::backend::{BackendError, FileChange};
use crate::inventory::index::NamespaceIndex;
use crate::inventory::namespace::Namespace;

/// Text that describes a storage operation in the log.
struct Attempt<'a> {
    work: &'a IoWork,
    /// Number of the range of a Deallocate, counted from 1.
    range: usize,
}

impl fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.work.kind {
            IoKind::Read { .. } | IoKind::ReadZeros => "read",
            IoKind::ReadRanges { ranges } => {
                return write!(f, "read of {ranges} ranges of {} bytes", self.work.length_bytes);
            }
            IoKind::Compare { .. } => "read for a Compare",
            IoKind::Write { .. } => "write",
            IoKind::WriteZeroes { .. } => "write of zeroes",
            IoKind::Flush => return f.write_str("flush"),
            IoKind::Deallocate => return write!(f, "deallocation of range {}", self.range),
        };
        write!(f, "{name} of {} bytes at {}", self.work.length_bytes, self.work.offset_bytes)
    }
}

impl Associations {
    /// Counts and logs a failed storage operation of an I/O command, unless it was cancelled or the
    /// namespace was removed. `range` is the number of the range of a Deallocate.
    pub(crate) fn io_failed(&self, now: Time, work: &IoWork, range: usize, error: BackendError) {
        if !matches!(error, BackendError::Cancelled | BackendError::Removed) {
            self.storage_failed(now, work.namespace, work.kind, &Attempt { work, range }, error);
        }
    }

    /// Counts and logs a failed flush that a controller requested, as
    /// [`Associations::io_failed`] does. No effect if it succeeded.
    pub(crate) fn flush_failed(
        &self,
        now: Time,
        namespace: NamespaceIndex,
        result: Result<(), BackendError>,
    ) {
        if let Err(error) = result
            && !matches!(error, BackendError::Cancelled | BackendError::Removed)
        {
            self.storage_failed(now, namespace, IoKind::Flush, &"flush", error);
        }
    }

    /// Counts and logs an error of a namespace's medium, and notifies hosts if it is degraded now.
    /// `what` names the operation and its range in the log.
    pub(super) fn storage_failed(
        &self,
        now: Time,
        namespace: NamespaceIndex,
        kind: IoKind,
        what: &dyn fmt::Display,
        error: BackendError,
    ) {
        let Some(namespace) = self.inventory.namespace(namespace) else {
            tracing::error!("{what} failed on a namespace that was removed: {error}");
            return;
        };
        let namespace = &*namespace;
        match kind {
            IoKind::Read { .. }
            | IoKind::ReadZeros
            | IoKind::ReadRanges { .. }
            | IoKind::Compare { .. } => {
                namespace.storage_errors.count_read();
            }
            IoKind::Write { .. }
            | IoKind::WriteZeroes { .. }
            | IoKind::Flush
            | IoKind::Deallocate => namespace.storage_errors.count_write(),
        }
        self.announce_health(namespace);
        if self.storage_log_rate.admit(now) {
            let nqn =
                self.inventory.subsystem_of(namespace).map(|subsystem| subsystem.nqn.to_string());
            tracing::error!(
                nqn, nsid = %namespace.nsid, name = namespace.name(), path = ?namespace.path(),
                "{what} failed: {error}"
            );
        }
    }

    /// Logs a slow command with the durations of its stages. `range` is the number of the range of
    /// a Deallocate.
    pub(crate) fn log_slow(&self, now: Time, command: &TracedCommand, range: usize) {
        if !self.slow_log_rate.admit(now) {
            return;
        }
        let TracedCommand { work, stages, .. } = command;
        let what = Attempt { work, range };
        let namespace = self.inventory.namespace(work.namespace);
        let subsystem = namespace.as_ref().and_then(|one| self.inventory.subsystem_of(one));
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let CommandStages { buffer, fetch, storage } = *stages;
        tracing::warn!(
            nqn = subsystem.map(|subsystem| subsystem.nqn.to_string()), nsid = %work.nsid,
            total_ms = millis(buffer + fetch + storage), buffer_ms = millis(buffer),
            fetch_ms = millis(fetch), storage_ms = millis(storage),
            "slow command: {what}"
        );
    }

    /// Checks whether another program changed or replaced the file of a namespace; notifies hosts
    /// of a change. `log` returns whether a message may be logged now.
    pub(crate) fn look_at_file(&self, namespace: &Namespace, log: &mut dyn FnMut() -> bool) {
        let change = namespace.look_at_file();
        self.announce_health(namespace);
        if change.is_none() || (change == Some(FileChange::Replaced) && !log()) {
            return;
        }
        let (nsid, name, path) = (namespace.nsid, namespace.name(), namespace.path());
        if change == Some(FileChange::Replaced) {
            tracing::warn!(
                %nsid, name, ?path,
                "another file has this path, or none: the old one is served until the target is \
                 started again"
            );
            return;
        }
        if log() {
            tracing::warn!(%nsid, name, ?path, "the file was changed while it is served");
        }
        let controllers = self.controllers_with(namespace);
        controllers.iter().for_each(|controller| controller.namespace_changed(nsid));
    }

    /// Notifies connected hosts, once, that a namespace's medium is degraded.
    pub(crate) fn announce_health(&self, namespace: &Namespace) {
        if namespace.health().announce() {
            let controllers = self.controllers_with(namespace);
            controllers.iter().for_each(|controller| controller.reliability_degraded());
        }
    }
}
