//! The send queue: requests in order, and how far each is.

use std::collections::VecDeque;

use super::work_limits::WorkLimits;
use crate::{Op, PushError, SendFlags, SendWr, Sge, WcOpcode, WcStatus};

/// Requests in order, oldest first.
pub(super) struct RingSendQueue {
    limits: WorkLimits,
    entries: VecDeque<QueuedSend>,
    /// Requests that are gone from the front; with it a request keeps its place in the arrays.
    retired: usize,
    /// The elements of each place, `limits.send_sge` apart.
    sges: Box<[Sge]>,
    /// The captured bytes of each place, `limits.inline_bytes` apart.
    inline: Box<[u8]>,
}

/// A request of the send queue.
#[derive(Clone, Copy)]
pub(super) struct QueuedSend {
    pub(super) wr_id: u64,
    pub(super) op: Op,
    pub(super) flags: SendFlags,
    /// Bytes of all its elements.
    pub(super) length: u32,
    elements: usize,
    pub(super) state: SendState,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Not all of it was handed over.
    Queued,
    /// Sent: done when the peer has read up to this position.
    Sent(u64),
    /// An RDMA READ: done when all its bytes have come.
    Reading {
        /// Bytes that were placed.
        received: u32,
    },
    Done,
    Failed(WcStatus),
}

/// The bytes that a request sends.
pub(super) enum SendSource<'a> {
    /// Bytes that were captured when the request was pushed.
    Inline(&'a [u8]),
    /// Memory that these elements name.
    Regions(&'a [Sge]),
}

impl RingSendQueue {
    pub(super) fn new(limits: WorkLimits) -> Self {
        let count = limits.send_wr;
        Self {
            limits,
            entries: VecDeque::with_capacity(count),
            retired: 0,
            sges: vec![Sge::default(); count * limits.send_sge].into_boxed_slice(),
            inline: vec![0; count * limits.inline_bytes].into_boxed_slice(),
        }
    }

    /// Queues a request. `captured` has the bytes of an inline one.
    pub(super) fn push<'a>(
        &mut self,
        wr: &SendWr<'_>,
        captured: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), PushError> {
        let is_inline = wr.flags.contains(SendFlags::INLINE);
        let total: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        match wr.op {
            _ if wr.sges.len() > self.limits.send_sge => return Err(PushError::TooManySges),
            Op::RdmaRead { .. } if is_inline => return Err(PushError::Unsupported),
            _ if is_inline && total > self.limits.inline_bytes as u64 => {
                return Err(PushError::InlineTooLong);
            }
            _ if self.entries.len() == self.limits.send_wr => return Err(PushError::QueueFull),
            _ => {}
        }
        let length = u32::try_from(total);
        let state = match length {
            Ok(_) => SendState::Queued,
            Err(_) => SendState::Failed(WcStatus::LOCAL_LENGTH_ERROR),
        };
        let place = self.place(self.entries.len());
        if is_inline {
            let mut room = &mut self.inline[place * self.limits.inline_bytes..];
            for piece in captured {
                room[..piece.len()].copy_from_slice(piece);
                room = &mut room[piece.len()..];
            }
        } else {
            let start = place * self.limits.send_sge;
            self.sges[start..start + wr.sges.len()].copy_from_slice(wr.sges);
        }
        self.entries.push_back(QueuedSend {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            length: length.unwrap_or(0),
            elements: wr.sges.len(),
            state,
        });
        Ok(())
    }

    pub(super) fn get(&self, index: usize) -> Option<&QueuedSend> {
        self.entries.get(index)
    }

    /// Changes how far a request is.
    pub(super) fn set_state(&mut self, index: usize, state: SendState) {
        self.entries[index].state = state;
    }

    /// The oldest RDMA READ whose data has not all come, and the bytes that have come.
    pub(super) fn oldest_read(&self) -> Option<(usize, u32)> {
        self.entries.iter().enumerate().find_map(|(index, entry)| match entry.state {
            SendState::Reading { received } => Some((index, received)),
            _ => None,
        })
    }

    /// The bytes of a request.
    pub(super) fn source(&self, index: usize) -> SendSource<'_> {
        let (entry, place) = (&self.entries[index], self.place(index));
        if entry.flags.contains(SendFlags::INLINE) {
            let start = place * self.limits.inline_bytes;
            SendSource::Inline(&self.inline[start..start + entry.length as usize])
        } else {
            let start = place * self.limits.send_sge;
            SendSource::Regions(&self.sges[start..start + entry.elements])
        }
    }

    /// Takes the oldest request out.
    pub(super) fn retire(&mut self) -> Option<QueuedSend> {
        let entry = self.entries.pop_front()?;
        self.retired = (self.retired + 1) % self.limits.send_wr;
        Some(entry)
    }

    fn place(&self, index: usize) -> usize {
        (self.retired + index) % self.limits.send_wr
    }
}

impl QueuedSend {
    /// The kind of its completion.
    pub(super) fn opcode(&self) -> WcOpcode {
        match self.op {
            Op::Send | Op::SendWithInvalidate { .. } => WcOpcode::SEND,
            Op::RdmaWrite { .. } => WcOpcode::RDMA_WRITE,
            Op::RdmaRead { .. } => WcOpcode::RDMA_READ,
            Op::Bind(_) => WcOpcode::BIND_WINDOW,
            Op::LocalInvalidate { .. } => WcOpcode::LOCAL_INVALIDATE,
        }
    }
}
