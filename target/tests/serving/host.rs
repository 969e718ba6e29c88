//! A host with its bones showing: a queue pair and hand-made capsules.
#![expect(unsafe_code, reason = "lends memory to a device")]
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest, Reject, RejectStatus};
use nvme_proto::{Cntlid, Cqe, FromBytes, IntoBytes, Qid, Sgl, Sqe};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Mem, MemoryRegion, Op, PrivateData, Provider, QpConfig, QpKey,
    REJECT_CONSUMER_DEFINED, RecvWr, SendFlags, SendWr, Sge, Time, Wc, WcOpcode,
};

const CAPSULE_BYTES: usize = 64 + 8192;
const CAPSULES: usize = 256;
const RESPONSES: usize = 1024;
const DATA_BYTES: usize = 8 << 20;

/// One device with everything that a host has on it.
pub(crate) struct Host<P: Provider> {
    device: P::Device,
    pub(crate) cm: P::Cm,
    pub(crate) group: P::Group,
    pub(crate) queues: Vec<Queue>,
    region: P::Region,
    memory: Box<[u8]>,
    capsules: usize,
    responses: usize,
}

/// One connection.
pub(crate) struct Queue {
    pub(crate) conn: ConnId,
    pub(crate) qid: Qid,
    pub(crate) cntlid: Cntlid,
    qp: Option<QpKey>,
    entries: u16,
    pub(crate) state: Link,
    pub(crate) responses: VecDeque<Cqe>,
    /// Responses that it still takes.
    pub(crate) patience: usize,
    private: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Resolving,
    Connecting,
    /// Receives that the controller posted.
    Up(u16),
    Rejected(RejectStatus),
    Down,
}

impl<P: Provider> Host<P> {
    pub(crate) fn new(device: &P::Device) -> Self {
        let config = GroupConfig { completions: 4096, queue_pairs: 64, completion_vector: 0 };
        let bytes = CAPSULES * CAPSULE_BYTES + RESPONSES * 16 + DATA_BYTES;
        let mut memory = vec![0u8; bytes].into_boxed_slice();
        let mem = Mem::Host { addr: memory.as_mut_ptr(), length: bytes };
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        // SAFETY: the box is kept as long as the region, and read only between turns.
        let region = unsafe { device.register(mem, access) }.unwrap();
        Self {
            device: device.clone(),
            cm: device.connection_manager().unwrap(),
            group: device.group(&config).unwrap(),
            queues: Vec::new(),
            region,
            memory,
            capsules: 0,
            responses: 0,
        }
    }

    /// Starts a connection with well-formed private data.
    pub(crate) fn connect(&mut self, now: Time, to: SocketAddr, qid: u16, entries: u16) -> usize {
        let request = ConnectRequest::new(Qid(qid), Cntlid(0), entries, entries.into());
        self.connect_with(now, to, qid, entries, request.as_bytes())
    }

    pub(crate) fn connect_with(
        &mut self,
        now: Time,
        to: SocketAddr,
        qid: u16,
        entries: u16,
        private: &[u8],
    ) -> usize {
        let timeout = Duration::from_secs(5);
        let conn = self.cm.resolve(now, to, timeout, &ConnOptions::default()).unwrap();
        self.queues.push(Queue {
            conn,
            qid: Qid(qid),
            cntlid: Cntlid(0),
            qp: None,
            entries,
            state: Link::Resolving,
            responses: VecDeque::new(),
            patience: usize::MAX,
            private: private.to_vec(),
        });
        self.queues.len() - 1
    }

    /// Sends a command capsule; the descriptor must already be in the entry.
    pub(crate) fn send(&mut self, queue: usize, sqe: &Sqe, in_capsule: &[u8]) {
        self.send_bytes(queue, &[sqe.as_bytes(), in_capsule].concat());
    }

    pub(crate) fn send_bytes(&mut self, queue: usize, bytes: &[u8]) {
        let at = self.capsules % CAPSULES * CAPSULE_BYTES;
        self.capsules += 1;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        let sge = self.sge(at, bytes.len());
        let wr = SendWr { wr_id: 0, op: Op::Send, flags: SendFlags::SIGNALED, sges: &[sge] };
        let qp = self.queues[queue].qp.unwrap();
        // SAFETY: the memory is kept; a capsule is long gone when its place is used again.
        unsafe { self.group.push_send(qp, &wr) }.unwrap();
    }

    /// Data memory that commands point at.
    pub(crate) fn data(&mut self, offset: usize, length: usize) -> &mut [u8] {
        let at = CAPSULES * CAPSULE_BYTES + RESPONSES * 16 + offset;
        &mut self.memory[at..at + length]
    }

    /// A descriptor of data memory.
    pub(crate) fn keyed(&self, offset: usize, length: usize) -> Sgl {
        let at = CAPSULES * CAPSULE_BYTES + RESPONSES * 16 + offset;
        Sgl::Keyed {
            address: self.memory.as_ptr() as u64 + at as u64,
            length: length as u32,
            key: self.region.rkey(),
            invalidate: false,
        }
    }

    pub(crate) fn disconnect(&mut self, now: Time, queue: usize) {
        self.cm.disconnect(now, self.queues[queue].conn);
    }

    /// Frees all connections.
    pub(crate) fn forget(&mut self) {
        for queue in self.queues.drain(..) {
            self.cm.close(queue.conn);
            if let Some(qp) = queue.qp {
                self.group.release(qp);
            }
        }
        self.responses = 0;
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.memory.as_ptr() as u64 + at as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    /// Does all that is ready; true if there was anything.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        let mut progress = false;
        while let Some(event) = self.cm.poll(now) {
            progress = true;
            self.handle(now, event);
        }
        let mut completions = [Wc::default(); 16];
        loop {
            let count = self.group.poll(now, &mut completions);
            progress |= count > 0;
            completions[..count].iter().for_each(|wc| self.completed(wc));
            if count < completions.len() {
                break;
            }
        }
        self.group.flush(now);
        progress
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.cm.deadline().into_iter().chain(self.group.deadline()).min()
    }

    fn handle(&mut self, now: Time, event: CmEvent) {
        match event {
            CmEvent::Resolved { conn } => self.resolved(now, conn),
            CmEvent::Established { conn, params } => {
                let accept = ConnectAccept::parse(params.private_data.as_slice()).unwrap();
                self.queue_of(conn).state = Link::Up(accept.receive_entries());
            }
            CmEvent::Rejected { conn, private_data, reason: REJECT_CONSUMER_DEFINED } => {
                let reject = Reject::parse(private_data.as_slice()).unwrap();
                self.queue_of(conn).state = Link::Rejected(reject.status());
            }
            CmEvent::Rejected { conn, .. }
            | CmEvent::Disconnected { conn, .. }
            | CmEvent::ConnectFailed { conn, .. } => {
                self.queue_of(conn).state = Link::Down;
                self.cm.close(conn);
            }
            other => panic!("{other:?}"),
        }
    }

    fn resolved(&mut self, now: Time, conn: ConnId) {
        let config =
            QpConfig { send_wr: 256, recv_wr: 256, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
        let handle = self.group.handle();
        let qp = self.cm.create_qp(conn, &handle, &self.device, &config).unwrap();
        let qp = self.group.adopt(qp);
        let queue = self.queue_of(conn);
        queue.qp = Some(qp);
        queue.state = Link::Connecting;
        let private_data = PrivateData::new(&queue.private).unwrap();
        for _ in 0..queue.entries {
            let slot = self.responses % RESPONSES;
            self.responses += 1;
            self.post_response_receive(qp, slot);
        }
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data,
        };
        self.cm.connect(now, conn, &params).unwrap();
    }

    /// Takes one more response on a queue that takes no more by itself.
    pub(crate) fn take_one_more(&mut self, queue: usize) {
        let qp = self.queues[queue].qp.unwrap();
        // That one was taken and copied long ago.
        self.post_response_receive(qp, 0);
    }

    fn post_response_receive(&mut self, qp: QpKey, slot: usize) {
        let sge = self.sge(CAPSULES * CAPSULE_BYTES + slot * 16, 16);
        let wr = RecvWr { wr_id: slot as u64, sges: &[sge] };
        // SAFETY: the memory is kept; no more receives are posted at once than there are places.
        unsafe { self.group.push_recv(qp, &wr) }.unwrap();
    }

    fn completed(&mut self, wc: &Wc) {
        let found = self
            .queues
            .iter()
            .position(|queue| queue.qp.is_some_and(|qp| self.group.qpn(qp) == wc.qpn));
        let index = found.unwrap();
        if !wc.is_success() {
            if let Link::Up(_) = self.queues[index].state {
                self.queues[index].state = Link::Down;
            }
            return;
        }
        if wc.opcode != WcOpcode::RECV {
            return;
        }
        assert_eq!(wc.byte_len, 16, "a response capsule has 16 bytes");
        let slot = wc.wr_id as usize;
        let at = CAPSULES * CAPSULE_BYTES + slot * 16;
        let cqe = Cqe::read_from_bytes(&self.memory[at..at + 16]).unwrap();
        let queue = &mut self.queues[index];
        queue.responses.push_back(cqe);
        queue.patience = queue.patience.saturating_sub(1);
        if queue.patience == 0 {
            return;
        }
        let qp = self.queues[index].qp.unwrap();
        // The same place: the others that were posted may still be waiting in theirs.
        self.post_response_receive(qp, slot);
    }

    fn queue_of(&mut self, conn: ConnId) -> &mut Queue {
        self.queues.iter_mut().find(|queue| queue.conn == conn).unwrap()
    }
}
