//! A queue of a host: a queue pair, the command capsules that it sends and the responses that it
//! receives.
#![expect(unsafe_code, reason = "posts its own capsule memory to the queue pair")]

use std::io;
use std::mem;
use std::ptr;

use nvme_proto::{Cid, Cqe, FromBytes, IntoBytes, Qid, Sgl, Sqe};
use rdma::{
    Access, Caps, ConnId, Device, Group, Mem, MemoryRegion, MemoryWindow, Op, Provider, PushError,
    QpKey, RecvWr, Registered, SendFlags, SendWr, Sge,
};

use crate::engine::arena::{ArenaKey, ControllerKey, QueueKey};
use crate::memory::pages::Pages;

/// Bytes of a submission queue entry.
const SQE_BYTES: usize = size_of::<Sqe>();
/// Bytes of a response capsule.
const CQE_BYTES: usize = size_of::<Cqe>();
/// Low bits of a command identifier, which are the slot; the other bits are its generation.
const SLOT_BITS: u32 = 10;

/// Identifier of a work request, which says what its completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrId {
    pub(crate) queue: QueueKey,
    pub(crate) kind: WrKind,
    /// Index of the command slot, or of the receive buffer.
    pub(crate) index: u16,
}

/// Kind of a work request: receive of a response, SEND of a command capsule, or bind or local
/// invalidation of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrKind {
    Receive,
    Send,
    Bind,
    Invalidate,
}

impl WrId {
    pub(crate) fn pack(self) -> u64 {
        (self.queue.index() as u64) << 32 | (self.kind as u64) << 16 | u64::from(self.index)
    }

    pub(crate) fn unpack(wr_id: u64) -> Self {
        let kind = match (wr_id >> 16) & 3 {
            0 => WrKind::Receive,
            1 => WrKind::Send,
            2 => WrKind::Bind,
            _ => WrKind::Invalidate,
        };
        Self { queue: QueueKey::at((wr_id >> 32) as usize), kind, index: wr_id as u16 }
    }
}

/// Data of a command, from which its SGL descriptor is built.
pub(crate) enum Data<'a, P: Provider> {
    /// The command transfers no data.
    None,
    /// Registered memory that the target accesses with the remote key `rkey`; `length` in bytes.
    Keyed { address: u64, length: u32, rkey: u32 },
    /// Memory to which the target has `access` through a memory window, until this command ends.
    Window { region: &'a P::Region, address: u64, length: u32, access: Access },
    /// Data sent in the command capsule. Its memory is in use until the SEND completes.
    InCapsule(Sge),
}

/// A command whose response arrived and whose memory is no longer in use.
pub(crate) struct FinishedCommand<W> {
    pub(crate) work: W,
    pub(crate) cqe: Cqe,
}

/// A violation of the protocol by the target, which ends the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// An NVMe queue on a queue pair. `W` is what the caller keeps with each command.
///
/// The commands in flight are at most one less than the entries of the submission queue, and no
/// more than the receives of the target. So the SQ Head Pointer of responses, which a target could
/// forge, is not needed.
pub(crate) struct HostQueue<P: Provider, W> {
    key: QueueKey,
    controller: ControllerKey,
    qid: Qid,
    conn: ConnId,
    qp: QpKey,
    slots: Box<[CommandSlot<P, W>]>,
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
    memory: CapsuleMemory<P>,
}

struct CommandSlot<P: Provider, W> {
    generation: u16,
    /// Removed when the command finishes.
    work: Option<W>,
    response: Option<Cqe>,
    /// The SEND gathers data of the command, so the command cannot finish before it completes.
    carries_data: bool,
    /// Number of unsignaled SENDs that complete with the SEND of this slot, while that is signaled
    /// and has not completed.
    covers: Option<usize>,
    window: Option<P::Window>,
    /// Remote key under which `window` is bound, until it is invalidated.
    open_rkey: Option<u32>,
}

/// Memory of the command capsules of all slots, followed by that of the response capsules.
struct CapsuleMemory<P: Provider> {
    memory: Registered<P, Pages>,
    slots: usize,
}

impl<P: Provider, W> HostQueue<P, W> {
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

    /// Returns a queue for `slots` commands in flight, on a queue pair of the engine's group.
    pub(crate) fn new(
        device: &P::Device,
        key: QueueKey,
        controller: ControllerKey,
        qid: Qid,
        conn: ConnId,
        qp: QpKey,
        slots: u16,
    ) -> io::Result<Self> {
        assert!((1..=Self::MAX_SLOTS).contains(&slots));
        let memory = CapsuleMemory::new(device, slots.into())?;
        let free = (0..slots).rev().collect();
        let depth = slots;
        let slots: Box<[_]> = (0..slots).map(|_| CommandSlot::new()).collect();
        Ok(Self {
            key,
            controller,
            qid,
            conn,
            qp,
            sending: 0,
            unreported: 0,
            slots,
            free,
            depth,
            in_capsule_bytes: 0,
            memory,
        })
    }

    /// Posts a receive for the response of each slot.
    pub(crate) fn post_receives(&mut self, group: &mut P::Group) -> Result<(), PushError> {
        (0..self.slots.len()).try_for_each(|index| self.post_receive(group, index as u16))
    }

    /// Returns the key of the controller in the engine.
    pub(crate) fn controller(&self) -> ControllerKey {
        self.controller
    }

    pub(crate) fn qid(&self) -> Qid {
        self.qid
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(crate) fn qp(&self) -> QpKey {
        self.qp
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
        device: &P::Device,
        group: &mut P::Group,
        sqe: Sqe,
        data: Data<'_, P>,
        work: W,
    ) -> Result<(), (io::Error, W)> {
        match self.push_command(device, group, sqe, data) {
            Ok(index) => {
                self.slots[usize::from(index)].work = Some(work);
                Ok(())
            }
            Err(error) => Err((error, work)),
        }
    }

    fn push_command(
        &mut self,
        device: &P::Device,
        group: &mut P::Group,
        mut sqe: Sqe,
        data: Data<'_, P>,
    ) -> io::Result<u16> {
        let index = *self.free.last().expect("the caller asked for room");
        let is_due = self.unreported == self.max_unreported();
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = next_generation(slot.generation);
        sqe = sqe.with_cid(cid(index, slot.generation));
        let mut payload = None;
        match data {
            Data::None => {}
            Data::Keyed { address, length, rkey } => {
                sqe = sqe.with_data(Sgl::Keyed { address, length, key: rkey, invalidate: false });
            }
            Data::InCapsule(sge) => {
                sqe = sqe.with_data(Sgl::InCapsule { offset: 0, length: sge.length });
                payload = Some(sge);
            }
            Data::Window { region, address, length, access } => {
                let bind = slot.bind(device, region, address, length, access)?;
                let rkey = slot.open_rkey.expect("bound");
                sqe = sqe.with_data(Sgl::Keyed { address, length, key: rkey, invalidate: true });
                let wr_id = WrId { queue: self.key, kind: WrKind::Bind, index }.pack();
                // SAFETY: a bind has no memory of its own.
                unsafe { push(group, self.qp, wr_id, bind, SendFlags::NONE, &[]) }?;
            }
        }
        let capsule = self.memory.write_command(index, &sqe);
        let sges = [capsule, payload.unwrap_or_default()];
        let used = if payload.is_some() { 2 } else { 1 };
        let wr_id = WrId { queue: self.key, kind: WrKind::Send, index }.pack();
        // Signaled if the completion is waited for, and often enough to free entries of the send
        // queue. A signaled SEND can wake a sleeping thread once more before the response does.
        let reports = self.qid.is_admin()
            || sqe.is_fabrics()
            || payload.is_some()
            || slot.open_rkey.is_some()
            || is_due;
        let flags = if reports { SendFlags::SIGNALED } else { SendFlags::NONE };
        // SAFETY: the capsule stays where it is until the queue pair is released, and data sent
        // with it is not handed back before the SEND completes (`Slot::covers`).
        unsafe { push(group, self.qp, wr_id, Op::Send, flags, &sges[..used]) }?;
        self.free.pop();
        self.sending += 1;
        slot.carries_data = payload.is_some();
        if reports {
            slot.covers = Some(mem::take(&mut self.unreported));
        } else {
            self.unreported += 1;
        }
        Ok(index)
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

    /// Handles a response in receive buffer `buffer`.
    pub(crate) fn received(
        &mut self,
        group: &mut P::Group,
        buffer: u16,
        length_bytes: u32,
        invalidated: Option<u32>,
    ) -> Result<Option<FinishedCommand<W>>, Violation> {
        if length_bytes as usize != CQE_BYTES {
            return Err(Violation("a response capsule is not 16 bytes long"));
        }
        let cqe = self.memory.read_response(buffer);
        let index = self.slot_of(cqe.cid())?;
        self.post_receive(group, buffer).map_err(|_| Violation("a receive could not be posted"))?;
        let slot = &mut self.slots[usize::from(index)];
        slot.response = Some(cqe);
        match (slot.open_rkey, invalidated) {
            (Some(open), Some(rkey)) if open == rkey => slot.open_rkey = None,
            (_, Some(_)) => {
                return Err(Violation("it invalidated a key that the command did not grant"));
            }
            (Some(rkey), None) => {
                let wr_id = WrId { queue: self.key, kind: WrKind::Invalidate, index }.pack();
                let op = Op::LocalInvalidate { rkey };
                // SAFETY: an invalidation has no memory of its own.
                unsafe { push(group, self.qp, wr_id, op, SendFlags::SIGNALED, &[]) }
                    .map_err(|_| Violation("a window could not be closed"))?;
            }
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

    fn post_receive(&mut self, group: &mut P::Group, index: u16) -> Result<(), PushError> {
        let wr_id = WrId { queue: self.key, kind: WrKind::Receive, index }.pack();
        let sges = [self.memory.response_sge(index)];
        // SAFETY: the buffer is read only between the completion of this receive and the next post.
        unsafe { group.push_recv(self.qp, &RecvWr { wr_id, sges: &sges }) }
    }
}

impl<P: Provider, W> CommandSlot<P, W> {
    fn new() -> Self {
        Self {
            generation: 0,
            work: None,
            response: None,
            carries_data: false,
            covers: None,
            window: None,
            open_rkey: None,
        }
    }

    fn bind(
        &mut self,
        device: &P::Device,
        region: &P::Region,
        address: u64,
        length: u32,
        access: Access,
    ) -> io::Result<Op> {
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(device.window()?),
        };
        let bind = window.bind(region, address, length.into(), access);
        self.open_rkey = Some(window.rkey());
        Ok(bind)
    }
}

/// # Safety
/// The caller keeps the contract of [`Group::push_send`].
unsafe fn push<P: Provider>(
    group: &mut impl Group<P>,
    qp: QpKey,
    wr_id: u64,
    op: Op,
    flags: SendFlags,
    sges: &[Sge],
) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { group.push_send(qp, &SendWr { wr_id, op, flags, sges }) }.map_err(io::Error::other)
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

impl<P: Provider> CapsuleMemory<P> {
    fn new(device: &P::Device, slots: usize) -> io::Result<Self> {
        let pages = Pages::new(slots * (SQE_BYTES + CQE_BYTES))?;
        let memory = Mem::Host { addr: pages.address().as_ptr(), length: pages.length() };
        // SAFETY: the place is that of the pages; no remote access is given.
        let memory = unsafe { Registered::new(device, pages, memory, Access::LOCAL_WRITE) }?;
        Ok(Self { memory, slots })
    }

    /// Writes the capsule of a slot, whose previous command has its response.
    fn write_command(&mut self, index: u16, sqe: &Sqe) -> Sge {
        let offset = usize::from(index) * SQE_BYTES;
        assert!(usize::from(index) < self.slots);
        // SAFETY: within the mapping (checked); what a device reads of a capsule whose slot is free
        // is of no account.
        unsafe {
            let to = self.memory.memory().address().as_ptr().add(offset);
            ptr::copy_nonoverlapping(sqe.as_bytes().as_ptr(), to, SQE_BYTES);
        }
        self.sge(offset, SQE_BYTES)
    }

    /// Returns the response in a buffer whose receive has completed.
    fn read_response(&self, index: u16) -> Cqe {
        let mut bytes = [0; CQE_BYTES];
        assert!(usize::from(index) < self.slots);
        // SAFETY: within the mapping (checked); the receive completed and the next is not posted
        // yet.
        unsafe {
            let from = self.memory.memory().address().as_ptr().add(self.response_offset(index));
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), CQE_BYTES);
        }
        Cqe::read_from_bytes(&bytes).expect("sixteen bytes are an entry")
    }

    fn response_sge(&self, index: u16) -> Sge {
        self.sge(self.response_offset(index), CQE_BYTES)
    }

    fn response_offset(&self, index: u16) -> usize {
        self.slots * SQE_BYTES + usize::from(index) * CQE_BYTES
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        let addr = self.memory.memory().address().addr().get() as u64 + offset as u64;
        Sge { addr, length: length as u32, lkey: self.memory.region().lkey() }
    }
}

#[cfg(test)]
mod tests;
