//! The send queue of a queue pair.

use alloc::boxed::Box;
use alloc::vec;

use crate::Psn;
use crate::rc::{
    CompletedWork, LocalSge, MESSAGE_MAX_BYTES, Payload, PostError, QueuePairConfig, SendOp,
    SendOptions, SendRequest, sge,
};

/// A ring of send requests. A position identifies a request; positions increase while the queue is
/// not empty.
#[derive(Debug)]
pub(super) struct SendQueue {
    entries: Box<[SendEntry]>,
    sges: Box<[LocalSge]>,
    inline: Box<[u8]>,
    sge_room: usize,
    inline_room: usize,
    /// Number of entries that are granted, rounded up, including those not allocated yet.
    granted: u32,
    head: u64,
    tail: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SendEntry {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendOptions,
    /// Payload length in bytes. Requests longer than [`MESSAGE_MAX_BYTES`] fail.
    pub(super) length: u32,
    /// PSN of its first packet, once it has started.
    pub(super) first: Psn,
    /// Number of PSNs that it takes, once it has started.
    pub(super) packets: u32,
    stored: Stored,
}

/// Where the payload of a request is stored.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Regions { count: u8 },
    Inline,
}

pub(super) enum PayloadSource<'a> {
    Regions(&'a [LocalSge]),
    Inline(&'a [u8]),
}

impl SendQueue {
    /// Creates a queue with memory for the sizes `room`.
    pub(super) fn new(granted: &QueuePairConfig, room: &QueuePairConfig) -> Self {
        const NOTHING: SendEntry = SendEntry {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendOptions { fence: false, signaled: false, solicited: false },
            length: 0,
            first: Psn::new(0),
            packets: 0,
            stored: Stored::Inline,
        };
        let slots = room.send_wr.next_power_of_two() as usize;
        let (sge_room, inline_room) = (room.send_sge as usize, room.inline_bytes as usize);
        Self {
            entries: vec![NOTHING; slots].into_boxed_slice(),
            sges: vec![LocalSge::default(); slots * sge_room].into_boxed_slice(),
            inline: vec![0; slots * inline_room].into_boxed_slice(),
            sge_room,
            inline_room,
            granted: granted.send_wr.next_power_of_two(),
            head: 0,
            tail: 0,
        }
    }

    /// Allocates memory for the granted sizes.
    pub(super) fn grow(&mut self, granted: &QueuePairConfig) {
        let mut grown = Self { head: self.head, tail: self.tail, ..Self::new(granted, granted) };
        let (sges, inline) = (self.sge_room, self.inline_room);
        for position in self.head..self.tail {
            let (from, to) = (self.slot(position), grown.slot(position));
            grown.entries[to] = self.entries[from];
            grown.sges[to * sges..][..sges].copy_from_slice(&self.sges[from * sges..][..sges]);
            let kept = &self.inline[from * inline..][..inline];
            grown.inline[to * inline..][..inline].copy_from_slice(kept);
        }
        *self = grown;
    }

    /// Position of the oldest request.
    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    /// Position of the next request to be posted.
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    /// Whether more than half of the granted entries are used.
    pub(super) const fn is_half_full(&self) -> bool {
        2 * self.len() > self.granted
    }

    /// Whether `request` fits the granted sizes and may be inline, if it is.
    pub(super) fn check(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match request.payload {
            _ if is_local(&request.op) => Ok(()),
            Payload::Regions(sges) if sges.len() > self.sge_room => Err(PostError::TooManySges),
            Payload::Regions(_) => Ok(()),
            Payload::Inline(_) if matches!(request.op, SendOp::RdmaRead { .. }) => {
                Err(PostError::InlineRead)
            }
            Payload::Inline(parts) => {
                let length: usize = parts.iter().map(|part| part.len()).sum();
                if length > self.inline_room { Err(PostError::InlineTooLong) } else { Ok(()) }
            }
        }
    }

    /// Adds a request that [`SendQueue::check`] has accepted. The caller has checked for room.
    pub(super) fn push(&mut self, request: &SendRequest<'_>) {
        let slot = self.slot(self.tail);
        let (length, stored) = match request.payload {
            _ if is_local(&request.op) => (0, Stored::Inline),
            Payload::Regions(sges) => {
                let start = slot * self.sge_room;
                self.sges[start..start + sges.len()].copy_from_slice(sges);
                (sge::total_bytes(sges), Stored::Regions { count: sges.len() as u8 })
            }
            Payload::Inline(parts) => (self.capture(slot, parts), Stored::Inline),
        };
        let SendRequest { wr_id, op, flags, .. } = *request;
        let (first, packets) = (Psn::new(0), 0);
        self.entries[slot] = SendEntry { wr_id, op, flags, length, first, packets, stored };
        self.tail += 1;
    }

    pub(super) fn get(&self, position: u64) -> &SendEntry {
        debug_assert!(position < self.tail, "the request was posted");
        &self.entries[self.slot(position)]
    }

    pub(super) fn get_mut(&mut self, position: u64) -> &mut SendEntry {
        let slot = self.slot(position);
        &mut self.entries[slot]
    }

    pub(super) fn bytes(&self, position: u64) -> PayloadSource<'_> {
        let slot = self.slot(position);
        let entry = &self.entries[slot];
        match entry.stored {
            Stored::Regions { count } => {
                let start = slot * self.sge_room;
                PayloadSource::Regions(&self.sges[start..start + usize::from(count)])
            }
            Stored::Inline => {
                let start = slot * self.inline_room;
                PayloadSource::Inline(&self.inline[start..start + entry.length as usize])
            }
        }
    }

    /// The scatter-gather list of an RDMA READ.
    pub(super) fn sges(&self, position: u64) -> &[LocalSge] {
        match self.bytes(position) {
            PayloadSource::Regions(sges) => sges,
            PayloadSource::Inline(_) => &[],
        }
    }

    /// Removes the oldest request.
    pub(super) fn pop(&mut self) -> SendEntry {
        let entry = *self.get(self.head);
        self.head += 1;
        entry
    }

    /// Starts at the first position again if the queue is empty, since that entry is in the cache:
    /// with many queue pairs, the cache cannot hold all rings. Returns whether it did.
    pub(super) const fn rewind(&mut self) -> bool {
        let empty = self.head == self.tail;
        if empty {
            (self.head, self.tail) = (0, 0);
        }
        empty
    }

    fn capture(&mut self, slot: usize, parts: &[&[u8]]) -> u32 {
        let start = slot * self.inline_room;
        let mut room = &mut self.inline[start..start + self.inline_room];
        let mut length = 0;
        for part in parts {
            let (here, rest) = room.split_at_mut(part.len());
            here.copy_from_slice(part);
            room = rest;
            length += part.len() as u32;
        }
        length
    }

    fn slot(&self, position: u64) -> usize {
        position as usize & (self.entries.len() - 1)
    }
}

impl SendEntry {
    /// PSN after its last packet, once it has started.
    pub(super) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    /// Whether it is a SEND or RDMA WRITE, whose packets carry payload and are acknowledged.
    pub(super) const fn carries_payload(&self) -> bool {
        matches!(
            self.op,
            SendOp::Send | SendOp::SendWithInvalidate { .. } | SendOp::RdmaWrite { .. }
        )
    }

    /// Number of packets with a path MTU of `mtu` bytes; `None` if the message is too long.
    pub(super) const fn packets_at(&self, mtu: u32) -> Option<u32> {
        match self.length {
            _ if is_local(&self.op) => Some(0),
            0 => Some(1),
            1..=MESSAGE_MAX_BYTES => Some(self.length.div_ceil(mtu)),
            _ => None,
        }
    }

    pub(super) const fn work(&self) -> CompletedWork {
        match self.op {
            SendOp::Send | SendOp::SendWithInvalidate { .. } => CompletedWork::Send,
            SendOp::RdmaWrite { .. } => CompletedWork::RdmaWrite,
            SendOp::RdmaRead { .. } => CompletedWork::RdmaRead,
            SendOp::Bind(_) => CompletedWork::Bind,
            SendOp::LocalInvalidate { .. } => CompletedWork::LocalInvalidate,
        }
    }
}

/// Whether the operation is local, so that no packet is sent.
const fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::Bind(_) | SendOp::LocalInvalidate { .. })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Wherever its oldest request lies in the ring.
    #[test]
    fn queued_requests_survive_growth() {
        let all =
            QueuePairConfig { send_wr: 64, recv_wr: 1, send_sge: 2, recv_sge: 1, inline_bytes: 4 };
        for passed in 0..20 {
            let mut queue = SendQueue::new(&all, &all.at_first());
            let push = |queue: &mut SendQueue, wr_id: u64| {
                let sges = [LocalSge { addr: wr_id, length: 1, lkey: 0 }; 2];
                let bytes = [wr_id as u8; 4];
                let parts = [&bytes[..]];
                let payload = match wr_id % 2 {
                    0 => Payload::Regions(&sges),
                    _ => Payload::Inline(&parts),
                };
                let flags = SendOptions::default();
                queue.push(&SendRequest { wr_id, op: SendOp::Send, flags, payload });
            };
            (0..passed + 1).for_each(|wr_id| {
                push(&mut queue, wr_id);
                if wr_id < passed {
                    queue.pop();
                }
            });
            (passed + 1..passed + 8).for_each(|wr_id| push(&mut queue, wr_id));
            queue.grow(&all);
            (passed + 8..passed + 64).for_each(|wr_id| push(&mut queue, wr_id));
            let ids: Vec<u64> = (queue.head()..queue.tail())
                .map(|position| {
                    let wr_id = queue.get(position).wr_id;
                    match queue.bytes(position) {
                        PayloadSource::Regions(sges) => {
                            assert!(sges.len() == 2 && sges.iter().all(|sge| sge.addr == wr_id));
                        }
                        PayloadSource::Inline(bytes) => assert_eq!(bytes, [wr_id as u8; 4]),
                    }
                    wr_id
                })
                .collect();
            assert_eq!(ids, (passed..passed + 64).collect::<Vec<_>>());
        }
    }
}
