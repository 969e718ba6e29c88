//! A queue pair with its two batches of requests that wait for the doorbell.
#![expect(
    unsafe_code,
    reason = "calls rdma-core and links work requests through pointers, as it wants them"
)]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::io;
use std::sync::Arc;

use super::abi::*;
use super::cm::Id;
use super::context::{Context, check};
use crate::{Op, PushError, QpConfig, RecvWr, SendWr, Sge};

/// Requests that one doorbell hands over. A full batch rings by itself.
const BATCH: usize = 64;

/// A queue pair of a connection.
pub struct VerbsQp {
    raw: *mut ibv_qp,
    granted: QpConfig,
    sends: Batch<ibv_send_wr>,
    receives: Batch<ibv_recv_wr>,
    broken: bool,
    id: Arc<Id>,
}

// SAFETY: the queue pair is used by whoever owns this value; the pointers inside the batches lead into its own boxes.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    pub(crate) fn create(
        context: &Context,
        id: &Arc<Id>,
        cq: *mut ibv_cq,
        config: &QpConfig,
    ) -> io::Result<Self> {
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: config.send_wr,
                max_recv_wr: config.recv_wr,
                max_send_sge: config.send_sge,
                max_recv_sge: config.recv_sge,
                max_inline_data: config.inline_bytes,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        let raw = id.create_qp(context.pd, &mut attr)?;
        let granted = QpConfig {
            send_wr: attr.cap.max_send_wr,
            recv_wr: attr.cap.max_recv_wr,
            send_sge: attr.cap.max_send_sge,
            recv_sge: attr.cap.max_recv_sge,
            inline_bytes: attr.cap.max_inline_data,
        };
        let sends = Batch::new(granted.send_sge);
        let receives = Batch::new(granted.recv_sge);
        Ok(Self { raw, granted, sends, receives, broken: false, id: Arc::clone(id) })
    }

    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair lives until we are dropped.
        unsafe { (*self.raw).qp_num }
    }

    pub(crate) fn granted(&self) -> QpConfig {
        self.granted
    }

    /// Whether the connection has come far enough to send on.
    fn may_send(&self) -> bool {
        self.id.is_ready() || self.broken
    }

    /// Whether something waits for a doorbell that could ring now.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }

    /// # Safety
    /// As for [`crate::Group::push_send`].
    pub(crate) unsafe fn push_send(
        &mut self,
        wr: &SendWr<'_>,
        lost: &mut impl FnMut(u64),
    ) -> Result<(), PushError> {
        if self.sends.is_full() {
            if !self.may_send() {
                return Err(PushError::QueueFull);
            }
            self.flush_sends(lost);
        }
        let (sges, num_sge) = self.sends.copy_sges(wr.sges)?;
        self.sends.push(send_wr(wr, sges, num_sge));
        Ok(())
    }

    /// # Safety
    /// As for [`crate::Group::push_recv`].
    pub(crate) unsafe fn push_recv(
        &mut self,
        wr: &RecvWr<'_>,
        lost: &mut impl FnMut(u64),
    ) -> Result<(), PushError> {
        if self.receives.is_full() {
            self.flush_receives(lost);
        }
        let (sg_list, num_sge) = self.receives.copy_sges(wr.sges)?;
        self.receives.push(ibv_recv_wr { wr_id: wr.wr_id, next: null_mut(), sg_list, num_sge });
        Ok(())
    }

    /// Rings for all that waits; `lost` gets the ids of requests that the device did not take.
    pub(crate) fn flush(&mut self, lost: &mut impl FnMut(u64)) {
        self.flush_receives(lost);
        if self.may_send() {
            self.flush_sends(lost);
        }
    }

    fn flush_sends(&mut self, lost: &mut impl FnMut(u64)) {
        let raw = self.raw;
        // SAFETY: an open queue pair has its context, whose operations a loaded driver has filled in.
        let post = unsafe { (*(*raw).context).ops.post_send };
        let taken = self.sends.ring(lost, |first, bad| match post {
            // SAFETY: the list is linked and ends in null; the memory behind it is the pusher's promise.
            Some(post) => unsafe { post(raw, first, bad) },
            None => libc::ENOSYS,
        });
        self.note(taken);
    }

    fn flush_receives(&mut self, lost: &mut impl FnMut(u64)) {
        let raw = self.raw;
        // SAFETY: as for sends.
        let post = unsafe { (*(*raw).context).ops.post_recv };
        let taken = self.receives.ring(lost, |first, bad| match post {
            // SAFETY: as for sends.
            Some(post) => unsafe { post(raw, first, bad) },
            None => libc::ENOSYS,
        });
        self.note(taken);
    }

    /// A refused request breaks the queue pair, so that what follows it can not overtake it.
    fn note(&mut self, taken: io::Result<()>) {
        if let Err(error) = taken
            && !self.broken
        {
            tracing::warn!(qpn = self.qpn(), "the device refused a work request: {error}");
            self.fail();
        }
    }

    pub(crate) fn fail(&mut self) {
        self.broken = true;
        let mut attr = ibv_qp_attr { qp_state: QPS_ERR, ..ibv_qp_attr::default() };
        let modify = self.id.library().verbs.ibv_modify_qp;
        // SAFETY: the queue pair lives; only the state is looked at.
        let rc = unsafe { modify(self.raw, &raw mut attr, QP_STATE) };
        if let Err(error) = check(rc) {
            tracing::debug!(qpn = self.qpn(), "to ERROR: {error}");
        }
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        self.id.destroy_qp();
    }
}

fn send_wr(wr: &SendWr<'_>, sg_list: *mut Sge, num_sge: c_int) -> ibv_send_wr {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let blank: ibv_send_wr = unsafe { core::mem::zeroed() };
    let mut raw =
        ibv_send_wr { wr_id: wr.wr_id, sg_list, num_sge, send_flags: wr.flags.bits(), ..blank };
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

/// A C work request that links to the next.
trait Linked: Copy {
    fn wr_id(&self) -> u64;
    fn link(&mut self, next: *mut Self);
}

impl Linked for ibv_send_wr {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn link(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Linked for ibv_recv_wr {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn link(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Work requests on their way to one doorbell, with room for their scatter-gather lists.
struct Batch<W> {
    requests: Vec<W>,
    sges: Box<[Sge]>,
    sges_per_request: usize,
}

impl<W: Linked> Batch<W> {
    fn new(sges_per_request: u32) -> Self {
        let sges_per_request = usize::try_from(sges_per_request).expect("u32 fits").max(1);
        Self {
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

    /// Copies a list to the place that belongs to the next request.
    fn copy_sges(&mut self, sges: &[Sge]) -> Result<(*mut Sge, c_int), PushError> {
        let start = self.requests.len() * self.sges_per_request;
        let room = &mut self.sges[start..start + self.sges_per_request];
        let room = room.get_mut(..sges.len()).ok_or(PushError::TooManySges)?;
        room.copy_from_slice(sges);
        let count = c_int::try_from(sges.len()).map_err(|_| PushError::TooManySges)?;
        Ok((room.as_mut_ptr(), count))
    }

    fn push(&mut self, request: W) {
        debug_assert!(!self.is_full());
        self.requests.push(request);
    }

    /// Links the requests, posts them, and reports those that were not taken.
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
            let taken = self.index_of(bad);
            self.requests[taken..].iter().for_each(|request| lost(request.wr_id()));
        }
        self.requests.clear();
        result
    }

    /// Where in the batch a pointer leads; the driver says by it which request it refused.
    fn index_of(&self, request: *mut W) -> usize {
        let offset = (request as usize).wrapping_sub(self.requests.as_ptr() as usize);
        let index = offset / size_of::<W>();
        if index < self.requests.len() { index } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(ids: &[u64]) -> Batch<ibv_recv_wr> {
        let mut batch = Batch::new(2);
        for &wr_id in ids {
            let sges = [Sge { addr: wr_id, length: 1, lkey: 7 }];
            let (sg_list, num_sge) = batch.copy_sges(&sges).expect("fits");
            batch.push(ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge });
        }
        batch
    }

    fn collect(mut request: *mut ibv_recv_wr) -> Vec<(u64, u64)> {
        let mut seen = Vec::new();
        while !request.is_null() {
            // SAFETY: the batch links its own requests and ends in null.
            unsafe {
                seen.push(((*request).wr_id, (*(*request).sg_list).addr));
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
        assert_eq!(seen, [(1, 1), (2, 2), (3, 3)]);
    }

    #[test]
    fn what_the_device_refused_is_lost_and_nothing_else() {
        let mut batch = batch_of(&[1, 2, 3]);
        let mut lost = Vec::new();
        let posted = batch.ring(&mut |id| lost.push(id), |first, bad| {
            // SAFETY: the second request of the list exists, and `bad` is ours to write.
            unsafe { *bad = (*first).next };
            libc::ENOMEM
        });
        assert_eq!(posted.expect_err("refused").raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(lost, [2, 3]);
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let mut batch = Batch::<ibv_recv_wr>::new(2);
        assert_eq!(batch.copy_sges(&[Sge::default(); 3]), Err(PushError::TooManySges));
    }
}
