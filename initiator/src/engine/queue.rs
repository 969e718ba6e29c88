//! A queue of a host: the commands in flight on a queue pair, by their slots.

use std::io;
use std::mem;

use nvme_proto::nvm::ListedRange;
use nvme_proto::{Cid, Cqe, Qid, Sqe};
use rdma::{Caps, ConnId};

use crate::engine::arena::{ControllerKey, QueueKey};
use crate::engine::wire::{Command, Data, Violation, Wire};

/// Bytes of a submission queue entry.
const SQE_BYTES: usize = size_of::<Sqe>();
/// Low bits of a command identifier, which are the slot; the other bits are its generation.
const SLOT_BITS: u32 = 10;

/// A command whose response arrived and whose memory is no longer in use.
pub(crate) struct FinishedCommand<W> {
    pub(crate) work: W,
    pub(crate) cqe: Cqe,
}

/// An NVMe queue on a queue pair. `W` is what the caller keeps with each command.
///
/// The commands in flight are at most one less than the entries of the submission queue, and no
/// more than the receives of the target. So the SQ Head Pointer of responses, which a target could
/// forge, is not needed.
pub(crate) struct HostQueue<W> {
    key: QueueKey,
    controller: ControllerKey,
    qid: Qid,
    conn: ConnId,
    slots: Box<[CommandSlot<W>]>,
    /// Free slots as a stack: the one that was freed last has its capsule in the cache.
    free: Vec<u16>,
    /// SENDs that are not known to have completed.
    sending: usize,
    /// Unsignaled SENDs since the last signaled one; the completion of the next signaled one covers
    /// them.
    unreported: usize,
    /// Slots in use, which the limits of the target can lower.
    depth: u16,
    /// Most bytes of data in a command capsule.
    in_capsule_bytes: u32,
}

struct CommandSlot<W> {
    generation: u16,
    /// Removed when the command finishes.
    work: Option<W>,
    response: Option<Cqe>,
    /// The SEND gathers data of the command, so the command cannot finish before it completes.
    carries_data: bool,
    /// Number of unsignaled SENDs that complete with the SEND of this slot, while that is signaled
    /// and has not completed.
    covers: Option<usize>,
    /// Remote key of the memory window that is bound for the command, until it is invalidated.
    open_rkey: Option<u32>,
}

impl<W> HostQueue<W> {
    /// Most commands in flight. With ten bits for the slot and six for its generation, this
    /// excludes the command identifier FFFFh.
    pub(crate) const MAX_SLOTS: u16 = (1 << SLOT_BITS) - 1;

    /// Returns the work requests that a send queue for `slots` commands needs: a bind, a SEND and
    /// an invalidation for each, and the unsignaled SENDs whose slots were reused.
    pub(crate) fn send_wr(slots: u16) -> u32 {
        3 * u32::from(slots) + u32::from(max_unreported(slots))
    }

    /// Returns the most commands for which `send_wr` work requests suffice.
    pub(crate) fn slots(send_wr: u32) -> u16 {
        (0..=Self::MAX_SLOTS).rev().find(|&slots| Self::send_wr(slots) <= send_wr).unwrap_or(0)
    }

    /// Returns a queue for `slots` commands in flight, whose connection has been requested.
    pub(crate) fn new(
        key: QueueKey,
        controller: ControllerKey,
        qid: Qid,
        conn: ConnId,
        slots: u16,
    ) -> Self {
        assert!((1..=Self::MAX_SLOTS).contains(&slots));
        let free = (0..slots).rev().collect();
        let depth = slots;
        let slots = (0..slots).map(|_| CommandSlot::new()).collect();
        let (sending, unreported, in_capsule_bytes) = (0, 0, 0);
        Self {
            key,
            controller,
            qid,
            conn,
            slots,
            free,
            sending,
            unreported,
            depth,
            in_capsule_bytes,
        }
    }

    pub(crate) fn controller(&self) -> ControllerKey {
        self.controller
    }

    pub(crate) fn qid(&self) -> Qid {
        self.qid
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(crate) fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.in_capsule_bytes = bytes;
    }

    /// Lowers the number of commands in flight to `limit`. At most one command, in the lowest slot,
    /// may be in flight when it is called.
    pub(crate) fn limit(&mut self, limit: u16) {
        let limit = limit.clamp(1, self.depth);
        self.depth = limit;
        self.free.retain(|&slot| slot < limit);
    }

    /// Returns the number of commands that may be in flight.
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the number of commands that can be issued now.
    pub(crate) fn room(&self) -> usize {
        let max_sending = self.slots.len() + self.max_unreported();
        self.free.len().min(max_sending - self.sending)
    }

    fn max_unreported(&self) -> usize {
        max_unreported(self.slots.len() as u16).into()
    }

    /// Returns the commands without a response.
    pub(crate) fn awaiting(&self) -> impl Iterator<Item = (Cid, &W)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let work = slot.work.as_ref().filter(|_| slot.response.is_none())?;
            Some((cid(index as u16, slot.generation), work))
        })
    }

    /// Returns the work of the commands in flight, after the queue pair was released.
    pub(crate) fn into_unfinished(self) -> impl Iterator<Item = W> {
        self.slots.into_vec().into_iter().filter_map(|slot| slot.work)
    }

    /// Returns whether the data of a write should be sent in the capsule, rather than be fetched by
    /// the target with RDMA READ, which takes another round trip. With trains of packets of equal
    /// length and many commands in flight, throughput counts more than latency: a capsule that
    /// exceeds the path MTU consists of packets of different lengths, while a READ response of one
    /// or two packets can be sent as a train.
    pub(crate) fn sends_data(&self, caps: &Caps, length_bytes: u32) -> bool {
        const MANY: usize = 16;
        let mtu = caps.max_path_mtu;
        let in_flight = usize::from(self.depth) - self.free.len();
        let dear = SQE_BYTES as u32 + length_bytes > mtu && length_bytes <= 2 * mtu;
        length_bytes <= self.in_capsule_bytes && !(caps.trains && dear && in_flight >= MANY)
    }

    /// Pushes a command; there must be [`HostQueue::room`]. After an error the queue is unusable,
    /// and the command was not sent.
    pub(crate) fn issue(
        &mut self,
        wire: &mut dyn Wire,
        sqe: Sqe,
        data: Data<'_>,
        work: W,
    ) -> Result<(), (io::Error, W)> {
        self.issue_with_list(wire, sqe, &[], data, work)
    }

    /// Pushes a command as [`HostQueue::issue`] does, with ranges behind it in its capsule.
    pub(crate) fn issue_with_list(
        &mut self,
        wire: &mut dyn Wire,
        sqe: Sqe,
        list: &[ListedRange],
        data: Data<'_>,
        work: W,
    ) -> Result<(), (io::Error, W)> {
        let Some(&index) = self.free.last() else {
            return Err((io::Error::other("the queue has no room"), work));
        };
        let is_due = self.unreported == self.max_unreported();
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = next_generation(slot.generation);
        let sqe = sqe.with_cid(cid(index, slot.generation));
        let carries_data = matches!(data, Data::InCapsule(_));
        // Reported if the completion is waited for, and often enough to free entries of the send
        // queue. A reported SEND can wake a sleeping thread once more before the response does.
        let is_reported = self.qid.is_admin()
            || sqe.is_fabrics()
            || carries_data
            || matches!(data, Data::Window { .. })
            || is_due;
        match wire.send(Command { queue: self.key, index, sqe, list, data, is_reported }) {
            Ok(window) => slot.open_rkey = window,
            Err(error) => return Err((error, work)),
        }
        slot.carries_data = carries_data;
        slot.work = Some(work);
        self.free.pop();
        self.sending += 1;
        if is_reported {
            slot.covers = Some(mem::take(&mut self.unreported));
        } else {
            self.unreported += 1;
        }
        Ok(())
    }

    /// Handles the completion of a signaled SEND, which covers the unsignaled ones before it.
    pub(crate) fn sent(&mut self, index: u16) -> Option<FinishedCommand<W>> {
        if let Some(covered) = self.slots[usize::from(index)].covers.take() {
            self.sending -= covered + 1;
        }
        self.try_finish(index)
    }

    /// Handles the completion of a local invalidation of a memory window.
    pub(crate) fn invalidated(&mut self, index: u16) -> Option<FinishedCommand<W>> {
        self.slots[usize::from(index)].open_rkey = None;
        self.try_finish(index)
    }

    /// Handles a response. `invalidated` is the remote key that the target invalidated with it.
    pub(crate) fn received(
        &mut self,
        wire: &mut dyn Wire,
        cqe: Cqe,
        invalidated: Option<u32>,
    ) -> Result<Option<FinishedCommand<W>>, Violation> {
        let index = self.slot_of(cqe.cid())?;
        let slot = &mut self.slots[usize::from(index)];
        slot.response = Some(cqe);
        match (slot.open_rkey, invalidated) {
            (Some(open), Some(rkey)) if open == rkey => slot.open_rkey = None,
            (_, Some(_)) => {
                return Err(Violation("it invalidated a key that the command did not grant"));
            }
            (Some(rkey), None) => wire
                .invalidate(self.key, index, rkey)
                .map_err(|_| Violation("a window could not be closed"))?,
            (None, None) => {}
        }
        Ok(self.try_finish(index))
    }

    /// Returns the slot of the command in flight that has this identifier.
    fn slot_of(&self, cid: Cid) -> Result<u16, Violation> {
        let index = cid.0 & ((1 << SLOT_BITS) - 1);
        let generation = cid.0 >> SLOT_BITS;
        self.slots
            .get(usize::from(index))
            .filter(|slot| slot.generation == generation)
            .filter(|slot| slot.work.is_some() && slot.response.is_none())
            .map(|_| index)
            .ok_or(Violation("a response names a command that is not in flight"))
    }

    /// Finishes the command if its response has arrived and its memory is no longer in use, and
    /// frees the slot when a signaled SEND has completed as well.
    ///
    /// An unsignaled SEND may not have completed yet. But a target that has responded to a command
    /// has received it: later packets of it are duplicates, which are dropped without being read,
    /// so the capsule may be overwritten.
    fn try_finish(&mut self, index: u16) -> Option<FinishedCommand<W>> {
        let slot = &mut self.slots[usize::from(index)];
        // A response may arrive before the acknowledgement of its command. An attempt to connect
        // sends one command after the other on the admin queue, which may have a single slot: the
        // command is then finished only when the slot is free.
        let last = self.qid.is_admin() && self.free.is_empty();
        let sending = slot.covers.is_some();
        let held = slot.open_rkey.is_some() || (sending && (slot.carries_data || last));
        let cqe = if held { None } else { slot.response };
        let finished = match cqe {
            Some(cqe) => slot.work.take().map(|work| FinishedCommand { work, cqe }),
            None => None,
        };
        if slot.response.is_some() && slot.work.is_none() && !sending {
            slot.response = None;
            self.free.push(index);
        }
        finished
    }
}

impl<W> CommandSlot<W> {
    fn new() -> Self {
        Self {
            generation: 0,
            work: None,
            response: None,
            carries_data: false,
            covers: None,
            open_rkey: None,
        }
    }
}

/// Returns the most consecutive unsignaled SENDs on a queue of `slots` commands. Each signaled SEND
/// may wake a thread without need; but a short queue that is full waits for it.
fn max_unreported(slots: u16) -> u16 {
    (slots / 4).clamp(4, 16)
}

fn cid(index: u16, generation: u16) -> Cid {
    Cid(generation << SLOT_BITS | index)
}

fn next_generation(generation: u16) -> u16 {
    (generation + 1) % (1 << (16 - SLOT_BITS))
}

#[cfg(test)]
mod tests;
