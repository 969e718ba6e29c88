//! Asynchronous events: requests that wait for events, and events that wait for requests (Base,
//! 5.1.2).

use std::collections::{BTreeSet, VecDeque};

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::log::{ChangedNamespaces, LogId};
use nvme_proto::{Cid, Nsid, Status};

use crate::limits::{ASYNC_EVENT_REQUESTS, ASYNC_EVENTS_PENDING, CHANGED_NAMESPACES};

/// Asynchronous events of one controller.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    requests: VecDeque<Cid>,
    /// Events to report with the next request.
    pending: VecDeque<AsyncEvent>,
    /// Reported events, not reported again until the host has read the log page.
    masked: Vec<AsyncEvent>,
    changed: BTreeSet<u32>,
}

impl AsyncEvents {
    /// Accepts a request; returns an event if one waits, which completes the request immediately.
    pub(super) fn request(&mut self, cid: Cid) -> Result<Option<AsyncEvent>, Status> {
        if let Some(event) = self.pending.pop_front() {
            self.masked.push(event);
            return Ok(Some(event));
        }
        if self.requests.len() >= ASYNC_EVENT_REQUESTS {
            return Err(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED.with_dnr());
        }
        self.requests.push_back(cid);
        Ok(None)
    }

    /// Records an event; returns the request to complete with it, if one waits.
    pub(super) fn raise(&mut self, event: AsyncEvent) -> Option<Cid> {
        if self.masked.contains(&event) || self.pending.contains(&event) {
            return None;
        }
        let request = self.requests.pop_front();
        match request {
            Some(_) => self.masked.push(event),
            None if self.pending.len() < ASYNC_EVENTS_PENDING => self.pending.push_back(event),
            None => {}
        }
        request
    }

    /// Unmasks the events of a log page that the host has read, and empties the list of changed
    /// namespaces if it was that page.
    pub(super) fn clear(&mut self, page: LogId) {
        if page == LogId::CHANGED_NAMESPACES {
            self.changed.clear();
        }
        self.masked.retain(|event| event.log_page() != page);
        self.pending.retain(|event| event.log_page() != page);
    }

    /// Removes a request; false if there is no such request.
    pub(super) fn take_request(&mut self, cid: Cid) -> bool {
        let found = self.requests.iter().position(|request| *request == cid);
        found.is_some_and(|at| self.requests.remove(at).is_some())
    }

    /// Drops all events; returns the waiting requests.
    pub(super) fn reset(&mut self) -> VecDeque<Cid> {
        std::mem::take(self).requests
    }

    /// Adds a namespace to the list of changed ones.
    pub(super) fn add_changed(&mut self, nsid: Nsid) {
        // One more than fit is enough to know that the list has overflowed.
        if self.changed.len() <= CHANGED_NAMESPACES {
            self.changed.insert(nsid.0);
        }
    }

    /// Namespaces changed since the host last read the list.
    pub(super) fn changed(&self) -> ChangedNamespaces {
        match self.changed.len() {
            0..=CHANGED_NAMESPACES => {
                ChangedNamespaces::new(self.changed.iter().copied().map(Nsid))
            }
            _ => ChangedNamespaces::TOO_MANY,
        }
    }
}
