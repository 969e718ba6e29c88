//! Asynchronous events: requests that wait for events, events that wait for requests (Base, 5.1.2).

use std::collections::{BTreeSet, VecDeque};

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::log::{ChangedNamespaces, LogId};
use nvme_proto::{Cid, Nsid, Status};

use crate::limits::{ASYNC_EVENT_REQUESTS, ASYNC_EVENTS_PENDING, CHANGED_NAMESPACES};

/// The events of one controller.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    requests: VecDeque<Cid>,
    /// Not told yet, for want of a request.
    pending: VecDeque<AsyncEvent>,
    /// Told, and not told again before the host has read its log page.
    masked: Vec<AsyncEvent>,
    changed: BTreeSet<u32>,
}

impl AsyncEvents {
    /// Takes a request in; an event that waited completes it at once.
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

    /// Something happened; the request that is to complete with it, if one waits.
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

    /// The host read a log page: its events are reported again, and the listed namespaces are
    /// known.
    pub(super) fn clear(&mut self, page: LogId) {
        if page == LogId::CHANGED_NAMESPACES {
            self.changed.clear();
        }
        self.masked.retain(|event| event.log_page() != page);
        self.pending.retain(|event| event.log_page() != page);
    }

    /// Takes a request out; false if there is no such request.
    pub(super) fn take_request(&mut self, cid: Cid) -> bool {
        let found = self.requests.iter().position(|request| *request == cid);
        found.is_some_and(|at| self.requests.remove(at).is_some())
    }

    /// Drops all events; returns the requests that were waiting.
    pub(super) fn reset(&mut self) -> VecDeque<Cid> {
        std::mem::take(self).requests
    }

    /// Lists a namespace that changed.
    pub(super) fn add_changed(&mut self, nsid: Nsid) {
        // One more than the list holds is enough to know that it does not.
        if self.changed.len() <= CHANGED_NAMESPACES {
            self.changed.insert(nsid.0);
        }
    }

    /// The namespaces that changed since the host last read the list.
    pub(super) fn changed(&self) -> ChangedNamespaces {
        match self.changed.len() {
            0..=CHANGED_NAMESPACES => {
                ChangedNamespaces::new(self.changed.iter().copied().map(Nsid))
            }
            _ => ChangedNamespaces::TOO_MANY,
        }
    }
}
