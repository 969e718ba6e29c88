//! A queue pair with its queued send and receive requests, posted in batches.
#![expect(
    unsafe_code,
    reason = "calls rdma-core and links work requests through pointers, as it wants them"
)]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::io;
use std::sync::{Arc, Once};

use super::abi::*;
use super::completion::{CompletionQueues, CompletionRoom};
use super::context::DataPath;
use super::domain::Domain;
use super::handle::Id;
use super::lockable::explain;
use super::requests::{MAX_REQUESTS, PostedRequests, Token, WorkQueueKind};
use crate::{Caps, Op, PushError, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Sge, WcStatus};

/// Maximum number of requests that one doorbell posts. A full batch is posted when the next request
/// comes.
const BATCH: usize = 64;

/// The queue pair of a connection.
pub struct VerbsQp {
    raw: *mut ibv_qp,
    /// Key in the group; valid once the group has adopted it.
    key: QpKey,
    granted: QpConfig,
    data_path: DataPath,
    can: Abilities,
    sends: DoorbellBatch<ibv_send_wr>,
    receives: DoorbellBatch<ibv_recv_wr>,
    broken: bool,
    id: Arc<Id>,
    // Dropped after the queue pair, which belongs to it.
    _domain: Arc<Domain>,
    // Dropped after the queue pair, whose completions it reserves entries for.
    _room: CompletionRoom,
}

/// The optional kinds of requests that the device supports.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    send_with_invalidate: bool,
    memory_windows: bool,
}

// SAFETY: the queue pair is used by the owner of this value; the pointers inside the batches lead
// into its own boxes.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    pub(crate) fn create(
        domain: &Arc<Domain>,
        caps: &Caps,
        id: &Arc<Id>,
        queues: &Arc<CompletionQueues>,
        wanted: &QpConfig,
    ) -> io::Result<Self> {
        let granted = clamp(wanted, caps);
        if granted != *wanted {
            // Peers decide how many queue pairs there are: log it once.
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::info!(?wanted, ?granted, "the RDMA device grants less than was asked for");
            });
        }
        let room = queues.reserve(granted.send_wr, granted.recv_wr)?;
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queues.sends.raw,
            recv_cq: queues.receives.raw,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: granted.send_wr,
                max_recv_wr: granted.recv_wr,
                max_send_sge: granted.send_sge,
                max_recv_sge: granted.recv_sge,
                max_inline_data: granted.inline_bytes,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        let raw = id.create_qp(domain.raw, &mut attr).map_err(|error| {
            let QpConfig { send_wr, recv_wr, .. } = granted;
            explain(
                error,
                &format!("the memory of a queue pair of {send_wr} and {recv_wr} requests"),
            )
        })?;
        Ok(Self {
            raw,
            key: QpKey(0),
            granted,
            data_path: domain.data_path,
            can: Abilities {
                send_with_invalidate: caps.send_with_invalidate,
                memory_windows: caps.memory_windows,
            },
            sends: DoorbellBatch::new(WorkQueueKind::Send, granted.send_wr, granted.send_sge),
            receives: DoorbellBatch::new(WorkQueueKind::Receive, granted.recv_wr, granted.recv_sge),
            broken: false,
            id: Arc::clone(id),
            _domain: Arc::clone(domain),
            _room: room,
        })
    }

    pub(crate) fn adopted_as(&mut self, key: QpKey) {
        self.key = key;
    }

    pub(crate) fn key(&self) -> QpKey {
        self.key
    }

    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair lives until we are dropped.
        unsafe { (*self.raw).qp_num }
    }

    pub(crate) fn granted(&self) -> QpConfig {
        self.granted
    }

    /// Whether sends may be posted: the connection is established, or the queue pair is in ERROR.
    fn may_send(&self) -> bool {
        self.broken || self.id.is_ready()
    }

    /// Whether there are queued requests that are not posted.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }

    /// # Safety
    /// The caller keeps the contract of [`crate::Group::push_send`].
    pub(crate) unsafe fn push_send(
        &mut self,
        wr: &SendWr<'_>,
        lost: &mut impl FnMut(u64),
    ) -> Result<(), PushError> {
        self.can.check(&wr.op)?;
        if wr.flags.contains(SendFlags::INLINE)
            && wr.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>()
                > u64::from(self.granted.inline_bytes)
        {
            return Err(PushError::InlineTooLong);
        }
        if self.sends.is_full() {
            if !self.may_send() {
                return Err(PushError::QueueFull);
            }
            // Receives are posted first: the peer may answer a response immediately, into a
            // receive.
            self.flush_receives(lost);
            self.flush_sends(lost);
        }
        self.sends.push(self.key, wr.wr_id, wr.sges, |wr_id, sg_list, num_sge| {
            send_wr(wr, wr_id, sg_list, num_sge)
        })
    }

    /// # Safety
    /// The caller keeps the contract of [`crate::Group::push_recv`].
    pub(crate) unsafe fn push_recv(
        &mut self,
        wr: &RecvWr<'_>,
        lost: &mut impl FnMut(u64),
    ) -> Result<(), PushError> {
        if self.receives.is_full() {
            self.flush_receives(lost);
        }
        self.receives.push(self.key, wr.wr_id, wr.sges, |wr_id, sg_list, num_sge| ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
        })
    }

    /// Posts all queued requests; calls `lost` with the ids of those that the device refused.
    pub(crate) fn flush(&mut self, lost: &mut impl FnMut(u64)) {
        if self.id.has_ended() && !self.broken {
            self.fail();
        }
        self.flush_receives(lost);
        if self.may_send() {
            self.flush_sends(lost);
        }
    }

    fn flush_sends(&mut self, lost: &mut impl FnMut(u64)) {
        let (raw, post) = (self.raw, self.data_path.post_send);
        // SAFETY: the list is linked and ends in null; the memory behind it is the pusher's
        // promise.
        let taken = self.sends.ring(lost, |first, bad| unsafe { post(raw, first, bad) });
        self.note(taken);
    }

    fn flush_receives(&mut self, lost: &mut impl FnMut(u64)) {
        if self.receives.is_empty() {
            return;
        }
        let (raw, post) = (self.raw, self.data_path.post_recv);
        // SAFETY: as for sends.
        let taken = self.receives.ring(lost, |first, bad| unsafe { post(raw, first, bad) });
        self.note(taken);
        if self.broken {
            // Posting a receive makes no system call on rxe, which flushes its queue when a queue
            // pair moves to ERROR.
            self.to_error();
        }
    }

    /// Fails the queue pair if a request was refused, so that later requests cannot overtake it.
    fn note(&mut self, taken: io::Result<()>) {
        if let Err(error) = taken
            && !self.broken
        {
            tracing::warn!(qpn = self.qpn(), "the device refused a work request: {error}");
            self.fail();
        }
    }

    /// The consumer's identifier of a request that the device reports as completed; `None` if
    /// unknown.
    pub(crate) fn complete(&mut self, token: Token, status: WcStatus) -> Option<u64> {
        if status != WcStatus::SUCCESS && !self.broken {
            // The device has moved it to ERROR already; this flushes what was posted since then.
            self.fail();
        }
        match token.queue {
            WorkQueueKind::Send => self.sends.held.complete(token.position),
            WorkQueueKind::Receive => self.receives.held.complete(token.position),
        }
    }

    pub(crate) fn fail(&mut self) {
        self.broken = true;
        self.to_error();
    }

    fn to_error(&self) {
        let mut attr = ibv_qp_attr { qp_state: QPS_ERR, ..ibv_qp_attr::default() };
        let modify = self.id.library().verbs.ibv_modify_qp;
        // SAFETY: the queue pair lives; only the state is looked at.
        let rc = unsafe { modify(self.raw, &raw mut attr, QP_STATE) };
        if rc != 0 {
            let error = io::Error::from_raw_os_error(rc.abs());
            tracing::debug!(qpn = self.qpn(), "to ERROR: {error}");
        }
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        self.id.destroy_qp();
    }
}

impl Abilities {
    fn check(self, op: &Op) -> Result<(), PushError> {
        let can = match op {
            Op::SendWithInvalidate { .. } => self.send_with_invalidate,
            Op::Bind(_) => self.memory_windows,
            _ => true,
        };
        if can { Ok(()) } else { Err(PushError::Unsupported) }
    }
}

/// The wanted sizes, limited to those of the device.
fn clamp(wanted: &QpConfig, caps: &Caps) -> QpConfig {
    let max_wr = caps.max_wr.min(MAX_REQUESTS);
    QpConfig {
        send_wr: wanted.send_wr.min(max_wr),
        recv_wr: wanted.recv_wr.min(max_wr),
        send_sge: wanted.send_sge.min(caps.max_sge),
        recv_sge: wanted.recv_sge.min(caps.max_sge),
        inline_bytes: wanted.inline_bytes,
    }
}

fn send_wr(wr: &SendWr<'_>, wr_id: u64, sg_list: *mut Sge, num_sge: c_int) -> ibv_send_wr {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let blank: ibv_send_wr = unsafe { core::mem::zeroed() };
    let mut raw = ibv_send_wr { wr_id, sg_list, num_sge, send_flags: wr.flags.bits(), ..blank };
    match wr.op {
        Op::Send => raw.opcode = wr_opcode::SEND,
        Op::SendWithInvalidate { rkey } => {
            raw.opcode = wr_opcode::SEND_WITH_INV;
            raw.imm_data_or_rkey = rkey;
        }
        Op::RdmaWrite { remote_addr, rkey } => {
            raw.opcode = wr_opcode::RDMA_WRITE;
            raw.wr.rdma = wr_rdma { remote_addr, rkey };
        }
        Op::RdmaRead { remote_addr, rkey } => {
            raw.opcode = wr_opcode::RDMA_READ;
            raw.wr.rdma = wr_rdma { remote_addr, rkey };
        }
        Op::LocalInvalidate { rkey } => {
            raw.opcode = wr_opcode::LOCAL_INV;
            raw.imm_data_or_rkey = rkey;
        }
        Op::Bind(bind) => {
            raw.opcode = wr_opcode::BIND_MW;
            raw.bind_mw = wr_bind_mw {
                mw: bind.window.0 as *mut ibv_mw,
                rkey: bind.rkey,
                bind_info: ibv_mw_bind_info {
                    mr: bind.region.0 as *mut ibv_mr,
                    addr: bind.addr,
                    length: bind.length,
                    mw_access_flags: bind.access.bits(),
                },
            };
        }
    }
    raw
}

/// A C work request with a pointer to the next.
trait Linked: Copy {
    fn link(&mut self, next: *mut Self);
}

impl Linked for ibv_send_wr {
    fn link(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Linked for ibv_recv_wr {
    fn link(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Work requests to post with one doorbell, with room for their scatter-gather lists, and the
/// identifiers of all requests of the queue.
struct DoorbellBatch<W> {
    queue: WorkQueueKind,
    held: PostedRequests,
    requests: Vec<W>,
    sges: Box<[Sge]>,
    sges_per_request: usize,
}

impl<W: Linked> DoorbellBatch<W> {
    fn new(queue: WorkQueueKind, requests: u32, sges_per_request: u32) -> Self {
        let sges_per_request = usize::try_from(sges_per_request).expect("u32 fits");
        Self {
            queue,
            held: PostedRequests::new(requests),
            requests: Vec::with_capacity(BATCH),
            sges: vec![Sge::default(); BATCH * sges_per_request].into(),
            sges_per_request,
        }
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn is_full(&self) -> bool {
        self.requests.len() == BATCH
    }

    /// Adds the request that `make` creates from its identifier and scatter-gather list. The batch
    /// must not be full.
    fn push(
        &mut self,
        qp: QpKey,
        wr_id: u64,
        sges: &[Sge],
        make: impl FnOnce(u64, *mut Sge, c_int) -> W,
    ) -> Result<(), PushError> {
        debug_assert!(!self.is_full());
        let start = self.requests.len() * self.sges_per_request;
        let room = &mut self.sges[start..start + self.sges_per_request];
        let room = room.get_mut(..sges.len()).ok_or(PushError::TooManySges)?;
        let num_sge = c_int::try_from(sges.len()).map_err(|_| PushError::TooManySges)?;
        if self.held.is_full() {
            return Err(PushError::QueueFull);
        }
        room.copy_from_slice(sges);
        let token = Token { qp, queue: self.queue, position: self.held.next_position() };
        self.requests.push(make(token.to_wr_id(), room.as_mut_ptr(), num_sge));
        self.held.push(wr_id);
        Ok(())
    }

    /// Links and posts the requests; calls `lost` for those that the device refused.
    fn ring(
        &mut self,
        lost: &mut impl FnMut(u64),
        post: impl FnOnce(*mut W, *mut *mut W) -> c_int,
    ) -> io::Result<()> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let first = self.requests.as_mut_ptr();
        for index in 1..self.requests.len() {
            self.requests[index - 1].link(first.wrapping_add(index));
        }
        self.requests.last_mut().expect("not empty").link(null_mut());
        let mut bad = null_mut();
        let rc = post(first, &raw mut bad);
        let result = if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc.abs())) };
        if result.is_err() {
            self.take_back(self.requests.len() - self.index_of(bad), lost);
        }
        self.requests.clear();
        result
    }

    /// Removes the latest `count` requests, which the device refused, and reports them in their
    /// order.
    fn take_back(&mut self, count: usize, lost: &mut impl FnMut(u64)) {
        let mut refused = [0; BATCH];
        let refused = &mut refused[..count];
        for slot in refused.iter_mut().rev() {
            *slot = self.held.pop().expect("requests in the batch are held");
        }
        refused.iter().copied().for_each(lost);
    }

    /// Index in the batch of the first request that the driver refused. If the pointer is not into
    /// the batch, returns the length of the batch: no request counts as refused then, since the
    /// device may hold them.
    fn index_of(&self, request: *mut W) -> usize {
        let offset = (request as usize).wrapping_sub(self.requests.as_ptr() as usize);
        (offset / size_of::<W>()).min(self.requests.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: QpKey = QpKey(5 << 32 | 3);

    fn push(
        batch: &mut DoorbellBatch<ibv_recv_wr>,
        wr_id: u64,
        sges: &[Sge],
    ) -> Result<(), PushError> {
        batch.push(QP, wr_id, sges, |wr_id, sg_list, num_sge| ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
        })
    }

    fn batch_of(ids: &[u64]) -> DoorbellBatch<ibv_recv_wr> {
        let mut batch = DoorbellBatch::new(WorkQueueKind::Receive, 8, 2);
        for &wr_id in ids {
            push(&mut batch, wr_id, &[Sge { addr: wr_id, length: 1, lkey: 7 }])
                .expect("there is room");
        }
        batch
    }

    /// The tokens of a posted list, and the addresses of the first pieces.
    fn collect(mut request: *mut ibv_recv_wr) -> Vec<(Token, u64)> {
        let mut seen = Vec::new();
        while !request.is_null() {
            // SAFETY: the batch links its own requests and ends in null.
            unsafe {
                seen.push((Token::from_wr_id((*request).wr_id), (*(*request).sg_list).addr));
                request = (*request).next;
            }
        }
        seen
    }

    #[test]
    fn one_ring_posts_all_in_order() {
        let mut batch = batch_of(&[1, 2, 3]);
        let mut seen = Vec::new();
        let posted = batch.ring(&mut |_| unreachable!("nothing is lost"), |first, _| {
            seen = collect(first);
            0
        });
        assert!(posted.is_ok() && batch.is_empty());
        assert_eq!(seen.iter().map(|(_, addr)| *addr).collect::<Vec<_>>(), [1, 2, 3]);
        for (wr_id, (token, _)) in (1..).zip(seen) {
            assert_eq!((token.qp, token.queue), (QP, WorkQueueKind::Receive));
            assert_eq!(batch.held.complete(token.position), Some(wr_id));
        }
    }

    #[test]
    fn only_refused_requests_are_lost() {
        let mut batch = batch_of(&[1, 2, 3]);
        let mut lost = Vec::new();
        let posted = batch.ring(&mut |id| lost.push(id), |first, bad| {
            // SAFETY: the second request of the list exists, and `bad` is ours to write.
            unsafe { *bad = (*first).next };
            libc::ENOMEM
        });
        assert_eq!(posted.expect_err("refused").raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(lost, [2, 3]);
        assert_eq!(batch.held.complete(0), Some(1));
        assert_eq!(batch.held.complete(1), None);
    }

    #[test]
    fn a_failed_doorbell_loses_no_request() {
        let mut batch = batch_of(&[1, 2]);
        let posted = batch.ring(&mut |_| unreachable!("the device reports them"), |_, _| libc::EIO);
        assert!(posted.is_err() && batch.is_empty());
        assert_eq!(batch.held.complete(1), Some(2));
    }

    #[test]
    fn a_queue_has_the_room_that_was_granted() {
        let mut batch = batch_of(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(push(&mut batch, 9, &[]), Err(PushError::QueueFull));
        batch.ring(&mut |_| unreachable!(), |_, _| 0).expect("posted");
        assert_eq!(push(&mut batch, 9, &[]), Err(PushError::QueueFull));
        assert_eq!(batch.held.complete(1), Some(2), "and the first, unsignaled, with it");
        assert_eq!([9, 10, 11].map(|id| push(&mut batch, id, &[]).is_ok()), [true, true, false]);
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let mut batch = batch_of(&[]);
        assert_eq!(push(&mut batch, 1, &[Sge::default(); 3]), Err(PushError::TooManySges));
        assert!(batch.is_empty());
    }

    #[test]
    fn wishes_are_clamped_to_the_device() {
        let caps = Caps { max_wr: 100, max_sge: 4, ..Caps::software("small") };
        let wanted =
            QpConfig { send_wr: 101, recv_wr: 99, send_sge: 5, recv_sge: 3, inline_bytes: 64 };
        let granted = clamp(&wanted, &caps);
        assert_eq!(granted, QpConfig { send_wr: 100, send_sge: 4, ..wanted });
        let huge = Caps { max_wr: u32::MAX, ..caps };
        assert_eq!(clamp(&QpConfig { send_wr: u32::MAX, ..wanted }, &huge).send_wr, MAX_REQUESTS);
    }

    #[test]
    fn unsupported_operations_are_refused() {
        let can = Abilities { send_with_invalidate: false, memory_windows: false };
        let refused = Err(PushError::Unsupported);
        assert_eq!(can.check(&Op::SendWithInvalidate { rkey: 1 }), refused);
        assert_eq!(can.check(&Op::Send), Ok(()));
        let can = Abilities { send_with_invalidate: true, memory_windows: false };
        assert_eq!(can.check(&Op::SendWithInvalidate { rkey: 1 }), Ok(()));
    }
}
