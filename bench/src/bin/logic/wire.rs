//! Queues between the target and a simulated host: receives, completions, events.
#![expect(
    unsafe_code,
    reason = "capsules are written to and read from memory that work requests name"
)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_proto::nvm::Io;
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::{Cid, Cntlid, Cqe, FromBytes, IntoBytes, Nsid, NvmCommand, Qid, Sgl, Sqe};
use rdma::{
    CmEvent, ConnId, ConnParams, Op, PrivateData, RecvWr, SendFlags, SendWr, Wc, WcOpcode, WcStatus,
};

/// Numbers of the first host's two queue pairs, equal to their queue identifiers. Those of host `n`
/// are `2 * n` higher.
pub(crate) const ADMIN: usize = 0;
pub(crate) const IO: usize = 1;
pub(crate) const LISTENER: ConnId = ConnId(u64::MAX);
pub(crate) const QUEUE_ENTRIES: u16 = 33;
/// Address of the data of reads, which are not moved.
pub(crate) const READ_ADDRESS: u64 = 4096;
/// Number of Read commands in flight.
const DEPTH: usize = 32;
const SQE_BYTES: usize = 64;
const CQE_BYTES: usize = 16;
const BLOCKS: u32 = 8;

/// State that the provider and the simulated host share. The lock is never contended, and the empty
/// loop takes it as often as the target does.
#[derive(Default)]
pub(crate) struct LoopbackWire(Mutex<LoopbackState>);

#[derive(Default)]
pub(crate) struct LoopbackState {
    events: VecDeque<CmEvent>,
    queues: Vec<LoopbackQueue>,
    /// Queues with commands that have not arrived at the target.
    sending: VecDeque<usize>,
    completions: VecDeque<Wc>,
    responses: VecDeque<Cqe>,
    /// Number of hosts that read, in turn.
    readers: usize,
    /// Number of reads that are still to be sent, and number of those in flight.
    reads_left: u64,
    in_flight: usize,
}

#[derive(Default)]
struct LoopbackQueue {
    /// Work request identifier and buffer address of each posted receive.
    receives: VecDeque<(u64, u64)>,
    commands: VecDeque<Sqe>,
}

impl LoopbackWire {
    pub(crate) fn lock(&self) -> MutexGuard<'_, LoopbackState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the host's request for a connection.
    pub(crate) fn request_connection(&self, queue: usize, entries: u16) {
        let qid = Qid((queue % 2) as u16);
        let request = ConnectRequest::new(qid, Cntlid(0), entries, entries.into());
        let private_data = PrivateData::new(request.as_bytes()).unwrap_or(PrivateData::EMPTY);
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data,
        };
        let [.., high, low] = (queue as u32 / 2).to_be_bytes();
        let peer = SocketAddr::from(([10, 1, high, low], 4791));
        let conn = ConnId(queue as u64);
        let event =
            CmEvent::ConnectRequest { listener: LISTENER, conn, params, peer, process: None };
        let mut state = self.lock();
        if state.queues.len() <= queue {
            state.queues.resize_with(queue + 1, LoopbackQueue::default);
        }
        state.events.push_back(event);
    }

    /// Establishes a connection that the target has accepted.
    pub(crate) fn accept(&self, conn: ConnId, params: &ConnParams) {
        self.lock().events.push_back(CmEvent::Established { conn, params: *params });
    }

    pub(crate) fn next_event(&self) -> Option<CmEvent> {
        self.lock().events.pop_front()
    }

    /// Queues a command of the host.
    pub(crate) fn send(&self, queue: usize, sqe: Sqe) {
        let mut state = self.lock();
        state.queues[queue].commands.push_back(sqe);
        state.sending.push_back(queue);
    }

    /// Returns the next completion that the target has sent.
    pub(crate) fn response(&self) -> Option<Cqe> {
        self.lock().responses.pop_front()
    }

    /// Makes the first `readers` hosts send this many reads in all, with a fixed number in flight.
    pub(crate) fn ask_for_reads(&self, reads: u64, readers: usize) {
        let mut state = self.lock();
        (state.reads_left, state.readers) = (reads, readers);
    }

    pub(crate) fn all_read(&self) -> bool {
        let state = self.lock();
        state.reads_left == 0 && state.in_flight == 0
    }
}

impl LoopbackState {
    pub(crate) fn push_recv(&mut self, queue: usize, wr: &RecvWr<'_>) {
        self.queues[queue].receives.push_back((wr.wr_id, wr.sges[0].addr));
    }

    /// Performs the work of a device, except for moving the data of reads, which is not a cost of
    /// the target.
    pub(crate) fn push_send(&mut self, queue: usize, wr: &SendWr<'_>) {
        let opcode = match wr.op {
            Op::RdmaRead { remote_addr, .. } => {
                for sge in wr.sges {
                    let from = ptr::with_exposed_provenance::<u8>(remote_addr as usize);
                    let to = ptr::with_exposed_provenance_mut::<u8>(sge.addr as usize);
                    // SAFETY: the host's data is leaked, as long as it says, and the target lends
                    // its own.
                    unsafe { ptr::copy_nonoverlapping(from, to, sge.length as usize) };
                }
                WcOpcode::RDMA_READ
            }
            Op::RdmaWrite { remote_addr: READ_ADDRESS, .. } => WcOpcode::RDMA_WRITE,
            Op::RdmaWrite { remote_addr, .. } => {
                let mut to = ptr::with_exposed_provenance_mut::<u8>(remote_addr as usize);
                for sge in wr.sges {
                    let (from, length) = (sge.addr as usize, sge.length as usize);
                    let from = ptr::with_exposed_provenance::<u8>(from);
                    // SAFETY: the host's memory is leaked, as long as it says, and used by nobody
                    // else before the response; the target lends its own.
                    to = unsafe {
                        ptr::copy_nonoverlapping(from, to, length);
                        to.add(length)
                    };
                }
                WcOpcode::RDMA_WRITE
            }
            _ => {
                self.take_response(queue, wr.sges[0].addr);
                WcOpcode::SEND
            }
        };
        if wr.flags.contains(SendFlags::SIGNALED) {
            let qpn = queue as u32;
            self.completions.push_back(Wc::new(wr.wr_id, qpn, WcStatus::SUCCESS, opcode, 0));
        }
    }

    fn take_response(&mut self, queue: usize, address: u64) {
        if queue % 2 == IO && self.in_flight > 0 {
            self.in_flight -= 1;
            return;
        }
        let from = ptr::with_exposed_provenance::<[u8; CQE_BYTES]>(address as usize);
        // SAFETY: a response is that long, and its memory is lent until it completes.
        let bytes = unsafe { from.read_unaligned() };
        self.responses.extend(Cqe::read_from_bytes(&bytes).ok());
    }

    /// Returns completions of sends, and of receives into which the host's capsules are copied.
    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> usize {
        let mut count = 0;
        while count < out.len()
            && let Some(wc) = self.next_completion()
        {
            out[count] = wc;
            count += 1;
        }
        count
    }

    fn next_completion(&mut self) -> Option<Wc> {
        if let Some(wc) = self.completions.pop_front() {
            return Some(wc);
        }
        if let Some(queue) = self.sending.pop_front() {
            if !self.queues[queue].receives.is_empty()
                && let Some(sqe) = self.queues[queue].commands.pop_front()
            {
                return self.receive(queue, &sqe);
            }
            self.sending.push_back(queue);
            return None;
        }
        if self.reads_left == 0 || self.in_flight == DEPTH {
            return None;
        }
        let cid = Cid((self.reads_left / self.readers as u64) as u16 & 0x3FF);
        let sgl =
            Sgl::Keyed { address: READ_ADDRESS, length: BLOCKS * 512, key: 1, invalidate: false };
        let read = NvmCommand::Read(Io::new(Nsid(1), self.reads_left % 1000 * 8, BLOCKS));
        let queue = IO + 2 * (self.reads_left as usize % self.readers);
        let wc = self.receive(queue, &read.to_sqe().with_data(sgl).with_cid(cid))?;
        self.reads_left -= 1;
        self.in_flight += 1;
        Some(wc)
    }

    /// Copies a capsule into the next receive, and returns its completion.
    fn receive(&mut self, queue: usize, sqe: &Sqe) -> Option<Wc> {
        let (wr_id, address) = self.queues[queue].receives.pop_front()?;
        let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the first element of a receive has room for an entry, and is lent until it
        // completes.
        unsafe { ptr::copy_nonoverlapping(sqe.as_bytes().as_ptr(), to, SQE_BYTES) };
        Some(Wc::new(wr_id, queue as u32, WcStatus::SUCCESS, WcOpcode::RECV, SQE_BYTES as u32))
    }
}
