//! A device of a provider with its connection manager, and the queue pairs of an engine's queues:
//! the only part of an engine that is compiled once for each provider.
#![expect(unsafe_code, reason = "posts capsule memory of its own to queue pairs")]

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::Sgl;
use rdma::{
    CmError, ConnId, ConnOptions, ConnParams, ConnectFailure, ConnectionManager, Device,
    DeviceEvent, Group, GroupConfig, GroupStats, MemoryWindow, Op, Provider, QpConfig, QpKey,
    RecvWr, SendFlags, SendWr, Sge, Time, WakeFor, Wc,
};

use crate::engine::arena::{ArenaKey, QueueKey};
use crate::engine::capsules::{CQE_BYTES, CapsuleMemory};
use crate::engine::connections::ConnectionRole;
use crate::engine::device_events::DeviceEvents;
use crate::engine::earliest;
use crate::engine::wire::{
    Arrival, ArrivalKind, Command, Data, Domain, NewQueue, Violation, Wire, WireEvent, WireFacts,
};
use crate::engine::wr_id::{WrId, WrKind};
use crate::memory::bounce::BouncePool;
use crate::memory::region::{ErasedScope, RegistrationScope};
use crate::types::error::Error;

/// Pause between polls for connection events while no thread sleeps on their descriptor. Twice as
/// long, a busy engine would process them up to 1 ms later.
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(crate) struct Link<P: Provider> {
    cm: P::Cm,
    group: P::Group,
    device_events: DeviceEvents,
    /// Queue pairs by the keys of their queues.
    ends: Vec<Option<QueueEnd<P>>>,
    /// When to poll for connection events again, unless a wake-up comes earlier.
    look_at_connections: Time,
    wcs: Vec<Wc>,
    facts: WireFacts,
    device: P::Device,
}

/// The queue pair of a queue, with the memory of its work requests.
struct QueueEnd<P: Provider> {
    key: QueueKey,
    qp: QpKey,
    memory: CapsuleMemory<P>,
    /// Memory window of each command slot that has used one.
    windows: Box<[Option<P::Window>]>,
    scope: Arc<RegistrationScope<P>>,
}

impl<P: Provider> Link<P> {
    /// Takes over a device that no other link uses.
    pub(crate) fn new(device: P::Device) -> io::Result<Self> {
        let config = GroupConfig { completions: 64 * 1024, queue_pairs: 64, completion_vector: 0 };
        let facts = WireFacts {
            provider: P::NAME,
            shares_memory: P::SHARES_MEMORY,
            address: device.local_ip(),
            caps: device.caps().clone(),
        };
        Ok(Self {
            cm: device.connection_manager()?,
            group: device.group(&config)?,
            device_events: DeviceEvents::of::<P>(&device)?,
            ends: Vec::new(),
            look_at_connections: Time::ZERO,
            wcs: Vec::new(),
            facts,
            device,
        })
    }

    fn end(&mut self, queue: QueueKey) -> io::Result<(&mut QueueEnd<P>, &mut P::Group)> {
        let end = self.ends.get_mut(queue.index()).and_then(Option::as_mut);
        Ok((end.ok_or_else(|| io::Error::other("the queue has no queue pair"))?, &mut self.group))
    }

    /// Returns the queue whose queue pair has a number.
    fn queue_of(&self, qpn: u32) -> Option<QueueKey> {
        let mut ends = self.ends.iter().flatten();
        ends.find(|end| self.group.qpn(end.qp) == qpn).map(|end| end.key)
    }

    /// Returns the next failure that the device reports; other events are logged.
    fn next_failure(&mut self, now: Time) -> Option<WireEvent> {
        while let Some(event) = self.device_events.next::<P>(now, &self.device) {
            let WireFacts { address, caps, .. } = &self.facts;
            let device = caps.name.as_str();
            match event {
                DeviceEvent::PortUp => tracing::info!(%address, device, "the port is up"),
                DeviceEvent::PortDown => tracing::warn!(%address, device, "the port is down"),
                DeviceEvent::QpFatal { qpn } => {
                    if let Some(queue) = self.queue_of(qpn) {
                        return Some(WireEvent::QueueFailed(queue));
                    }
                }
                DeviceEvent::DeviceFatal | DeviceEvent::CqError => {
                    return Some(WireEvent::DeviceFailed);
                }
                other => tracing::debug!(%address, device, ?other, "an event of the device"),
            }
        }
        None
    }

    fn is_connection_due(&self, now: Time) -> bool {
        now >= self.look_at_connections || self.cm.deadline().is_some_and(|time| time <= now)
    }

    /// Adopts a queue pair that was created for a queue, and posts its receives. After an error it
    /// is released.
    fn adopt(
        &mut self,
        new: P::NewQp,
        queue: QueueKey,
        slots: u16,
        scope: Arc<RegistrationScope<P>>,
    ) -> Result<(), Error> {
        let qp = self.group.adopt(new);
        let end = QueueEnd::new(queue, qp, slots, scope).and_then(|end| {
            (0..slots).try_for_each(|index| end.post_receive(&mut self.group, index))?;
            Ok(end)
        });
        if self.ends.len() <= queue.index() {
            self.ends.resize_with(queue.index() + 1, || None);
        }
        self.ends[queue.index()] = Some(end.inspect_err(|_| self.group.release(qp))?);
        Ok(())
    }

    fn release(&mut self, queue: QueueKey) {
        if let Some(end) = self.ends.get_mut(queue.index()).and_then(Option::take) {
            self.group.release(end.qp);
        }
    }
}

impl<P: Provider> Wire for Link<P> {
    fn facts(&self) -> &WireFacts {
        &self.facts
    }

    fn domain(&self) -> io::Result<Domain> {
        let scope = Arc::new(RegistrationScope::<P>::new(&self.device)?);
        let bounce = BouncePool::new::<P>(scope.device())?;
        Ok(Domain { scope, bounce })
    }

    fn resolve(
        &mut self,
        now: Time,
        to: SocketAddr,
        timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, Error> {
        self.cm.resolve(now, to, timeout, options).map_err(local)
    }

    fn connect(&mut self, now: Time, new: NewQueue<'_>, params: &ConnParams) -> Result<(), Error> {
        let NewQueue { key, conn, slots, send_wr, scope } = new;
        let scope: Arc<dyn Any + Send + Sync> = Arc::<dyn ErasedScope>::clone(scope);
        let other = |_| io::Error::other("a protection domain of another provider");
        let scope = scope.downcast::<RegistrationScope<P>>().map_err(other)?;
        let config =
            QpConfig { send_wr, recv_wr: slots.into(), send_sge: 2, recv_sge: 1, inline_bytes: 0 };
        let group = self.group.handle();
        let qp = self.cm.create_qp(conn, &group, scope.device(), &config).map_err(local)?;
        self.adopt(qp, key, slots, scope)?;
        let requested = self.cm.connect(now, conn, params).map_err(local);
        requested.inspect_err(|_| self.release(key))
    }

    fn disconnect(
        &mut self,
        now: Time,
        queues: &[QueueKey],
        connections: &[(ConnId, ConnectionRole)],
    ) {
        // All queue pairs are failed first, since data of a command could arrive on another
        // queue's.
        for queue in queues {
            if let Some(end) = self.ends.get(queue.index()).and_then(Option::as_ref) {
                self.group.fail(end.qp);
            }
        }
        for &(id, role) in connections {
            match role {
                ConnectionRole::Open { .. } => self.cm.disconnect(now, id),
                ConnectionRole::Opening { .. } | ConnectionRole::Closing => self.cm.close(id),
            }
        }
        for &queue in queues {
            self.release(queue);
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.cm.close(conn);
    }

    fn next_event(&mut self, now: Time, is_idle: bool) -> Option<WireEvent> {
        let failure = self.next_failure(now);
        if failure.is_some() || (is_idle && !self.is_connection_due(now)) {
            return failure;
        }
        let event = self.cm.poll(now);
        self.look_at_connections = match event {
            Some(_) => Time::ZERO,
            None => now + if self.cm.fd().is_some() { LOOK_EVERY } else { Duration::ZERO },
        };
        event.map(WireEvent::Connection)
    }

    fn cause_of_silence(&self) -> ConnectFailure {
        self.cm.cause_of_silence()
    }

    fn send(&mut self, command: Command<'_>) -> io::Result<Option<u32>> {
        let (end, group) = self.end(command.queue)?;
        end.send(group, command)
    }

    fn invalidate(&mut self, queue: QueueKey, index: u16, rkey: u32) -> io::Result<()> {
        let (end, group) = self.end(queue)?;
        let op = Op::LocalInvalidate { rkey };
        // SAFETY: an invalidation has no memory of its own.
        unsafe { end.push(group, WrKind::Invalidate, index, op, SendFlags::SIGNALED, &[]) }
    }

    fn poll(&mut self, now: Time, most: usize, arrivals: &mut Vec<Arrival>) -> bool {
        let Self { ends, group, wcs, .. } = self;
        if wcs.len() < most {
            wcs.resize(most, Wc::default());
        }
        let count = group.poll(now, &mut wcs[..most]);
        for wc in &wcs[..count] {
            let WrId { queue, kind, index } = WrId::unpack(wc.wr_id);
            // The queue was released since, and another may have its key.
            let end = ends.get(queue.index()).and_then(Option::as_ref);
            let Some(end) = end.filter(|end| group.qpn(end.qp) == wc.qpn) else { continue };
            let what = match kind {
                _ if !wc.is_success() => ArrivalKind::Failed(wc.status),
                WrKind::Receive => end.receive(group, index, wc),
                WrKind::Send => ArrivalKind::Sent { index },
                WrKind::Invalidate => ArrivalKind::Invalidated { index },
                WrKind::Bind => continue,
            };
            arrivals.push(Arrival { queue, what });
        }
        count > 0
    }

    fn flush(&mut self, now: Time) {
        self.group.flush(now);
    }

    fn deadline(&self) -> Option<Time> {
        earliest(self.group.deadline(), self.cm.deadline())
    }

    fn arm(&mut self) {
        // Drivers always turn between this call and their sleep.
        self.group.arm(WakeFor::Everything);
    }

    fn acknowledge(&mut self) {
        self.group.acknowledge_wake();
        self.device_events.woken();
        self.look_at_connections = Time::ZERO;
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.group.fd().into_iter().chain(self.cm.fd()).chain(self.device_events.fd()).collect()
    }

    fn stats(&self) -> GroupStats {
        self.group.stats()
    }
}

impl<P: Provider> QueueEnd<P> {
    fn new(
        key: QueueKey,
        qp: QpKey,
        slots: u16,
        scope: Arc<RegistrationScope<P>>,
    ) -> io::Result<Self> {
        let memory = CapsuleMemory::new(scope.device(), slots.into())?;
        let windows = (0..slots).map(|_| None).collect();
        Ok(Self { key, qp, memory, windows, scope })
    }

    /// Pushes a command, after the bind of its memory window if it needs one; returns the remote
    /// key of the window.
    fn send(&mut self, group: &mut P::Group, command: Command<'_>) -> io::Result<Option<u32>> {
        let Command { index, mut sqe, list, data, is_reported, .. } = command;
        let mut window = None;
        let mut payload = (!list.is_empty()).then(|| self.memory.write_list(index, list));
        match data {
            Data::None => {}
            Data::Keyed { address, length, rkey } => {
                sqe = sqe.with_data(Sgl::Keyed { address, length, key: rkey, invalidate: false });
            }
            Data::InCapsule(sge) => {
                sqe = sqe.with_data(Sgl::InCapsule { offset: 0, length: sge.length });
                payload = Some(sge);
            }
            Data::Window { address, length, .. } => {
                let (bind, rkey) = self.bind(index, &data)?;
                // SAFETY: a bind has no memory of its own.
                unsafe { self.push(group, WrKind::Bind, index, bind, SendFlags::NONE, &[]) }?;
                sqe = sqe.with_data(Sgl::Keyed { address, length, key: rkey, invalidate: true });
                window = Some(rkey);
            }
        }
        let capsule = self.memory.write_command(index, &sqe);
        let sges = [capsule, payload.unwrap_or_default()];
        let used = if payload.is_some() { 2 } else { 1 };
        let flags = if is_reported { SendFlags::SIGNALED } else { SendFlags::NONE };
        // SAFETY: the capsule stays where it is until the queue pair is released, and data sent
        // with it is not handed back before the SEND completes (`CommandSlot::covers`).
        unsafe { self.push(group, WrKind::Send, index, Op::Send, flags, &sges[..used]) }?;
        Ok(window)
    }

    /// Returns the bind of the window of a slot to the memory of a command, and its remote key.
    fn bind(&mut self, index: u16, data: &Data<'_>) -> io::Result<(Op, u32)> {
        let Data::Window { slice, address, length, access } = *data else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let window = match &mut self.windows[usize::from(index)] {
            Some(window) => window,
            none => none.insert(self.scope.device().window()?),
        };
        let bind = |region: &P::Region| window.bind(region, address, length.into(), access);
        let bind = slice.with_registration(&*self.scope, bind);
        let bind = bind.ok_or_else(|| io::Error::other("the memory is not registered"))?;
        Ok((bind, window.rkey()))
    }

    /// Returns the response in a receive buffer, which is posted again.
    fn receive(&self, group: &mut P::Group, buffer: u16, wc: &Wc) -> ArrivalKind {
        if wc.byte_len as usize != CQE_BYTES {
            return ArrivalKind::Malformed(Violation("a response capsule is not 16 bytes long"));
        }
        let cqe = self.memory.read_response(buffer);
        match self.post_receive(group, buffer) {
            Ok(()) => ArrivalKind::Response { cqe, invalidated: wc.invalidated() },
            Err(_) => ArrivalKind::Malformed(Violation("a receive could not be posted")),
        }
    }

    fn post_receive(&self, group: &mut P::Group, index: u16) -> io::Result<()> {
        let wr_id = WrId { queue: self.key, kind: WrKind::Receive, index }.pack();
        let sges = [self.memory.response_sge(index)];
        // SAFETY: the buffer is read only between the completion of this receive and the next post.
        unsafe { group.push_recv(self.qp, &RecvWr { wr_id, sges: &sges }) }
            .map_err(io::Error::other)
    }

    /// # Safety
    /// The caller keeps the contract of [`Group::push_send`].
    unsafe fn push(
        &self,
        group: &mut P::Group,
        kind: WrKind,
        index: u16,
        op: Op,
        flags: SendFlags,
        sges: &[Sge],
    ) -> io::Result<()> {
        let wr_id = WrId { queue: self.key, kind, index }.pack();
        // SAFETY: handed on to the caller.
        unsafe { group.push_send(self.qp, &SendWr { wr_id, op, flags, sges }) }
            .map_err(io::Error::other)
    }
}

fn local(error: CmError) -> Error {
    match error {
        CmError::Io(error) => error.into(),
        other => io::Error::other(other).into(),
    }
}
