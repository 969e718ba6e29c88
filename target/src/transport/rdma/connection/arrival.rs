//! Arrival of a command: parses its capsule, locates its data, and fetches it if necessary.
#![expect(unsafe_code, reason = "lends a buffer to the device, and copies in-capsule data")]

use ::rdma::{Op, Provider, SendFlags, SendWr, Sge};
use nvme_proto::{Cid, Sqe, Status};

use super::{Connection, Ended, Leaving, TurnContext};
use crate::controller::{CommandWork, IoKind, IoWork, ParsedCommand, TransferDirection};
use crate::core_context::pool::{Buffer, UNIT_BYTES};
use crate::transport::rdma::connection::request::{HostData, Receive, RequestState, SlotId};
use crate::transport::rdma::sgl;
use crate::transport::rdma::work_id::WorkKind;

impl<P: Provider> Connection<P> {
    /// Handles a capsule of `bytes` bytes in a receive, which waits if there is no free slot.
    pub(super) fn received(
        &mut self,
        context: &mut TurnContext<'_, P>,
        receive: u32,
        bytes: u32,
    ) -> Result<(), Ended> {
        if self.arrived.is_empty() && self.may_begin(context) {
            return self.begin(context, Receive(receive), bytes);
        }
        self.arrived.push_back((Receive(receive), bytes));
        Ok(())
    }

    fn may_begin(&self, context: &TurnContext<'_, P>) -> bool {
        self.slots.has_room() && self.leaving == Leaving::No && !context.config.draining
    }

    /// Starts the commands of waiting capsules in order, while there are free slots.
    pub(super) fn admit(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        while self.may_begin(context)
            && let Some((receive, bytes)) = self.arrived.pop_front()
        {
            self.begin(context, receive, bytes)?;
        }
        Ok(())
    }

    fn begin(
        &mut self,
        context: &mut TurnContext<'_, P>,
        receive: Receive,
        bytes: u32,
    ) -> Result<(), Ended> {
        let in_capsule = bytes.checked_sub(size_of::<Sqe>() as u32);
        let in_capsule = in_capsule.ok_or(Ended::ShortCapsule(bytes))?;
        let sqe = self.area.entry(receive);
        if self.slots.find(sqe.cid()).is_some() {
            self.give_up_event_request(context, sqe.cid())?;
        }
        let in_flight = self.slots.find(sqe.cid()).is_some();
        let slot = self.slots.begin(sqe.cid(), receive, context.core.now);
        if in_flight {
            return self.refuse(context, slot, Status::COMMAND_ID_CONFLICT.with_dnr());
        }
        match self.queue().parse_in(&context.core.exports, context.core.now, &sqe) {
            Ok(command) => self.place(context, slot, &sqe, command, in_capsule),
            Err(outcome) => self.respond(context, slot, outcome),
        }
    }

    /// Drops an Asynchronous Event Request if the host reuses its CID for another command: the host
    /// has silently abandoned the request, as hosts with SPDK do when they detach. No other kind of
    /// command is dropped.
    fn give_up_event_request(
        &mut self,
        context: &mut TurnContext<'_, P>,
        cid: Cid,
    ) -> Result<(), Ended> {
        // An event that has occurred is reported first.
        self.handle_queue_events(context)?;
        let Some(slot) = self.find(cid, RequestState::Parked) else { return Ok(()) };
        let request = self.slots.get(slot);
        let waits =
            matches!(request.work, Some(CommandWork::Control(work)) if work.is_event_request());
        if !waits || !self.queue().give_up_event_request(cid) {
            return Ok(());
        }
        let request = self.slots.get(slot);
        request.abandon();
        let receive = request.receive;
        let resources = self.slots.end(slot);
        self.release(context, resources.buffer);
        self.post_receive(context, receive)
    }

    /// Locates the data of a command and allocates a buffer if it needs one.
    fn place(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        sqe: &Sqe,
        command: ParsedCommand,
        in_capsule: u32,
    ) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        request.invalidate =
            sgl::invalidated_key(&sqe.dptr).filter(|_| context.config.can_invalidate);
        let io = match &command.work {
            CommandWork::Io(work) => Some(*work),
            CommandWork::Control(_) => None,
        };
        request.work = Some(command.work);
        let Some(transfer) = command.transfer else { return self.execute(context, slot) };
        request.direction = Some(transfer.direction);
        request.length = transfer.length_bytes;
        match sgl::locate(&sqe.dptr, transfer, in_capsule) {
            Ok(host) => request.host = host,
            Err(status) => return self.refuse(context, slot, status),
        }
        match buffer_bytes(io.as_ref(), request.host, request.length) {
            Some(bytes) => self.allocate(context, slot, bytes),
            None => self.execute(context, slot),
        }
    }

    /// Allocates a buffer within the share of the host, or waits for one. The share limits a host
    /// that does not accept its data, whose buffers stay in use.
    fn allocate(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        bytes: u32,
    ) -> Result<(), Ended> {
        let whose = self.request_key(context, slot);
        match context.core.buffers().allocate(&self.accounts, whose, bytes) {
            Some(buffer) => self.buffered(context, slot, buffer),
            None => {
                self.slots.get(slot).state = RequestState::AwaitingBuffer;
                Ok(())
            }
        }
    }

    /// Gives the buffer of a request, if it has one, back to its pool.
    pub(super) fn release(&mut self, context: &mut TurnContext<'_, P>, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            context.core.buffers().release(&self.accounts, buffer);
        }
    }

    /// Continues a request that waited for a buffer.
    pub(crate) fn buffer_granted(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: u32,
        buffer: Buffer,
    ) -> Result<(), Ended> {
        self.buffered(context, SlotId(slot), buffer)
    }

    fn buffered(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        buffer: Buffer,
    ) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        request.times.buffered = context.core.now;
        let buffer = request.buffer.insert(buffer);
        match (request.direction, request.host) {
            (Some(TransferDirection::HostToController), HostData::Keyed { .. }) => {
                request.state = RequestState::AwaitingFetch;
                self.to_fetch.push_back(slot);
                self.fetch(context)
            }
            (Some(TransferDirection::HostToController), HostData::InCapsule { offset }) => {
                let length = request.length;
                // SAFETY: nothing was started on the buffer, and the capsule stays until the
                // response.
                unsafe {
                    let data = self.area.in_capsule(request.receive, offset, length);
                    let pool = context.core.buffers().pool();
                    pool.bytes(buffer)[..length as usize].copy_from_slice(data);
                }
                self.execute(context, slot)
            }
            _ => self.execute(context, slot),
        }
    }

    /// Posts RDMA READs in order, at most as many as the host serves concurrently (`max_fetches`).
    pub(super) fn fetch(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        while self.fetches < self.max_fetches
            && self.send_entries_left > 0
            && let Some(slot) = self.to_fetch.pop_front()
        {
            self.fetches += 1;
            let request = self.slots.get(slot);
            request.state = RequestState::Fetching;
            let HostData::Keyed { address, key } = request.host else {
                unreachable!("only data in host memory is fetched")
            };
            let buffer = request.buffer.as_ref().expect("it was buffered before");
            let addr = context.core.buffers().pool().address(buffer) as u64;
            let sge = Sge { addr, length: request.length, lkey: context.config.pool_key };
            let wr = SendWr {
                wr_id: self.work_id(WorkKind::Fetch, slot.0),
                op: Op::RdmaRead { remote_addr: address, rkey: key },
                flags: SendFlags::SIGNALED,
                sges: &[sge],
            };
            // SAFETY: the buffer stays with its request until this completes or the queue pair is
            // released, and nothing else uses it until then.
            unsafe { self.push_send(context, &wr) }?;
        }
        Ok(())
    }

    /// Continues a request whose RDMA READ has completed.
    pub(super) fn fetched(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: u32,
    ) -> Result<(), Ended> {
        self.fetches -= 1;
        let bytes = self.slots.get(SlotId(slot)).length;
        self.moved(context, 1, bytes);
        self.execute(context, SlotId(slot))?;
        self.pump(context)
    }
}

/// Returns where, in the buffer of a Compare, the data of the medium begins: after `length` bytes
/// of host data, rounded up to a page for direct I/O.
pub(super) fn medium_at(length: u32) -> u32 {
    length.next_multiple_of(UNIT_BYTES as u32)
}

/// Returns the size in bytes of the buffer that a command needs; `None` if it moves no data, uses
/// it in the capsule, or sends zeros.
fn buffer_bytes(io: Option<&IoWork>, host: HostData, length: u32) -> Option<u32> {
    let compares = io.is_some_and(|work| matches!(work.kind, IoKind::Compare { .. }));
    let writes = io.is_some_and(|work| matches!(work.kind, IoKind::Write { .. }));
    match host {
        HostData::None => None,
        HostData::Keyed { .. } if io.is_some_and(|work| work.kind == IoKind::ReadZeros) => None,
        _ if compares => Some(medium_at(length) + length),
        HostData::Keyed { .. } => Some(length),
        // Storage writes from page boundaries only; data elsewhere in the capsule is copied.
        HostData::InCapsule { offset } => {
            (writes && !(offset as usize).is_multiple_of(UNIT_BYTES)).then_some(length)
        }
    }
}
