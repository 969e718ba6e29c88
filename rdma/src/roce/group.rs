//! Groups of a software device.
#![expect(unsafe_code, reason = "work requests name memory by address")]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use roce_proto::rc::{self, LocalSge};

use super::convert::{self, MAX_SGE};
use super::engine::{GroupEngine, Handled};
use super::fabric::Fabric;
use super::mailbox::Mailbox;
use super::new_qp::NewQp;
use super::place;
use super::regions::RegionsView;
use super::shared::{CmMessage, DeviceShared, GroupHandle, GroupMessage, MAX_MAIL};
use super::sleep::Sleep;
use super::wire::{Arrived, Datagram, SenderSet, Wire, WireCounters};
use crate::{
    Group, GroupConfig, GroupStats, PushError, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Sge,
    Time, WakeFor, Wc,
};

/// Maximum number of rounds of receiving and sending in one `poll`.
const ROUNDS: usize = 8;

/// A group of a software device.
pub struct RoceGroup<F: Fabric> {
    shared: Arc<DeviceShared<F>>,
    index: u8,
    engine: GroupEngine,
    /// `None` only during `drop`, which returns it to the device.
    wire: Option<F::Wire>,
    sleep: Option<Sleep>,
    now: Time,
    busy: bool,
    /// True if sending was postponed in the last `poll`: the caller got completions, and
    /// acknowledgements can be sent together with the requests that it flushes next. It is not
    /// postponed twice.
    held: bool,
    /// Senders whose writability also ends the sleep.
    awaiting_room: SenderSet,
}

impl<F: Fabric> RoceGroup<F> {
    pub(super) fn new(
        shared: Arc<DeviceShared<F>>,
        index: usize,
        wire: F::Wire,
        config: &GroupConfig,
    ) -> io::Result<Self> {
        let engine =
            GroupEngine::new(config.queue_pairs as usize, shared.fabric.receive_buffer_bytes());
        let sleep = Sleep::new(wire.receiver(), None, shared.groups[index - 1].fd())?;
        let index = u8::try_from(index).expect("at most 255 groups");
        let now = Time::ZERO;
        Ok(Self {
            shared,
            index,
            engine,
            wire: Some(wire),
            sleep,
            now,
            busy: true,
            held: false,
            awaiting_room: SenderSet::default(),
        })
    }

    fn mailbox(&self) -> &Mailbox<GroupMessage> {
        &self.shared.groups[usize::from(self.index) - 1]
    }

    /// Receives a batch and processes it; returns whether more may be waiting.
    fn receive(&mut self, now: Time) -> bool {
        let Self { shared, index, engine, wire, .. } = self;
        let wire = wire.as_mut().expect("a group has its wire until it is dropped");
        let memory = shared.regions.view(usize::from(*index) - 1);
        let mut turn = ReceiveTurn { now, index: *index, shared, engine };
        let (mut read_mail, mut bytes) = (false, 0);
        let arrived = wire.receive(now, |datagram| {
            // A queue pair's `Connect` message is sent before its first packet can arrive.
            if !std::mem::replace(&mut read_mail, true) {
                turn.read_mail(&memory);
            }
            bytes += datagram.bytes.len() as u64;
            turn.handle(&memory, &datagram);
        });
        if !read_mail {
            turn.read_mail(&memory);
        }
        while let Some(peer) = wire.next_unreachable() {
            if shared.cm.len() < MAX_MAIL {
                shared.cm.send(CmMessage::Unreachable(peer));
            }
        }
        engine.note_overflows(now, wire.overflows());
        let Arrived { more, .. } = arrived;
        engine.expire(now, bytes, !more);
        more
    }

    /// Sends what is ready; returns whether there is more to send now.
    fn send(&mut self, now: Time) -> bool {
        let Self { shared, index, engine, wire, .. } = self;
        let wire = wire.as_mut().expect("a group has its wire until it is dropped");
        let memory = shared.regions.view(usize::from(*index) - 1);
        let more = engine.send(now, &memory, wire);
        drop(memory);
        self.watch_for_room();
        more
    }

    /// Starts or stops waking on writability of senders, to match the wire's needs.
    fn watch_for_room(&mut self) {
        let Some(wire) = &self.wire else { return };
        let wanted = wire.awaiting_room();
        let changed =
            wanted.symmetric_difference(std::mem::replace(&mut self.awaiting_room, wanted));
        let Some(sleep) = &self.sleep else { return };
        for sender in changed.iter() {
            let fds = [wire.receiver(), wire.sender(sender)];
            if let Err(error) = sleep.watch_for_room(fds, wanted.contains(sender)) {
                // The wire's deadline still ends the sleep.
                tracing::debug!(%error, "waiting for room to send");
            }
        }
    }
}

/// The parts of a group that are used while the wire receives.
struct ReceiveTurn<'a, F: Fabric> {
    now: Time,
    index: u8,
    shared: &'a DeviceShared<F>,
    engine: &'a mut GroupEngine,
}

impl<F: Fabric> ReceiveTurn<'_, F> {
    fn read_mail(&mut self, memory: &RegionsView<'_>) {
        let mailbox = &self.shared.groups[usize::from(self.index) - 1];
        mailbox.quiet();
        while let Some(message) = mailbox.receive() {
            match message {
                GroupMessage::Connect { number, route, announce, connection } => {
                    self.engine.connect(number, route, announce, &connection);
                }
                GroupMessage::Fail { number } => self.engine.fail_numbered(number),
                GroupMessage::Packet(packet) => {
                    self.handle(memory, &packet.datagram());
                }
            }
        }
    }

    fn handle(&mut self, memory: &RegionsView<'_>, datagram: &Datagram<'_>) {
        match self.engine.handle(self.now, self.index, memory, datagram) {
            Handled::Done => {}
            Handled::PeerIsReady(qpn) => self.shared.cm.send(CmMessage::PeerIsReady { qpn }),
            Handled::Foreign(qpn) => {
                if !self.shared.forward(qpn, datagram) {
                    self.engine.count_drop();
                }
            }
        }
    }
}

impl<F: Fabric> Group<F> for RoceGroup<F> {
    fn handle(&self) -> GroupHandle {
        GroupHandle { index: self.index }
    }

    fn adopt(&mut self, qp: NewQp) -> QpKey {
        self.engine.adopt(qp)
    }

    fn qpn(&self, qp: QpKey) -> u32 {
        self.engine.qpn(self.engine.slot(qp))
    }

    fn granted(&self, qp: QpKey) -> QpConfig {
        self.engine.granted(self.engine.slot(qp))
    }

    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError> {
        let slot = self.engine.slot(qp);
        let mut room = [LocalSge::default(); MAX_SGE];
        let mut inline: [&[u8]; MAX_SGE] = [&[]; MAX_SGE];
        let payload = if wr.flags.contains(SendFlags::INLINE) {
            let pieces = inline.get_mut(..wr.sges.len()).ok_or(PushError::TooManySges)?;
            for (piece, sge) in pieces.iter_mut().zip(wr.sges) {
                // SAFETY: the caller keeps the memory of a request valid until it completes.
                *piece = unsafe { bytes_of(sge) };
            }
            rc::Payload::Inline(pieces)
        } else {
            let count = convert::sges(wr.sges, &mut room)?;
            rc::Payload::Regions(&room[..count])
        };
        let request = rc::SendRequest {
            wr_id: wr.wr_id,
            op: convert::op(wr.op),
            flags: convert::flags(wr.flags),
            payload,
        };
        self.engine.post_send(slot, &request).map_err(convert::push_error)?;
        self.engine.count_send();
        Ok(())
    }

    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError> {
        let slot = self.engine.slot(qp);
        let mut room = [LocalSge::default(); MAX_SGE];
        let count = convert::sges(wr.sges, &mut room)?;
        let request = rc::RecvRequest { wr_id: wr.wr_id, sges: &room[..count] };
        self.engine.post_recv(slot, &request).map_err(convert::push_error)
    }

    fn flush(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.held = false;
        self.busy |= self.send(now);
    }

    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize {
        self.now = self.now.max(now);
        let mut count = 0;
        let mut overdue = std::mem::take(&mut self.held);
        for _ in 0..ROUNDS {
            self.busy = self.receive(now);
            count += self.engine.reap(&mut out[count..]);
            self.held = count > 0 && !overdue;
            if !self.held {
                self.busy |= self.send(now);
                overdue = false;
            }
            if !self.busy || count == out.len() {
                break;
            }
        }
        count
    }

    fn deadline(&self) -> Option<Time> {
        let is_blocked = self.wire.as_ref().is_some_and(Wire::is_blocked);
        let engine = &self.engine;
        let engine_busy = if is_blocked { engine.has_completions() } else { engine.is_busy() };
        if self.busy || self.held || engine_busy || !self.mailbox().is_empty() {
            return Some(self.now);
        }
        let held_back = self.wire.as_ref().and_then(Wire::deadline);
        self.engine.deadline().into_iter().chain(held_back).min()
    }

    /// Sockets are always armed.
    fn arm(&mut self, _: WakeFor) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(Sleep::fd)
    }

    fn acknowledge_wake(&mut self) {}

    fn fail(&mut self, qp: QpKey) {
        let slot = self.engine.slot(qp);
        self.engine.fail(slot);
    }

    fn release(&mut self, qp: QpKey) {
        let slot = self.engine.slot(qp);
        self.engine.release(slot);
    }

    fn stats(&self) -> GroupStats {
        let mut stats = self.engine.stats();
        let counters = self.wire.as_ref().map(Wire::counters).unwrap_or_default();
        let WireCounters { send_calls, receive_calls, send_drops } = counters;
        stats += GroupStats { send_calls, receive_calls, send_drops, ..GroupStats::default() };
        stats
    }
}

impl<F: Fabric> Drop for RoceGroup<F> {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.shared.fabric.give_back(usize::from(self.index), wire);
        }
    }
}

/// Borrows the memory of a scatter-gather element without a check of its key.
///
/// # Safety
/// It is readable while the slice is used.
unsafe fn bytes_of<'a>(sge: &Sge) -> &'a [u8] {
    // SAFETY: as the caller promises.
    unsafe { place::bytes(sge.addr, sge.length as usize) }
}
