//! Outstanding requests of a device, and the `wr_id` values that it returns in completions.

use crate::QpKey;

/// Maximum number of requests in one queue: a `wr_id` has 16 bits for the position.
pub(crate) const MAX_REQUESTS: u32 = 1 << 15;

/// Maximum number of queue pairs of a group: a `wr_id` has 15 bits for the index.
pub(crate) const MAX_QUEUE_PAIRS: u32 = 1 << 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkQueueKind {
    Send,
    Receive,
}

/// Content of the `wr_id` that the device gets instead of the consumer's. The completion of a
/// failed request has few valid fields; this one identifies the queue pair (or shows that it was
/// released), the queue and the position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) qp: QpKey,
    pub(crate) queue: WorkQueueKind,
    pub(crate) position: u16,
}

impl Token {
    const RECEIVE: u64 = 1 << 16;

    /// Packs the token: generation 32 bits, index 15, queue 1, position 16.
    pub(crate) fn to_wr_id(self) -> u64 {
        let generation = self.qp.0 >> 32 << 32;
        let index = self.qp.0 & u64::from(MAX_QUEUE_PAIRS - 1);
        let queue = if self.queue == WorkQueueKind::Receive { Self::RECEIVE } else { 0 };
        generation | index << 17 | queue | u64::from(self.position)
    }

    /// Unpacks the result of [`Token::to_wr_id`].
    pub(crate) fn from_wr_id(wr_id: u64) -> Self {
        let index = wr_id as u32 >> 17;
        Self {
            qp: QpKey(wr_id >> 32 << 32 | u64::from(index)),
            queue: if wr_id & Self::RECEIVE == 0 {
                WorkQueueKind::Send
            } else {
                WorkQueueKind::Receive
            },
            position: wr_id as u16,
        }
    }
}

/// The consumer's identifiers of the requests in one queue, from their push to their completion.
///
/// A queue completes in order, so a completion also completes all requests before it: that frees
/// the entries of unsignaled requests.
#[derive(Debug)]
pub(crate) struct PostedRequests {
    wr_ids: Box<[u64]>,
    limit: u16,
    /// Number of requests ever pushed and ever completed, modulo 2^16.
    pushed: u16,
    done: u16,
}

impl PostedRequests {
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.min(MAX_REQUESTS);
        let room = usize::try_from(limit.next_power_of_two()).expect("2^15 fits");
        let limit = u16::try_from(limit).expect("2^15 fits");
        Self { wr_ids: vec![0; room].into(), limit, pushed: 0, done: 0 }
    }

    fn held(&self) -> u16 {
        self.pushed.wrapping_sub(self.done)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.held() == self.limit
    }

    fn slot(&self, position: u16) -> usize {
        usize::from(position) & (self.wr_ids.len() - 1)
    }

    /// The position of the next request to be pushed.
    pub(crate) fn next_position(&self) -> u16 {
        self.pushed
    }

    pub(crate) fn push(&mut self, wr_id: u64) {
        debug_assert!(!self.is_full());
        let slot = self.slot(self.pushed);
        self.wr_ids[slot] = wr_id;
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Removes the latest request.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        if self.held() == 0 {
            return None;
        }
        self.pushed = self.pushed.wrapping_sub(1);
        Some(self.wr_ids[self.slot(self.pushed)])
    }

    /// Completes the request at a position and all before it; returns the consumer's identifier, or
    /// `None` if the position is not in use.
    pub(crate) fn complete(&mut self, position: u16) -> Option<u64> {
        let ahead = position.wrapping_sub(self.done);
        if ahead >= self.held() {
            return None;
        }
        self.done = position.wrapping_add(1);
        Some(self.wr_ids[self.slot(position)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_token_survives_the_device(generation: u32, index in 0_u64..1 << 15, receive: bool, position: u16) {
            let qp = QpKey(u64::from(generation) << 32 | index);
            let queue = if receive { WorkQueueKind::Receive } else { WorkQueueKind::Send };
            let token = Token { qp, queue, position };
            prop_assert_eq!(Token::from_wr_id(token.to_wr_id()), token);
        }

        /// Against a plain list: requests are pushed and completed in order, with gaps.
        #[test]
        fn requests_are_what_a_list_would_be(
            limit in 1_u32..40,
            start: u16,
            steps in prop::collection::vec((1_u16..60, 0_u16..60), 100),
        ) {
            let mut requests = PostedRequests { pushed: start, done: start, ..PostedRequests::new(limit) };
            let mut list = std::collections::VecDeque::new();
            let mut next = 0;
            for (pushes, ahead) in steps {
                for _ in 0..pushes {
                    prop_assert_eq!(requests.is_full(), list.len() == limit as usize);
                    if requests.is_full() {
                        break;
                    }
                    list.push_back((requests.next_position(), next));
                    requests.push(next);
                    next += 1;
                }
                let ahead = usize::from(ahead) % list.len();
                let (position, wr_id) = list[ahead];
                list.drain(..=ahead);
                prop_assert_eq!(requests.complete(position), Some(wr_id));
                prop_assert_eq!(requests.complete(position), None);
            }
        }
    }

    #[test]
    fn a_popped_request_does_not_complete() {
        let mut requests = PostedRequests::new(3);
        requests.push(7);
        let position = requests.next_position();
        requests.push(8);
        assert_eq!(requests.pop(), Some(8));
        assert_eq!(requests.complete(position), None);
        assert_eq!(requests.complete(0), Some(7));
        assert_eq!(requests.pop(), None);
    }

    #[test]
    fn a_queue_without_room_is_full() {
        assert!(PostedRequests::new(0).is_full());
    }
}
