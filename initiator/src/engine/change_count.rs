//! Changes that a controller tells of, and who waits for the next one.

use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::types::error::Error;

/// The kinds of changes that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The discovery log page has changed.
    DiscoveryLog,
    /// Namespaces came, went or changed, and those that are open were checked since.
    Namespaces,
}

/// The changes of one kind that a controller has told of. A new connection counts as one, since
/// changes may have been missed.
#[derive(Debug, Default)]
pub(crate) struct ChangeCount {
    count: u64,
    waiting: Vec<Promise<u64>>,
}

impl ChangeCount {
    /// Number of changes so far, if it differs from the number that the caller has seen; else the
    /// promise is kept at the next change.
    pub(crate) fn wait(&mut self, seen: u64, promise: Promise<u64>) -> Option<u64> {
        if self.count != seen {
            return Some(self.count);
        }
        self.waiting.push(promise);
        None
    }

    /// Counts a change, and keeps the promises that wait for it.
    pub(crate) fn note(&mut self, outbox: &mut Outbox) {
        self.count += 1;
        for promise in self.waiting.drain(..) {
            promise.keep(Ok(self.count), outbox);
        }
    }

    /// Fails the promises, since no further change will come.
    pub(crate) fn end(&mut self, error: &Error, outbox: &mut Outbox) {
        for promise in self.waiting.drain(..) {
            promise.keep(Err(error.clone()), outbox);
        }
    }
}
