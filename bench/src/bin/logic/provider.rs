//! Provider within the target's process that does almost nothing.
#![expect(unsafe_code, reason = "implements methods that take memory by address")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rdma::{
    Access, Caps, CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device,
    Group, GroupConfig, GroupStats, Mem, MemoryRegion, MemoryWindow, Op, Provider, PushError,
    QpConfig, QpKey, RecvWr, RegionHandle, SendFlags, SendWr, Sge, StillRegistered, Time, WakeFor,
    Wc, WcOpcode,
};

use crate::wire::{IO, LISTENER, LoopbackWire, QUEUE_ENTRIES, READ_ADDRESS};

/// IP address of the only device.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const BATCH: usize = 64;

/// Provider whose device passes work requests to a [`LoopbackWire`].
pub(crate) struct InProcess;

#[derive(Clone)]
pub(crate) struct InProcessDevice {
    wire: Arc<LoopbackWire>,
    caps: Arc<Caps>,
}

pub(crate) struct InProcessGroup(Arc<LoopbackWire>);

pub(crate) struct InProcessCm(Arc<LoopbackWire>);

pub(crate) struct NoRegion;

/// Type of memory windows. The target opens none.
pub(crate) enum NoWindow {}

/// Queue pair that is not connected yet. It is identified by its connection.
pub(crate) struct NewQueuePair {
    conn: ConnId,
}

impl Provider for InProcess {
    const NAME: &'static str = "in-process";
    type Device = InProcessDevice;
    type Region = NoRegion;
    type Window = NoWindow;
    type Group = InProcessGroup;
    type GroupHandle = ();
    type NewQp = NewQueuePair;
    type Cm = InProcessCm;
}

impl InProcessDevice {
    pub(crate) fn new(wire: Arc<LoopbackWire>) -> Self {
        Self { wire, caps: Arc::new(Caps::software("in-process")) }
    }
}

impl Device<InProcess> for InProcessDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn local_ip(&self) -> IpAddr {
        ADDRESS.into()
    }

    fn in_new_domain(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    unsafe fn register(&self, _: Mem<'_>, _: Access) -> io::Result<NoRegion> {
        Ok(NoRegion)
    }

    fn window(&self) -> io::Result<NoWindow> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn group(&self, _: &GroupConfig) -> io::Result<InProcessGroup> {
        Ok(InProcessGroup(Arc::clone(&self.wire)))
    }

    fn connection_manager(&self) -> io::Result<InProcessCm> {
        Ok(InProcessCm(Arc::clone(&self.wire)))
    }
}

impl MemoryRegion for NoRegion {
    fn lkey(&self) -> u32 {
        1
    }

    fn rkey(&self) -> u32 {
        1
    }

    fn handle(&self) -> RegionHandle {
        RegionHandle(1)
    }

    fn deregister(self) -> Result<(), StillRegistered> {
        Ok(())
    }
}

impl MemoryWindow<InProcess> for NoWindow {
    fn rkey(&self) -> u32 {
        match *self {}
    }

    fn bind(&mut self, _: &NoRegion, _: u64, _: u64, _: Access) -> Op {
        match *self {}
    }
}

impl Group<InProcess> for InProcessGroup {
    fn handle(&self) {}

    fn adopt(&mut self, qp: NewQueuePair) -> QpKey {
        QpKey(qp.conn.0)
    }

    fn qpn(&self, qp: QpKey) -> u32 {
        qp.0 as u32
    }

    fn granted(&self, _: QpKey) -> QpConfig {
        QpConfig { send_wr: 256, recv_wr: 256, send_sge: 1, recv_sge: 2, inline_bytes: 0 }
    }

    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError> {
        self.0.lock().push_send(qp.0 as usize, wr);
        Ok(())
    }

    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError> {
        self.0.lock().push_recv(qp.0 as usize, wr);
        Ok(())
    }

    fn flush(&mut self, _: Time) {}

    fn poll(&mut self, _: Time, out: &mut [Wc]) -> usize {
        self.0.lock().poll(out)
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self, _: WakeFor) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn acknowledge_wake(&mut self) {}

    fn fail(&mut self, _: QpKey) {}

    fn release(&mut self, _: QpKey) {}

    fn stats(&self) -> GroupStats {
        GroupStats::default()
    }
}

impl ConnectionManager<InProcess> for InProcessCm {
    fn listen(&mut self, _: SocketAddr, _: &ConnOptions) -> Result<ConnId, CmError> {
        Ok(LISTENER)
    }

    fn resolve(
        &mut self,
        _: Time,
        _: SocketAddr,
        _: Duration,
        _: &ConnOptions,
    ) -> Result<ConnId, CmError> {
        Err(CmError::WrongState)
    }

    fn create_qp(
        &mut self,
        conn: ConnId,
        (): &(),
        _: &InProcessDevice,
        _: &QpConfig,
    ) -> Result<NewQueuePair, CmError> {
        Ok(NewQueuePair { conn })
    }

    fn connect(&mut self, _: Time, _: ConnId, _: &ConnParams) -> Result<(), CmError> {
        Err(CmError::WrongState)
    }

    fn accept(&mut self, _: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        self.0.accept(conn, params);
        Ok(())
    }

    fn reject(&mut self, _: Time, _: ConnId, _: &[u8]) -> Result<(), CmError> {
        Ok(())
    }

    fn disconnect(&mut self, _: Time, _: ConnId) {}

    fn close(&mut self, _: ConnId) {}

    fn poll(&mut self, _: Time) -> Option<CmEvent> {
        self.0.next_event()
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(SocketAddr::from((ADDRESS, 4420)))
    }
}

/// Makes the provider calls that a target makes for as many reads, and does nothing else.
pub(crate) fn loop_alone(reads: u64) {
    let wire = Arc::new(LoopbackWire::default());
    wire.request_connection(IO, QUEUE_ENTRIES);
    let mut group = InProcessGroup(Arc::clone(&wire));
    let memory = Box::leak(vec![0_u8; BATCH * 64].into_boxed_slice()).as_mut_ptr();
    let base = memory.expose_provenance() as u64;
    let sges = |index: u64| [Sge { addr: base + index * 64, length: 64, lkey: 1 }];
    let qp = QpKey(IO as u64);
    for index in 0..BATCH as u64 {
        // SAFETY: leaked memory, which nothing else uses.
        let _ = unsafe { group.push_recv(qp, &RecvWr { wr_id: index, sges: &sges(index) }) };
    }
    wire.ask_for_reads(reads, 1);
    let mut completions = [Wc::default(); BATCH];
    while !wire.all_read() {
        let count = group.poll(Time::ZERO, &mut completions);
        for wc in completions[..count].iter().filter(|wc| wc.opcode == WcOpcode::RECV) {
            answer(&mut group, qp, wc.wr_id, &sges(wc.wr_id));
        }
        group.flush(Time::ZERO);
    }
}

fn answer(group: &mut InProcessGroup, qp: QpKey, wr_id: u64, sges: &[Sge]) {
    let write = Op::RdmaWrite { remote_addr: READ_ADDRESS, rkey: 1 };
    let data = SendWr { wr_id, op: write, flags: SendFlags::NONE, sges };
    let response = SendWr { wr_id, op: Op::Send, flags: SendFlags::SIGNALED, sges };
    // SAFETY: leaked memory, which nothing else uses.
    unsafe {
        let _ = group.push_recv(qp, &RecvWr { wr_id, sges });
        let _ = group.push_send(qp, &data);
        let _ = group.push_send(qp, &response);
    }
}
