//! Reads whose data is placed in the memory that the device sends from, without a buffer.
//!
//! This is for data that no call waits for: that of the page cache and of memory. The bytes are
//! copied once less, and nothing is in flight when the command is answered.

use std::mem;

use ::rdma::{Group, Provider};

use super::data::KeyedMemory;
use super::{Connection, Ended, TurnContext};
use crate::backend::{Operation, Span};
use crate::controller::IoWork;
use crate::limits::turn::CACHED_READ_BYTES;

/// Number of reads after one that needed the medium for which no attempt is made: an attempt that
/// fails costs a system call.
const PAUSE_READS: u8 = 32;

/// State of a connection that its latest reads have left.
#[derive(Debug, Default)]
pub(super) struct Placing {
    /// Length in bytes of the latest read, if its data was placed; else 0.
    placed_bytes: u32,
    /// Reads for which no attempt is made.
    pause: u8,
}

impl Placing {
    /// Records a read that was placed.
    pub(super) fn placed(&mut self, bytes: u32) {
        self.placed_bytes = bytes;
    }

    /// Records a read that needs the medium.
    pub(super) fn missed(&mut self) {
        (self.placed_bytes, self.pause) = (0, PAUSE_READS);
    }

    /// Whether the next read may be tried. Counts it.
    fn may_try(&mut self) -> bool {
        let may = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        may
    }
}

impl<P: Provider> Connection<P> {
    /// Reads the data of a command into memory of the device and sends it; false if it has to go
    /// through a buffer. Parts of it may have been sent then, which is allowed: the host's memory
    /// is undefined until the response.
    pub(super) fn place_data(
        &mut self,
        context: &mut TurnContext<'_, P>,
        work: &IoWork,
        to: KeyedMemory,
    ) -> bool {
        let ready = to.length <= CACHED_READ_BYTES
            && context.core.storage().may_read_now()
            && context.group.has_write_room(self.qp, to.length);
        if !ready || !self.placing.may_try() {
            return false;
        }
        let mut sent = 0;
        while sent < to.length {
            let Some(room) = context.group.write_room(self.qp, to.length - sent) else {
                return false;
            };
            let length = room.length();
            // SAFETY: the room is mapped until the next call of the group, which is below, and the
            // operation ends before. The peer shares it and is never trusted to leave it alone; it
            // is only written here, so that nothing depends on its bytes.
            #[expect(unsafe_code, reason = "lends memory of the device to storage")]
            let span = unsafe { Span::new(room.address().as_ptr(), length) };
            let operation = Operation::read(work.offset_bytes + u64::from(sent), span);
            if !context.core.read_now(work.namespace, operation) {
                self.placing.missed();
                return false;
            }
            let address = to.address.wrapping_add(sent.into());
            if !context.group.send_room(self.qp, room, address, to.key) {
                return false;
            }
            sent += length;
        }
        self.placing.placed(to.length);
        true
    }

    /// Whether a new command waits until the host has taken data that was placed, or for the next
    /// turn if this one has read enough. Otherwise it would go through a buffer, only to wait then.
    /// A response that the host has not acknowledged ends the wait for the host.
    pub(super) fn waits_for_room(&mut self, context: &mut TurnContext<'_, P>) -> bool {
        let next_bytes = self.placing.placed_bytes;
        if next_bytes == 0 {
            return false;
        }
        if context.core.storage().has_read_enough() {
            context.waits_for_turn |= !mem::replace(&mut self.waits_for_turn, true);
            return true;
        }
        let awaits_host = self.outstanding.entries > 0 || !self.to_respond.is_empty();
        awaits_host && !context.group.has_write_room(self.qp, next_bytes)
    }

    /// Starts commands that waited because the last turn had read enough.
    pub(in crate::transport::rdma) fn begin_turn(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        self.waits_for_turn = false;
        self.admit(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_the_medium_pauses_attempts() {
        let mut placing = Placing::default();
        assert!(placing.may_try() && placing.may_try());
        placing.placed(4096);
        assert_eq!(placing.placed_bytes, 4096);
        placing.missed();
        assert_eq!(placing.placed_bytes, 0);
        assert!((0..PAUSE_READS).all(|_| !placing.may_try()));
        assert!(placing.may_try());
    }
}
