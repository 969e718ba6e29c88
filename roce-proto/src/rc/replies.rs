//! RDMA READ responses that are being sent.

use crate::Psn;
use crate::rc::READS_MAX;
use crate::wire::Reth;

/// The message sequence numbers of the latest RDMA READ requests, for repeated requests; as many as
/// the peer may have outstanding.
#[derive(Debug)]
pub(super) struct LatestReads {
    reads: [(Psn, Psn, u32); READS_MAX],
    next: usize,
}

impl LatestReads {
    pub(super) const fn new() -> Self {
        Self { reads: [(Psn::new(0), Psn::new(0), 0); READS_MAX], next: 0 }
    }

    pub(super) fn add(&mut self, reply: &ReadReply) {
        self.reads[self.next] = (reply.first, reply.end, reply.msn);
        self.next = (self.next + 1) % READS_MAX;
    }

    /// The MSN of the request whose response includes `psn`; `None` if it is not among the latest.
    pub(super) fn msn_of(&self, psn: Psn) -> Option<u32> {
        let found = self.reads.iter().find(|(first, end, _)| psn.is_within(*first, *end));
        found.map(|&(_, _, msn)| msn)
    }
}

/// RDMA READ requests that are being answered: repeated ones first, then new ones in order.
#[derive(Debug)]
pub(super) struct Replies {
    replies: [ReadReply; READS_MAX],
    length: usize,
}

/// An RDMA READ request that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadReply {
    pub(super) first: Psn,
    /// PSN of the next response packet.
    pub(super) next: Psn,
    pub(super) end: Psn,
    pub(super) reth: Reth,
    /// Message sequence number (MSN) of the request.
    pub(super) msn: u32,
    /// Whether it is a repeated request, whose response was sent before.
    pub(super) repeated: bool,
}

impl Replies {
    pub(super) fn new() -> Self {
        const NOTHING: ReadReply = ReadReply {
            first: Psn::new(0),
            next: Psn::new(0),
            end: Psn::new(0),
            reth: Reth { addr: 0, rkey: 0, length: 0 },
            msn: 0,
            repeated: false,
        };
        Self { replies: [NOTHING; READS_MAX], length: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// The response that is sent next.
    pub(super) fn front_mut(&mut self) -> Option<&mut ReadReply> {
        self.replies[..self.length].first_mut()
    }

    pub(super) fn pop(&mut self) {
        self.remove(0);
    }

    /// Adds a new request; returns false if more than `resources` are outstanding. A repeated
    /// request is dropped to make room: the peer repeats it again if necessary.
    #[must_use]
    pub(super) fn push(&mut self, reply: ReadReply, resources: usize) -> bool {
        let resources = resources.min(READS_MAX);
        if self.length >= resources {
            let repeated = self.replies[..self.length].iter().position(|reply| reply.repeated);
            match repeated {
                Some(index) => self.remove(index),
                None => return false,
            }
        }
        self.replies[self.length] = reply;
        self.length += 1;
        true
    }

    /// Adds a repeated request. Response packets that are still to be sent are not sent twice;
    /// those already sent are sent again before anything else. If there is no room, the request is
    /// dropped: the peer repeats it again if necessary.
    pub(super) fn repeat(&mut self, reply: ReadReply, resources: usize) {
        for known in &mut self.replies[..self.length] {
            if !reply.first.is_within(known.first, known.end) {
                continue;
            }
            if !reply.first.is_before(known.next) {
                return;
            }
            if reply.end == known.end {
                *known = ReadReply { repeated: known.repeated, ..reply };
                return;
            }
        }
        if self.length >= resources.min(READS_MAX) {
            return;
        }
        let replies = &self.replies[..self.length];
        let at = replies.iter().position(|known| !known.repeated).unwrap_or(self.length);
        self.replies.copy_within(at..self.length, at + 1);
        self.replies[at] = reply;
        self.length += 1;
    }

    fn remove(&mut self, index: usize) {
        self.replies.copy_within(index + 1..self.length, index);
        self.length -= 1;
    }
}
