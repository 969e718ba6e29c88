//! Asynchronous events: requests that are outstanding, and events without a request (Base, 5.1.2).

use std::collections::{BTreeSet, VecDeque};

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::log::{ChangedNamespaces, LogId};
use nvme_proto::{Cid, Nsid, Status};

use crate::limits::{ASYNC_EVENT_REQUESTS, ASYNC_EVENTS_PENDING, CHANGED_NAMESPACES};

/// Asynchronous Event Requests and events of one controller.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    /// Outstanding Asynchronous Event Requests, oldest first.
    requests: VecDeque<Cid>,
    /// Events that no request was outstanding for; each completes a later request.
    pending: VecDeque<AsyncEvent>,
    /// Events reported to the host. They are not reported again until it has read their log page.
    masked: Vec<AsyncEvent>,
    /// NSIDs of the Changed Namespace List; one more than it holds if it has overflowed.
    changed: BTreeSet<u32>,
}

impl AsyncEvents {
    /// Handles an Asynchronous Event Request; returns the event to complete it with, if one is
    /// pending.
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

    /// Records an event. Returns the outstanding request to complete with it, if there is one.
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

    /// Drops the events of a log page that the host has read, so that later ones are reported, and
    /// empties the list of changed namespaces if it was that page.
    pub(super) fn clear(&mut self, page: LogId) {
        if page == LogId::CHANGED_NAMESPACES {
            self.changed.clear();
        }
        self.masked.retain(|event| event.log_page() != page);
        self.pending.retain(|event| event.log_page() != page);
    }

    /// Removes an outstanding request; false if none has the CID.
    pub(super) fn take_request(&mut self, cid: Cid) -> bool {
        let found = self.requests.iter().position(|request| *request == cid);
        found.is_some_and(|at| self.requests.remove(at).is_some())
    }

    /// Drops all events and masks; returns the outstanding requests, to be aborted.
    pub(super) fn reset(&mut self) -> VecDeque<Cid> {
        std::mem::take(self).requests
    }

    /// Adds a namespace to the Changed Namespace List.
    pub(super) fn add_changed(&mut self, nsid: Nsid) {
        // One NSID more than fits shows that the list has overflowed.
        if self.changed.len() <= CHANGED_NAMESPACES {
            self.changed.insert(nsid.0);
        }
    }

    /// Changed Namespace List: the namespaces that changed since the host last read it.
    pub(super) fn changed(&self) -> ChangedNamespaces {
        match self.changed.len() {
            0..=CHANGED_NAMESPACES => {
                ChangedNamespaces::new(self.changed.iter().copied().map(Nsid))
            }
            _ => ChangedNamespaces::TOO_MANY,
        }
    }
}
