//! Memory of ended passive connections (TimeWait).

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use super::Mad;
use super::table::RemoteName;
use crate::Time;

/// Remembers for a while which REQs had a connection, so that a late duplicate does not create a
/// connection. Entries expire in the order in which they were added.
#[derive(Debug)]
pub(super) struct TimeWait {
    entries: BTreeMap<RemoteName, TimeWaitEntry>,
    order: VecDeque<(Time, RemoteName)>,
    duration: Duration,
    limit: usize,
}

#[derive(Debug)]
struct TimeWaitEntry {
    expiry: Time,
    /// The REJ with which the REQ was answered, if it was rejected.
    answer: Option<Box<Mad>>,
}

/// How to answer a duplicate of a REQ.
#[derive(Debug)]
pub(super) enum Answered<'a> {
    /// Repeat the REJ that was sent.
    With(&'a Mad),
    /// Reject it as stale, since the REQ had a connection that has ended.
    Stale,
}

impl TimeWait {
    pub(super) fn new(duration: Duration, limit: usize) -> Self {
        Self { entries: BTreeMap::new(), order: VecDeque::new(), duration, limit }
    }

    pub(super) fn insert(&mut self, now: Time, name: RemoteName, answer: Option<Mad>) {
        self.expire(now);
        if self.limit == 0 {
            return;
        }
        while self.order.len() >= self.limit {
            self.forget_oldest();
        }
        let expiry = now + self.duration;
        self.entries.insert(name, TimeWaitEntry { expiry, answer: answer.map(Box::new) });
        self.order.push_back((expiry, name));
    }

    pub(super) fn get(&mut self, now: Time, name: RemoteName) -> Option<Answered<'_>> {
        self.expire(now);
        let entry = self.entries.get(&name)?;
        Some(entry.answer.as_deref().map_or(Answered::Stale, Answered::With))
    }

    pub(super) fn expire(&mut self, now: Time) {
        while self.order.front().is_some_and(|&(expiry, _)| expiry <= now) {
            self.forget_oldest();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len().max(self.order.len())
    }

    fn forget_oldest(&mut self) {
        let Some((expiry, name)) = self.order.pop_front() else { return };
        // The same identifiers may have been added again since; then the newer entry stays.
        if self.entries.get(&name).is_some_and(|entry| entry.expiry == expiry) {
            self.entries.remove(&name);
        }
    }
}
