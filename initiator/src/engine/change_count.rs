//! Counts of changes that a controller reports, and the callers that wait for the next one.

use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::types::error::Error;

/// Kinds of changes that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The Discovery Log Page has changed.
    DiscoveryLog,
    /// Namespaces were added, removed or changed; open ones have been checked since.
    Namespaces,
}

/// Number of changes of one kind, with those who wait for the next. A new connection counts as a
/// change, since events may have been missed.
#[derive(Debug, Default)]
pub(crate) struct ChangeCount {
    count: u64,
    waiting: Vec<Promise<u64>>,
}

impl ChangeCount {
    /// Returns the number of changes if it differs from `seen`; else `None`, and the promise is
    /// resolved at the next change.
    pub(crate) fn wait(&mut self, seen: u64, promise: Promise<u64>) -> Option<u64> {
        if self.count != seen {
            return Some(self.count);
        }
        self.waiting.push(promise);
        None
    }

    /// Counts a change, and resolves the promises that wait for it.
    pub(crate) fn note(&mut self, outbox: &mut Outbox) {
        self.count += 1;
        for promise in self.waiting.drain(..) {
            promise.keep(Ok(self.count), outbox);
        }
    }

    /// Fails the promises, since no further change is reported.
    pub(crate) fn end(&mut self, error: &Error, outbox: &mut Outbox) {
        for promise in self.waiting.drain(..) {
            promise.keep(Err(error.clone()), outbox);
        }
    }
}
