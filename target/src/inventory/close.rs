//! Closes the namespaces that are no longer exported, once no core uses them.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use rdma::Time;

use crate::backend::{Backend, BackendError, Operation};
use crate::inventory::Inventory;
use crate::inventory::namespace::Namespace;
use crate::inventory::published::NamespaceChange;
use crate::storage::{Inline, Storage, StorageReport, Submitted};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The namespace was idle: it has been flushed, with this result, and closed.
    Flushed(Result<(), BackendError>),
    /// Operations still ran at the timeout. [`Inventory::close_idle`] closes it when they have
    /// ended.
    Busy,
}

impl Closed {
    /// Problem for an operator, if there is one.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Flushed(Ok(())) => None,
            Self::Flushed(Err(error)) => {
                Some(format!("what was written last may be lost: {error}"))
            }
            Self::Busy => Some("storage still works on it; it is closed when that ends".to_owned()),
        }
    }
}

impl Inventory {
    /// Waits until a removed namespace is idle on all cores, flushes it, and closes it. If that
    /// takes longer than `timeout`, a later [`Inventory::close_idle`] closes it.
    pub(crate) fn close(&self, removed: NamespaceChange, timeout: Duration) -> Closed {
        if self.publication().wait_idle(removed.generation, timeout) {
            return Closed::Flushed(flush(removed));
        }
        self.leaving().push(removed);
        Closed::Busy
    }

    /// Whether the bdev of this name backs a namespace that is exported, or that was removed but is
    /// not closed yet.
    pub(crate) fn uses_bdev(&self, name: &str) -> bool {
        let uses = |namespace: &Namespace| namespace.bdev.as_deref() == Some(name);
        self.leaving().iter().any(|one| uses(&one.namespace))
            || self.exports().namespaces().any(|namespace| uses(namespace))
    }

    /// Number of removed namespaces that are not closed yet.
    pub(crate) fn closing(&self) -> usize {
        self.leaving().len()
    }

    /// Flushes and closes the removed namespaces that have become idle since [`Inventory::close`].
    pub(crate) fn close_idle(&self) {
        let is_idle = |one: &mut NamespaceChange| self.publication().is_idle(one.generation);
        let idle: Vec<_> = self.leaving().extract_if(.., is_idle).collect();
        for removed in idle {
            // `flush` logs the error.
            let _ = flush(removed);
        }
    }

    fn leaving(&self) -> MutexGuard<'_, Vec<NamespaceChange>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Flushes and closes a removed namespace, since hosts can no longer flush it.
fn flush(removed: NamespaceChange) -> Result<(), BackendError> {
    let NamespaceChange { namespace, subsystem, .. } = removed;
    if !namespace.writable {
        return Ok(());
    }
    let flushed = flush_backend(namespace.backend());
    if let Err(error) = &flushed {
        let (nqn, nsid, name) = (&subsystem.nqn, namespace.nsid, namespace.name());
        tracing::error!(
            %nqn, %nsid, name, path = ?namespace.path(), %error,
            "a removed namespace could not be flushed: what was written last may be lost"
        );
    }
    flushed
}

fn flush_backend(backend: &Arc<dyn Backend>) -> Result<(), BackendError> {
    let mut storage = Storage::new(Box::new(Inline::new()));
    storage.reserve(1);
    let mut now = Time::ZERO;
    if let Submitted::Over(result) = storage.submit(now, (), backend, Operation::flush()) {
        return result;
    }
    loop {
        storage.turn(now);
        if let Some(StorageReport::Done { result, .. }) = storage.next_report() {
            return result;
        }
        // A decorator that delays the operation uses this clock, so the loop advances it.
        now = storage.deadline().unwrap_or(now).max(now);
    }
}
