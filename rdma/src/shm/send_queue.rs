//! The send queue: send requests in order, with their state.

use super::work_limits::WorkLimits;
use crate::{Op, PushError, SendFlags, SendWr, Sge, WcOpcode, WcStatus};

/// Send requests, oldest first.
pub(super) struct RingSendQueue {
    limits: WorkLimits,
    /// A circular buffer of `limits.send_wr` requests.
    entries: Box<[QueuedSend]>,
    /// Place of the oldest request in the arrays, and number of requests.
    oldest: usize,
    length: usize,
    /// Scatter-gather elements of each request, `limits.send_sge` apart.
    sges: Box<[Sge]>,
    /// Inline data of each request, `limits.inline_bytes` apart.
    inline: Box<[u8]>,
}

/// A request of the send queue.
#[derive(Clone, Copy)]
pub(super) struct QueuedSend {
    pub(super) wr_id: u64,
    pub(super) op: Op,
    pub(super) flags: SendFlags,
    /// Sum of the lengths of its scatter-gather elements.
    pub(super) length: u32,
    elements: usize,
    pub(super) state: SendState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Not completely written to the ring.
    Queued,
    /// Written to the ring; done when the peer has read up to this position.
    Sent(u64),
    /// An RDMA READ that was requested; done when all its data has arrived.
    Reading {
        /// Number of bytes placed so far.
        received: u32,
    },
    Done,
    Failed(WcStatus),
}

/// The data that a request sends.
pub(super) enum SendSource<'a> {
    /// Inline data, copied when the request was pushed.
    Inline(&'a [u8]),
    /// Registered memory, as scatter-gather elements.
    Regions(&'a [Sge]),
}

impl RingSendQueue {
    pub(super) fn new(limits: WorkLimits) -> Self {
        let count = limits.send_wr;
        Self {
            limits,
            entries: vec![QueuedSend::UNUSED; count].into_boxed_slice(),
            oldest: 0,
            length: 0,
            sges: vec![Sge::default(); count * limits.send_sge].into_boxed_slice(),
            inline: vec![0; count * limits.inline_bytes].into_boxed_slice(),
        }
    }

    /// Queues a request. `captured` yields the data of an inline request.
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
            _ if self.length == self.limits.send_wr => return Err(PushError::QueueFull),
            _ => {}
        }
        let length = u32::try_from(total);
        let state = match length {
            Ok(_) => SendState::Queued,
            Err(_) => SendState::Failed(WcStatus::LOCAL_LENGTH_ERROR),
        };
        let place = self.place(self.length);
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
        self.entries[place] = QueuedSend {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            length: length.unwrap_or(0),
            elements: wr.sges.len(),
            state,
        };
        self.length += 1;
        Ok(())
    }

    pub(super) fn get(&self, index: usize) -> Option<&QueuedSend> {
        (index < self.length).then(|| &self.entries[self.place(index)])
    }

    pub(super) fn set_state(&mut self, index: usize, state: SendState) {
        self.entries[self.place(index)].state = state;
    }

    /// The index of the oldest incomplete RDMA READ, and its bytes received so far.
    pub(super) fn oldest_read(&self) -> Option<(usize, u32)> {
        (0..self.length).find_map(|index| match self.entries[self.place(index)].state {
            SendState::Reading { received } => Some((index, received)),
            _ => None,
        })
    }

    /// The data that a request sends.
    pub(super) fn source(&self, index: usize) -> SendSource<'_> {
        let place = self.place(index);
        let entry = &self.entries[place];
        if entry.flags.contains(SendFlags::INLINE) {
            let start = place * self.limits.inline_bytes;
            SendSource::Inline(&self.inline[start..start + entry.length as usize])
        } else {
            let start = place * self.limits.send_sge;
            SendSource::Regions(&self.sges[start..start + entry.elements])
        }
    }

    /// Removes the oldest request.
    pub(super) fn retire(&mut self) -> Option<QueuedSend> {
        let entry = *self.get(0)?;
        self.oldest = self.place(1);
        self.length -= 1;
        Some(entry)
    }

    /// Returns the place of a request in the arrays. The index is at most their size, which is not
    /// always a power of two; a division for each request would be slow.
    fn place(&self, index: usize) -> usize {
        let place = self.oldest + index;
        let size = self.limits.send_wr;
        if place < size { place } else { place - size }
    }
}

impl QueuedSend {
    const UNUSED: Self = Self {
        wr_id: 0,
        op: Op::Send,
        flags: SendFlags::NONE,
        length: 0,
        elements: 0,
        state: SendState::Done,
    };

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
