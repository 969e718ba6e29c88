//! Provider and storage engine that record the memory that they are given.
#![expect(unsafe_code, reason = "passes on memory by address")]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feedrail_target::backend::{MemoryPart, SystemCall};
use feedrail_target::error::UringError;
use feedrail_target::stepped::{CallId, Engine, EngineEvent, EngineStats};
use feedrail_target::testing::{BufferRegistration, Uring};
use rdma::sim::{Sim, SimDevice};
use rdma::{
    Access, Caps, CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device,
    Group, GroupConfig, GroupStats, Mem, MemoryWindow, Op, Provider, PushError, QpConfig, QpKey,
    RecvWr, SendWr, Sge, Time, WakeFor, Wc,
};

/// Address range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl Stretch {
    pub(crate) fn contains(self, other: Self) -> bool {
        let end = |stretch: Self| stretch.address + stretch.length;
        self.address <= other.address && end(other) <= end(self)
    }
}

impl From<&Sge> for Stretch {
    fn from(sge: &Sge) -> Self {
        Self { address: sge.addr, length: sge.length.into() }
    }
}

impl From<MemoryPart> for Stretch {
    fn from(part: MemoryPart) -> Self {
        Self { address: part.address() as u64, length: part.length().into() }
    }
}

/// Recorded event, in order.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    /// Memory was registered with the device.
    Registered(Stretch),
    /// The pool was registered with io_uring as fixed buffers; where a limit refuses that, io_uring
    /// gets the same addresses unregistered.
    Fixed,
    /// A receive was posted.
    Receive(Vec<Stretch>),
    /// A send request was posted.
    Send(Op, Vec<Stretch>),
    /// Storage reads a file into memory.
    FileRead(Stretch),
    /// Storage writes memory to a file.
    FileWrite(Stretch),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Record>>>);

impl Recorder {
    fn add(&self, record: Record) {
        self.0.lock().unwrap().push(record);
    }

    /// Records since the last call.
    pub(crate) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Memory that was registered first: the pool.
    pub(crate) fn pool(&self) -> Stretch {
        let records = self.0.lock().unwrap();
        let registered = records.iter().find_map(|record| match record {
            Record::Registered(stretch) => Some(*stretch),
            _ => None,
        });
        registered.expect("the pool is registered before anything else is")
    }
}

/// The simulated provider, with a recorder.
pub(crate) struct Recording;

#[derive(Clone)]
pub(crate) struct RecordingDevice {
    pub(crate) device: SimDevice,
    pub(crate) recorder: Recorder,
}

pub(crate) struct RecordingGroup {
    group: <Sim as Provider>::Group,
    recorder: Recorder,
}

pub(crate) struct RecordingCm(<Sim as Provider>::Cm);

/// The target opens none.
pub(crate) enum NoWindow {}

impl Provider for Recording {
    const NAME: &'static str = "recording";
    type Device = RecordingDevice;
    type Region = <Sim as Provider>::Region;
    type Window = NoWindow;
    type Group = RecordingGroup;
    type GroupHandle = <Sim as Provider>::GroupHandle;
    type NewQp = <Sim as Provider>::NewQp;
    type Cm = RecordingCm;
}

impl MemoryWindow<Recording> for NoWindow {
    fn rkey(&self) -> u32 {
        match *self {}
    }

    fn bind(&mut self, _: &<Sim as Provider>::Region, _: u64, _: u64, _: Access) -> Op {
        match *self {}
    }
}

impl Device<Recording> for RecordingDevice {
    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn local_ip(&self) -> IpAddr {
        self.device.local_ip()
    }

    fn in_new_domain(&self) -> std::io::Result<Self> {
        Ok(Self { device: self.device.in_new_domain()?, recorder: self.recorder.clone() })
    }

    unsafe fn register(
        &self,
        memory: Mem<'_>,
        access: Access,
    ) -> std::io::Result<<Sim as Provider>::Region> {
        if let Mem::Host { addr, length } = memory {
            let stretch = Stretch { address: addr as u64, length: length as u64 };
            self.recorder.add(Record::Registered(stretch));
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.register(memory, access) }
    }

    fn window(&self) -> std::io::Result<NoWindow> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn group(&self, config: &GroupConfig) -> std::io::Result<RecordingGroup> {
        let group = self.device.group(config)?;
        Ok(RecordingGroup { group, recorder: self.recorder.clone() })
    }

    fn connection_manager(&self) -> std::io::Result<RecordingCm> {
        self.device.connection_manager().map(RecordingCm)
    }
}

impl Group<Recording> for RecordingGroup {
    fn handle(&self) -> <Sim as Provider>::GroupHandle {
        self.group.handle()
    }

    fn adopt(&mut self, qp: <Sim as Provider>::NewQp) -> QpKey {
        self.group.adopt(qp)
    }

    fn qpn(&self, qp: QpKey) -> u32 {
        self.group.qpn(qp)
    }

    fn granted(&self, qp: QpKey) -> QpConfig {
        self.group.granted(qp)
    }

    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError> {
        self.recorder.add(Record::Send(wr.op, wr.sges.iter().map(Stretch::from).collect()));
        // SAFETY: the caller's promise.
        unsafe { self.group.push_send(qp, wr) }
    }

    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError> {
        self.recorder.add(Record::Receive(wr.sges.iter().map(Stretch::from).collect()));
        // SAFETY: the caller's promise.
        unsafe { self.group.push_recv(qp, wr) }
    }

    fn flush(&mut self, now: Time) {
        self.group.flush(now);
    }

    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize {
        self.group.poll(now, out)
    }

    fn deadline(&self) -> Option<Time> {
        self.group.deadline()
    }

    fn arm(&mut self, what: WakeFor) -> bool {
        self.group.arm(what)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.group.fd()
    }

    fn acknowledge_wake(&mut self) {
        self.group.acknowledge_wake();
    }

    fn fail(&mut self, qp: QpKey) {
        self.group.fail(qp);
    }

    fn release(&mut self, qp: QpKey) {
        self.group.release(qp);
    }

    fn stats(&self) -> GroupStats {
        self.group.stats()
    }
}

impl ConnectionManager<Recording> for RecordingCm {
    fn listen(&mut self, addr: SocketAddr, options: &ConnOptions) -> Result<ConnId, CmError> {
        self.0.listen(addr, options)
    }

    fn resolve(
        &mut self,
        now: Time,
        to: SocketAddr,
        timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, CmError> {
        self.0.resolve(now, to, timeout, options)
    }

    fn create_qp(
        &mut self,
        conn: ConnId,
        group: &<Sim as Provider>::GroupHandle,
        domain: &RecordingDevice,
        config: &QpConfig,
    ) -> Result<<Sim as Provider>::NewQp, CmError> {
        self.0.create_qp(conn, group, &domain.device, config)
    }

    fn connect(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        self.0.connect(now, conn, params)
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        self.0.accept(now, conn, params)
    }

    fn reject(&mut self, now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError> {
        self.0.reject(now, conn, private)
    }

    fn disconnect(&mut self, now: Time, conn: ConnId) {
        self.0.disconnect(now, conn);
    }

    fn close(&mut self, conn: ConnId) {
        self.0.close(conn);
    }

    fn poll(&mut self, now: Time) -> Option<CmEvent> {
        self.0.poll(now)
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.0.local_addr(conn)
    }
}

/// An io_uring engine with a recorder. The virtual clock does not run ahead of the disk: a turn
/// waits for started calls.
pub(crate) struct RecordingEngine {
    engine: Uring,
    recorder: Recorder,
    in_flight: usize,
    events: VecDeque<EngineEvent>,
}

impl RecordingEngine {
    /// Creates an engine with the pool registered, as the target does.
    pub(crate) fn new(recorder: Recorder) -> Result<Self, UringError> {
        let pool = recorder.pool();
        let memory = (pool.address as *mut u8, pool.length as usize);
        let (engine, buffers) = Uring::new(Some(memory))?;
        match buffers {
            BufferRegistration::Registered => recorder.add(Record::Fixed),
            BufferRegistration::Unregistered(reason) => {
                eprintln!("without fixed buffers: {reason}")
            }
        }
        Ok(Self { engine, recorder, in_flight: 0, events: VecDeque::new() })
    }

    fn fetch(&mut self) {
        self.engine.turn();
        while let Some(event) = self.engine.next_event() {
            self.in_flight -= usize::from(matches!(event, EngineEvent::Ended { .. }));
            self.events.push_back(event);
        }
    }
}

impl Engine for RecordingEngine {
    unsafe fn start(&mut self, call: CallId, what: SystemCall) {
        match what {
            SystemCall::Read { part, .. } => self.recorder.add(Record::FileRead(part.into())),
            SystemCall::Write { part, .. } => self.recorder.add(Record::FileWrite(part.into())),
            _ => {}
        }
        self.in_flight += 1;
        // SAFETY: the caller's promise.
        unsafe { self.engine.start(call, what) }
    }

    fn cancel(&mut self, call: CallId) {
        self.engine.cancel(call);
    }

    fn turn(&mut self) {
        self.fetch();
        while self.in_flight > 0 {
            self.engine.sleep(&[], None);
            self.fetch();
        }
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    fn reserve(&mut self, calls: usize) {
        self.engine.reserve(calls);
    }

    fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>) {
        self.engine.sleep(watched, timeout);
    }

    fn was_readable(&mut self, watched: RawFd) -> bool {
        self.engine.was_readable(watched)
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}
