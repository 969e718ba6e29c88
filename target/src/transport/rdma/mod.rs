//! NVMe/RDMA transport, on any RDMA provider.
//!
//! One [`RdmaAcceptor`] for each device accepts connection requests and assigns them to cores. One
//! [`RdmaTransport`] for each device and core owns the queue pairs there and moves capsules and
//! data.

mod acceptor;
mod area;
mod connection;
mod device_parts;
mod message;
mod negotiation;
mod tracked;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use std::{iter, mem};

use ::rdma::{
    ConnId, Deadlines, Device, Group, GroupConfig, GroupStats, MemoryRegion, Provider, Time,
    WakeFor, Wc,
};
use crossbeam::channel::{Receiver, Sender, unbounded};
use slab::Slab;

pub(crate) use self::acceptor::RdmaAcceptor;
pub(crate) use self::device_parts::{DeviceParts, GroupInbox, RegisteredPool};

use self::area::Area;
use self::connection::{
    Connection, Ended, EnteredConnection, TransportConfig, TurnContext, WorkId, WorkKind,
};
use self::message::{ConnectionUpdate, NewConnection, ToAcceptor, ToGroup};
use super::{DeviceFailure, Stop};
use crate::backend::BackendError;
use crate::controller::Accepted;
use crate::core_context::pool::Buffer;
use crate::core_context::throttle::WaitEnd;
use crate::core_context::{CoreContext, RequestKey};
use crate::doorbell::Doorbell;
use crate::doorbell::ready_list::ReadyList;
use crate::limits::COMPLETIONS_PER_GROUP;
use crate::limits::turn::{COMPLETIONS_AT_ONCE, HALVING_MIN_COMMANDS};
use crate::poll_group::Transport;

/// Pause between two turns after which Keep Alive Timeouts are checked: the granularity of these
/// timeouts. With a longer one, a command of a host that has connected again could be executed; a
/// shorter one would check more often than needed.
const PAUSE: Duration = Duration::from_millis(100);

/// Transport of one device on one core: its queue pairs and their connections.
pub(crate) struct RdmaTransport<P: Provider> {
    // Dropped first, so that their memory is deregistered before the device's group is dropped.
    connections: Slab<Connection<P>>,
    device: P::Device,
    group: P::Group,
    /// Memory region of the buffer pool at this device.
    _pool: Arc<RegisteredPool<P>>,
    config: TransportConfig,
    inbox: Receiver<ToGroup<P>>,
    acceptor: Sender<ToAcceptor>,
    acceptor_bell: Arc<Doorbell>,
    /// Connections to which other threads have posted something.
    ready: Arc<ReadyList>,
    /// Buffer for polled completions.
    completions: Box<[Wc]>,
    /// Number of connections that cannot continue before a send completes.
    awaiting_sends: usize,
    /// Whether the last poll returned no completion.
    idle: bool,
    /// Keys of ending connections, until their last storage operation has ended.
    ending: Vec<usize>,
    /// Keys of connections with responses to send at the end of the turn.
    answering: Vec<usize>,
    /// Connections with commands that wait for the next turn, since this one has read enough.
    reading: Vec<usize>,
    /// Times at which connections must be looked at, by key.
    deadlines: Deadlines,
    /// Keys of the connections that are being looked at; kept for its memory.
    looking: Vec<u32>,
    /// Time of the last turn, by which a pause is noticed.
    latest_turn: Time,
    /// Number of pauses so far.
    pauses: u32,
    stop: Option<Stop>,
    /// Whether the device was removed or has failed, so that completions do not arrive.
    failed: bool,
    /// Reference by whose count `Devices` sees that this transport exists.
    _failure: Arc<DeviceFailure>,
}

impl<P: Provider> RdmaTransport<P> {
    /// Creates the transport of one core; `index` is that in its poll group.
    ///
    /// # Errors
    /// The error of creating the group.
    pub(crate) fn new(
        parts: &DeviceParts<P>,
        index: u8,
        core: u32,
        bell: Arc<Doorbell>,
    ) -> std::io::Result<(Self, GroupInbox<P>)> {
        let config = GroupConfig {
            completions: COMPLETIONS_PER_GROUP.min(parts.device.caps().max_cqe),
            queue_pairs: 64,
            completion_vector: core,
        };
        let group = parts.device.group(&config)?;
        let (sender, inbox) = unbounded();
        let port = GroupInbox { handle: group.handle(), inbox: sender, bell: Arc::clone(&bell) };
        let transport = Self {
            connections: Slab::new(),
            device: parts.device.clone(),
            group,
            config: TransportConfig {
                pool_key: parts.pool.region().lkey(),
                can_invalidate: parts.device.caps().send_with_invalidate,
                trains: parts.device.caps().trains,
                transport: index,
                draining: false,
            },
            _pool: Arc::clone(&parts.pool),
            inbox,
            acceptor: parts.acceptor.clone(),
            acceptor_bell: Arc::clone(&parts.acceptor_bell),
            ready: ReadyList::new(bell),
            completions: vec![Wc::default(); COMPLETIONS_AT_ONCE].into(),
            awaiting_sends: 0,
            idle: true,
            ending: Vec::new(),
            answering: Vec::new(),
            reading: Vec::new(),
            deadlines: Deadlines::default(),
            looking: Vec::new(),
            latest_turn: Time::ZERO,
            pauses: 0,
            stop: None,
            failed: false,
            _failure: Arc::clone(&parts.failure),
        };
        Ok((transport, port))
    }

    fn notify_acceptor(&self, conn: ConnId, update: ConnectionUpdate) {
        // The receiver is dropped only with the acceptor, which then needs no message.
        let _ = self.acceptor.send(ToAcceptor { conn, update });
        self.acceptor_bell.ring();
    }

    fn read_inbox(&mut self, core: &mut CoreContext) -> bool {
        let mut progress = false;
        while let Ok(message) = self.inbox.try_recv() {
            progress = true;
            match message {
                ToGroup::Adopt(new) => self.adopt(core, *new),
                ToGroup::Lost(conn) => {
                    let found = self.connections.iter().find(|(_, other)| other.conn() == conn);
                    if let Some((key, _)) = found {
                        self.end(core, key, &Ended::Disconnected);
                    }
                }
                ToGroup::Displace(conn) => {
                    let mut connections = self.connections.iter();
                    let found = connections
                        .find(|(_, other)| other.conn() == conn && !other.is_connected());
                    if let Some((key, _)) = found {
                        self.end(core, key, &Ended::Displaced);
                    }
                }
                ToGroup::QueuePairFailed(qpn) => {
                    let mut connections = self.connections.iter();
                    // The group has released the queue pairs of ending connections.
                    let found = connections
                        .find(|(_, other)| !other.is_ending() && self.group.qpn(other.qp()) == qpn);
                    if let Some((key, _)) = found {
                        self.end(core, key, &Ended::QueuePairFailed);
                    }
                }
                ToGroup::DeviceFailed => {
                    self.failed = true;
                    self.end_all(core, &Ended::DeviceFailed, |_| true);
                }
            }
        }
        progress
    }

    fn adopt(&mut self, core: &mut CoreContext, new: NewConnection<P>) {
        let NewConnection { conn, qp, negotiated, port, peer, lost } = new;
        let qp = self.group.adopt(qp);
        let area = match Area::new(&self.device, negotiated.layout()) {
            Ok(area) if self.stop.is_none() => area,
            refused => {
                if let Err(error) = refused
                    && core.associations.log_rate().admit(core.now)
                {
                    tracing::warn!(%peer, %error, "no memory for a connection");
                }
                self.group.release(qp);
                return self.notify_acceptor(conn, ConnectionUpdate::Refused);
            }
        };
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let mark = self.ready.mark(key as u32);
        let accepted = Accepted {
            port,
            qid: negotiated.qid,
            entries: negotiated.connect_entries,
            peer,
            waker: Waker::from(Arc::clone(&mark)),
            now: core.now,
            lost,
        };
        let mut context = TurnContext::<P>::new(&mut self.group, core, &self.device, &self.config);
        let entered = EnteredConnection { key, conn, qp, mark, pauses: self.pauses };
        let connection = Connection::new(entered, area, negotiated, &mut context, accepted);
        let connection = entry.insert(connection);
        // Each connection is listed once at most.
        self.deadlines.reserve(key + 1);
        match connection.post_receives(&mut context) {
            Ok(()) => self.notify_acceptor(conn, ConnectionUpdate::Ready),
            Err(ended) => self.end(core, key, &ended),
        }
        self.answering.reserve(self.connections.len());
        self.reading.reserve(self.connections.len());
        self.looking.reserve(self.connections.len());
        self.note_deadline(key);
    }

    fn poll_completions(&mut self, core: &mut CoreContext) -> bool {
        let mut completions = mem::take(&mut self.completions);
        let mut progress = false;
        loop {
            let count = self.group.poll(core.now, &mut completions);
            let idle = mem::replace(&mut self.idle, count == 0);
            let (first, second) = match idle {
                true => halves(&completions[..count]),
                false => (&completions[..count], &[][..]),
            };
            self.handle_completions(core, first);
            if !second.is_empty() {
                self.flush_answers(core);
                self.handle_completions(core, second);
            }
            progress |= count > 0;
            if count < COMPLETIONS_AT_ONCE {
                self.completions = completions;
                return progress;
            }
        }
    }

    fn handle_completions(&mut self, core: &mut CoreContext, completions: &[Wc]) {
        let of_one = |one: &Wc, next: &Wc| WorkId::of_one_connection(one.wr_id, next.wr_id);
        for run in completions.chunk_by(of_one) {
            self.completed(core, connection_of(&run[0]), run);
        }
    }

    fn flush_answers(&mut self, core: &mut CoreContext) {
        if !self.answering.is_empty() {
            self.answer(core);
            self.group.flush(core.now);
        }
    }

    /// Handles completions of one connection.
    fn completed(&mut self, core: &mut CoreContext, key: usize, run: &[Wc]) {
        self.with(core, key, |connection, context| {
            run.iter().try_for_each(|completion| connection.completed(context, completion))
        });
    }

    /// Calls a method of a connection that is not ending, handles its requests to the transport,
    /// and ends the connection if the method returns an error.
    fn with(
        &mut self,
        core: &mut CoreContext,
        key: usize,
        act: impl FnOnce(&mut Connection<P>, &mut TurnContext<'_, P>) -> Result<(), Ended>,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_ending() {
            return;
        }
        let mut context = TurnContext::<P>::new(&mut self.group, core, &self.device, &self.config);
        let result = match connection.missed(self.pauses) {
            true => connection.end_if_abandoned(&context),
            false => Ok(()),
        };
        let result = result.and_then(|()| act(connection, &mut context));
        connection.count_in(&mut self.awaiting_sends);
        if context.answers {
            self.answering.push(key);
        }
        if context.waits_for_turn {
            self.reading.push(key);
        }
        let connected = context.connected;
        if let Some(at) = context.look_at {
            self.deadlines.at_latest(key as u32, at);
        }
        if connected && let Some(connection) = self.connections.get(key) {
            self.notify_acceptor(connection.conn(), ConnectionUpdate::Connected);
        }
        if let Err(ended) = result {
            self.end(core, key, &ended);
        }
    }

    /// Ends a connection that was not looked at since a pause, if its host has abandoned it.
    fn end_if_abandoned(&mut self, core: &mut CoreContext, key: usize) {
        self.with(core, key, |_, _| Ok(()));
    }

    /// Continues connections whose commands waited because the last turn had read enough.
    fn continue_reading(&mut self, core: &mut CoreContext) -> bool {
        let mut keys = mem::take(&mut self.reading);
        let progress = !keys.is_empty();
        for &key in &keys {
            self.with(core, key, Connection::begin_turn);
        }
        // Those that wait again, in their order.
        keys.clear();
        keys.append(&mut self.reading);
        self.reading = keys;
        progress
    }

    /// Sends the responses of the turn.
    fn answer(&mut self, core: &mut CoreContext) {
        while let Some(key) = self.answering.pop() {
            self.with(core, key, Connection::send_responses);
        }
    }

    /// Notices that the whole process was paused: commands in the receive queue may then be from
    /// hosts that have connected again and sent others, so they must not be executed. Each
    /// connection is checked when it is used next. One that is not used has a deadline by the time
    /// that its host may rely on, and those come first.
    fn notice_pause(&mut self, core: &mut CoreContext) {
        let paused = core.now >= self.latest_turn + PAUSE;
        self.latest_turn = core.now;
        if paused {
            self.pauses = self.pauses.wrapping_add(1);
            self.look_at_due(core);
        }
    }

    /// Looks at the connections to which other threads have posted something.
    fn look_at_ready(&mut self, core: &mut CoreContext) {
        let mut keys = mem::take(&mut self.looking);
        self.ready.take(&mut keys);
        self.look(core, keys);
    }

    /// Looks at the connections whose deadline has come.
    fn look_at_due(&mut self, core: &mut CoreContext) {
        if self.deadlines.earliest().is_none_or(|at| at > core.now) {
            return;
        }
        let mut keys = mem::take(&mut self.looking);
        keys.clear();
        keys.extend(iter::from_fn(|| self.deadlines.pop_due(core.now)));
        self.look(core, keys);
    }

    /// Calls [`Connection::look`] for these connections, which get their next deadlines.
    fn look(&mut self, core: &mut CoreContext, keys: Vec<u32>) {
        for &key in &keys {
            self.with(core, key as usize, Connection::look);
            self.note_deadline(key as usize);
        }
        self.looking = keys;
    }

    fn note_deadline(&mut self, key: usize) {
        let connection = self.connections.get(key);
        if let Some(at) = connection.and_then(Connection::deadline) {
            self.deadlines.at_latest(key as u32, at);
        }
    }

    fn end(&mut self, core: &mut CoreContext, key: usize, why: &Ended) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_ending() {
            return;
        }
        let conn = connection.conn();
        let mut context = TurnContext::<P>::new(&mut self.group, core, &self.device, &self.config);
        connection.end(&mut context, why);
        connection.count_in(&mut self.awaiting_sends);
        self.deadlines.remove(key as u32);
        self.reading.retain(|&other| other != key);
        self.ending.push(key);
        self.notify_acceptor(conn, ConnectionUpdate::Ending);
    }

    /// Frees the ending connections whose last storage operation has ended.
    fn release_resources(&mut self, core: &mut CoreContext) {
        let mut index = 0;
        while index < self.ending.len() {
            let key = self.ending[index];
            if self.connections[key].is_busy() {
                index += 1;
                continue;
            }
            self.ending.swap_remove(index);
            let connection = self.connections.remove(key);
            let conn = connection.conn();
            connection.release_resources(core);
            self.notify_acceptor(conn, ConnectionUpdate::Gone);
        }
    }

    /// Ends all connections, or those without running commands while the target drains.
    fn end_idle(&mut self, core: &mut CoreContext, how: Stop) {
        self.end_all(core, &Ended::Stopping, |connection| {
            how == Stop::Now || connection.is_drained()
        });
    }

    /// Ends the connections that are not ending yet and for which `which` returns true.
    fn end_all(
        &mut self,
        core: &mut CoreContext,
        why: &Ended,
        which: impl Fn(&Connection<P>) -> bool,
    ) {
        let keys: Vec<usize> = (self.connections.iter())
            .filter(|(_, connection)| !connection.is_ending() && which(connection))
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            self.end(core, key, why);
        }
    }
}

/// Splits completions in the middle of those that bring work. The second part is empty if there are
/// fewer than [`HALVING_MIN_COMMANDS`] of them.
fn halves(completions: &[Wc]) -> (&[Wc], &[Wc]) {
    let mut work = (0..).zip(completions).filter(|(_, completion)| brings_work(completion));
    let count = work.clone().count();
    let middle = if count < HALVING_MIN_COMMANDS { None } else { work.nth(count / 2) };
    completions.split_at(middle.map_or(completions.len(), |(middle, _)| middle))
}

fn brings_work(completion: &Wc) -> bool {
    matches!(WorkId::from_bits(completion.wr_id).kind, WorkKind::Receive | WorkKind::Fetch)
}

fn connection_of(completion: &Wc) -> usize {
    WorkId::from_bits(completion.wr_id).connection
}

impl<P: Provider> Drop for RdmaTransport<P> {
    fn drop(&mut self) {
        self.connections.iter_mut().for_each(|(_, connection)| connection.abandon_all());
    }
}

impl<P: Provider> Transport for RdmaTransport<P> {
    fn turn(&mut self, core: &mut CoreContext) -> bool {
        self.notice_pause(core);
        // The poll group has cleared the doorbell; the causes of its ringing are checked here.
        let mut progress = core.rung && self.read_inbox(core);
        progress |= self.continue_reading(core);
        progress |= self.poll_completions(core);
        if core.rung {
            self.look_at_ready(core);
        }
        self.look_at_due(core);
        if let Some(how) = self.stop {
            self.end_idle(core, how);
        }
        if !self.ending.is_empty() {
            self.release_resources(core);
        }
        progress
    }

    fn operation_ended(
        &mut self,
        core: &mut CoreContext,
        whose: RequestKey,
        result: Result<(), BackendError>,
    ) {
        let key = whose.connection as usize;
        self.end_if_abandoned(core, key);
        // A connection waits for its operations.
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_ending() {
            connection.operation_over(core, whose.owner, result);
        } else {
            self.with(core, key, |connection, context| {
                connection.executed(context, whose.owner, result);
                Ok(())
            });
        }
    }

    fn operation_not_cancelled(&mut self, core: &mut CoreContext, whose: RequestKey) {
        self.with(core, whose.connection as usize, |connection, _| {
            connection.not_cancelled(whose.owner);
            Ok(())
        });
    }

    fn quota_passed(&mut self, core: &mut CoreContext, whose: RequestKey, end: WaitEnd) {
        self.with(core, whose.connection as usize, |connection, context| {
            connection.quota_passed(context, whose.owner, end)
        });
    }

    fn buffer_granted(&mut self, core: &mut CoreContext, whose: RequestKey, buffer: Buffer) {
        let key = whose.connection as usize;
        self.end_if_abandoned(core, key);
        match self.connections.get_mut(key) {
            Some(connection) if connection.is_ending() => connection.give_back(core, buffer),
            _ => self.with(core, key, |connection, context| {
                connection.buffer_granted(context, whose.owner, buffer)
            }),
        }
    }

    fn flush(&mut self, core: &mut CoreContext) {
        self.answer(core);
        self.group.flush(core.now);
    }

    fn deadline(&self) -> Option<Time> {
        // It has passed, so that the next turn follows immediately.
        let next_turn = (!self.reading.is_empty()).then_some(Time::ZERO);
        let others = self.group.deadline().into_iter().chain(self.deadlines.earliest());
        others.chain(next_turn).min()
    }

    fn arm(&mut self, what: WakeFor) -> bool {
        let waiting = self.awaiting_sends > 0 || self.stop.is_some();
        self.group.arm(if waiting { WakeFor::Everything } else { what })
    }

    fn woken(&mut self) {
        self.group.acknowledge_wake();
    }

    fn watched(&self) -> Option<RawFd> {
        self.group.fd().map(|fd| fd.as_raw_fd())
    }

    fn stop(&mut self, how: Stop) {
        self.stop = self.stop.max(Some(how));
        // Takes effect immediately: another core may already have ended a queue of an association
        // that has queues here, which finish first.
        self.config.draining = true;
    }

    fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn is_over(&self) -> bool {
        self.failed && self.is_empty()
    }

    fn stats(&self) -> GroupStats {
        self.group.stats()
    }
}

#[cfg(test)]
mod tests {
    use ::rdma::{WcOpcode, WcStatus};
    use proptest::prelude::*;

    use super::*;

    fn completion(kind: WorkKind) -> Wc {
        let id = WorkId { kind, connection: 3, index: 5 };
        Wc::new(id.to_bits(), 7, WcStatus::SUCCESS, WcOpcode::RECV, 0)
    }

    proptest! {
        #[test]
        fn halves_have_half_of_the_work_each(brings_work in prop::collection::vec(any::<bool>(), 0..COMPLETIONS_AT_ONCE)) {
            let kind = |work| if work { WorkKind::Receive } else { WorkKind::Response };
            let all: Vec<Wc> = brings_work.iter().map(|work| completion(kind(*work))).collect();
            let count = brings_work.iter().filter(|work| **work).count();
            let (first, second) = halves(&all);
            let at = first.len();
            prop_assert_eq!(at + second.len(), all.len());
            let of_first = brings_work[..at].iter().filter(|work| **work).count();
            match count {
                HALVING_MIN_COMMANDS.. => prop_assert_eq!(of_first, count / 2),
                _ => prop_assert!(second.is_empty()),
            }
        }
    }
}
