//! Requests of one account that wait for a buffer.

use std::collections::VecDeque;

use crate::core_context::pool::{Pool, UNIT_BYTES};
use crate::core_context::request_key::RequestKey;

/// Longest transfer (half a block) divided by the largest size of a small request.
const SMALL_IN_LONGEST: usize = 16;

/// Waiting requests in order of arrival. Small ones may pass a large one as long as they take fewer
/// bytes in all than it needs.
pub(super) struct RequestLine {
    small: VecDeque<Waiting>,
    large: VecDeque<Waiting>,
    small_bytes: usize,
    /// Number of requests that have begun to wait so far.
    count: u64,
    /// Bytes of requests that passed the one that is first now.
    passed_bytes: u64,
}

/// A request that waits for a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) whose: RequestKey,
    pub(super) length: u32,
    /// Number in order of arrival, ascending.
    number: u64,
}

impl Waiting {
    /// Bytes of the pool that its buffer takes.
    pub(super) fn bytes(&self) -> u64 {
        Pool::bytes_for(self.length)
    }
}

impl RequestLine {
    /// Creates an empty line for a pool with blocks of `block_bytes`.
    pub(super) fn new(block_bytes: usize) -> Self {
        let small_bytes = (block_bytes / 2 / SMALL_IN_LONGEST).max(UNIT_BYTES);
        let (small, large) = (VecDeque::new(), VecDeque::new());
        Self { small, large, small_bytes, count: 0, passed_bytes: 0 }
    }

    /// Reserves memory for this many waiting requests.
    pub(super) fn reserve(&mut self, requests: usize) {
        for line in [&mut self.small, &mut self.large] {
            line.reserve(requests.saturating_sub(line.len()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    /// Bytes of requests that passed the first one.
    pub(super) fn passed_bytes(&self) -> u64 {
        self.passed_bytes
    }

    pub(super) fn push(&mut self, whose: RequestKey, length: u32) {
        self.count += 1;
        let waiting = Waiting { whose, length, number: self.count };
        match length as usize <= self.small_bytes {
            true => self.small.push_back(waiting),
            false => self.large.push_back(waiting),
        }
    }

    /// Returns the waiting request that arrived first.
    pub(super) fn first(&self) -> Option<Waiting> {
        let fronts = self.small.front().into_iter().chain(self.large.front());
        fronts.min_by_key(|waiting| waiting.number).copied()
    }

    /// Returns a small request that may pass the first one.
    pub(super) fn passing(&self) -> Option<Waiting> {
        let (small, large) = (self.small.front()?, self.large.front()?);
        let passes =
            large.number < small.number && self.passed_bytes + small.bytes() < large.bytes();
        passes.then_some(*small)
    }

    /// Removes a request that gets a buffer: the first one, or one that passes it.
    pub(super) fn take(&mut self, taken: &Waiting) {
        let is_first = self.first().is_some_and(|first| first.number == taken.number);
        self.passed_bytes = if is_first { 0 } else { self.passed_bytes + taken.bytes() };
        for line in [&mut self.small, &mut self.large] {
            line.pop_front_if(|front| front.number == taken.number);
        }
    }

    /// Removes a request; returns whether it waited.
    pub(super) fn leave(&mut self, whose: RequestKey) -> bool {
        self.keep(|waiting| waiting.whose != whose)
    }

    pub(super) fn leave_all(&mut self, connection: RequestKey, mut left: impl FnMut(RequestKey)) {
        self.keep(|waiting| {
            let leaves = waiting.whose.is_of_connection(connection);
            if leaves {
                left(waiting.whose);
            }
            !leaves
        });
    }

    /// Keeps the requests for which `kept` is true; returns whether any was removed.
    fn keep(&mut self, mut kept: impl FnMut(&Waiting) -> bool) -> bool {
        let number = |line: &Self| line.first().map(|first| first.number);
        let (first, count) = (number(self), self.small.len() + self.large.len());
        for line in [&mut self.small, &mut self.large] {
            line.retain(&mut kept);
        }
        if number(self) != first {
            self.passed_bytes = 0;
        }
        self.small.len() + self.large.len() < count
    }
}
