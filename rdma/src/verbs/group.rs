//! A completion queue, its channel to sleep on, and the queue pairs that complete to it.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use slab::Slab;

use super::abi::*;
use super::context::{Context, set_nonblocking};
use super::queue_pair::VerbsQp;
use crate::{
    Group, GroupConfig, GroupStats, PushError, QpConfig, QpKey, RecvWr, SendWr, Time, Wc, WcOpcode,
    WcStatus,
};

/// Acknowledging completion events takes a mutex, so it is done in batches.
const EVENTS_PER_ACKNOWLEDGE: u32 = 256;

/// A completion queue and the queue pairs that complete to it.
pub struct VerbsGroup {
    // Queue pairs go before the completion queue that they complete to.
    queue_pairs: Slab<Entry>,
    dirty: Vec<usize>,
    generation: u32,
    /// Completions taken from the queue while another queue pair was released.
    stashed: VecDeque<Wc>,
    /// Requests that the device did not take: flushed, like everything on a broken queue pair.
    lost: VecDeque<Wc>,
    /// An event was asked for and has not been taken: asking again would be a system call for nothing.
    armed: bool,
    unacknowledged: u32,
    doorbells: u64,
    queue: Arc<CompletionQueue>,
}

struct Entry {
    qp: VerbsQp,
    generation: u32,
    dirty: bool,
}

/// Names a group to a connection manager.
#[derive(Clone)]
pub struct VerbsGroupHandle(pub(crate) Arc<CompletionQueue>);

/// A completion queue with its channel.
pub(crate) struct CompletionQueue {
    context: Arc<Context>,
    channel: *mut ibv_comp_channel,
    pub(crate) raw: *mut ibv_cq,
}

// SAFETY: polling is the group's alone; others only name the queue when they make a queue pair.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    fn create(context: &Arc<Context>, config: &GroupConfig) -> io::Result<Self> {
        let functions = &context.library.verbs;
        // SAFETY: the context is open.
        let channel = unsafe { (functions.ibv_create_comp_channel)(context.raw) };
        if channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut queue = Self { context: Arc::clone(context), channel, raw: null_mut() };
        // SAFETY: the channel was just made.
        set_nonblocking(unsafe { (*channel).fd })?;
        let completions = config.completions.min(context.info.caps.max_cqe);
        let completions = c_int::try_from(completions).unwrap_or(c_int::MAX);
        let vector = config.completion_vector % context.info.completion_vectors;
        // SAFETY: context and channel are alive; the vector is within range.
        queue.raw = unsafe {
            (functions.ibv_create_cq)(
                context.raw,
                completions,
                null_mut(),
                channel,
                vector.cast_signed(),
            )
        };
        if queue.raw.is_null() { Err(io::Error::last_os_error()) } else { Ok(queue) }
    }

    /// Polls straight into `out`.
    fn poll(&self, out: &mut [Wc]) -> usize {
        // SAFETY: the queue is alive; its driver has filled in the operation.
        let Some(poll) = (unsafe { (*self.context.raw).ops.poll_cq }) else { return 0 };
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: `Wc` has the layout of `ibv_wc`, any bits in it are valid, and there is room for that many.
        let count = unsafe { poll(self.raw, room, out.as_mut_ptr()) };
        usize::try_from(count).unwrap_or_else(|_| {
            tracing::error!("polling a completion queue failed: {count}");
            0
        })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let functions = &self.context.library.verbs;
        // SAFETY: no queue pair completes to it any more, and its events are acknowledged.
        unsafe {
            if !self.raw.is_null() {
                (functions.ibv_destroy_cq)(self.raw);
            }
            (functions.ibv_destroy_comp_channel)(self.channel);
        }
    }
}

impl VerbsGroup {
    pub(crate) fn new(context: &Arc<Context>, config: &GroupConfig) -> io::Result<Self> {
        let completions = usize::try_from(config.completions).expect("u32 fits");
        let queue_pairs = usize::try_from(config.queue_pairs).expect("u32 fits");
        Ok(Self {
            queue_pairs: Slab::with_capacity(queue_pairs),
            dirty: Vec::with_capacity(queue_pairs),
            generation: 0,
            stashed: VecDeque::with_capacity(completions),
            lost: VecDeque::with_capacity(completions),
            armed: false,
            unacknowledged: 0,
            doorbells: 0,
            queue: Arc::new(CompletionQueue::create(context, config)?),
        })
    }

    fn index(&self, key: QpKey) -> usize {
        let index = usize::try_from(key.0 & u64::from(u32::MAX)).expect("32 bits fit");
        let entry = self.queue_pairs.get(index).expect("the key's queue pair is in this group");
        assert_eq!(u64::from(entry.generation), key.0 >> 32, "the key's queue pair was released");
        index
    }

    fn mark_dirty(&mut self, index: usize) {
        if !core::mem::replace(&mut self.queue_pairs[index].dirty, true) {
            self.dirty.push(index);
        }
    }

    fn acknowledge_events(&mut self) {
        let count = core::mem::take(&mut self.unacknowledged);
        if count > 0 {
            let acknowledge = self.queue.context.library.verbs.ibv_ack_cq_events;
            // SAFETY: that many events were received and not acknowledged yet.
            unsafe { acknowledge(self.queue.raw, count) };
        }
    }
}

/// A function that notes a request which the device did not take.
fn note_lost(lost: &mut VecDeque<Wc>, qpn: u32) -> impl FnMut(u64) {
    move |wr_id| lost.push_back(Wc::new(wr_id, qpn, WcStatus::FLUSHED, WcOpcode::default(), 0))
}

fn drain(from: &mut VecDeque<Wc>, out: &mut [Wc]) -> usize {
    let count = from.len().min(out.len());
    for (slot, wc) in out.iter_mut().zip(from.drain(..count)) {
        *slot = wc;
    }
    count
}

impl Group<super::Verbs> for VerbsGroup {
    fn handle(&self) -> VerbsGroupHandle {
        VerbsGroupHandle(Arc::clone(&self.queue))
    }

    fn adopt(&mut self, qp: VerbsQp) -> QpKey {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.queue_pairs.insert(Entry { qp, generation, dirty: false });
        QpKey(u64::from(generation) << 32 | index as u64)
    }

    fn qpn(&self, qp: QpKey) -> u32 {
        self.queue_pairs[self.index(qp)].qp.qpn()
    }

    fn granted(&self, qp: QpKey) -> QpConfig {
        self.queue_pairs[self.index(qp)].qp.granted()
    }

    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError> {
        let index = self.index(qp);
        let qp = &mut self.queue_pairs[index].qp;
        let mut lost = note_lost(&mut self.lost, qp.qpn());
        // SAFETY: passed on to the caller.
        unsafe { qp.push_send(wr, &mut lost)? };
        drop(lost);
        self.mark_dirty(index);
        Ok(())
    }

    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError> {
        let index = self.index(qp);
        let qp = &mut self.queue_pairs[index].qp;
        let mut lost = note_lost(&mut self.lost, qp.qpn());
        // SAFETY: passed on to the caller.
        unsafe { qp.push_recv(wr, &mut lost)? };
        drop(lost);
        self.mark_dirty(index);
        Ok(())
    }

    fn flush(&mut self, _now: Time) {
        let mut kept = 0;
        for position in 0..self.dirty.len() {
            let index = self.dirty[position];
            let entry = &mut self.queue_pairs[index];
            entry.qp.flush(&mut note_lost(&mut self.lost, entry.qp.qpn()));
            self.doorbells += 1;
            // Sends wait for the connection to be established.
            entry.dirty = entry.qp.wants_flush();
            if entry.dirty {
                self.dirty[kept] = index;
                kept += 1;
            }
        }
        self.dirty.truncate(kept);
    }

    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize {
        if !self.dirty.is_empty() {
            self.flush(now);
        }
        let mut count = drain(&mut self.stashed, out);
        if count < out.len() {
            count += self.queue.poll(&mut out[count..]);
        }
        if count < out.len() {
            count += drain(&mut self.lost, &mut out[count..]);
        }
        count
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self) -> bool {
        if self.armed {
            return false;
        }
        // SAFETY: the queue is alive; its driver has filled in the operation.
        let request = unsafe { (*self.queue.context.raw).ops.req_notify_cq };
        // SAFETY: as above.
        let rc = request.map_or(libc::ENOSYS, |request| unsafe { request(self.queue.raw, 0) });
        if rc != 0 {
            let error = io::Error::from_raw_os_error(rc.abs());
            tracing::error!("no wake-up from a completion queue: {error}");
        }
        self.armed = rc == 0;
        self.armed
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the channel, and with it its descriptor, lives as long as the queue that we hold.
        Some(unsafe { BorrowedFd::borrow_raw((*self.queue.channel).fd) })
    }

    fn acknowledge_wake(&mut self) {
        let get = self.queue.context.library.verbs.ibv_get_cq_event;
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and does not block; both places are ours.
        // One for each time that it was armed.
        if self.armed && unsafe { get(self.queue.channel, &raw mut queue, &raw mut context) } == 0 {
            self.armed = false;
            self.unacknowledged += 1;
        }
        if self.unacknowledged >= EVENTS_PER_ACKNOWLEDGE {
            self.acknowledge_events();
        }
    }

    fn fail(&mut self, qp: QpKey) {
        let index = self.index(qp);
        self.queue_pairs[index].qp.fail();
        self.mark_dirty(index);
    }

    fn release(&mut self, qp: QpKey) {
        let index = self.index(qp);
        let entry = self.queue_pairs.remove(index);
        let qpn = entry.qp.qpn();
        self.dirty.retain(|dirty| *dirty != index);
        drop(entry);
        // What the queue still holds of it must not be reported under a number that may be given out again.
        let mut batch = [Wc::default(); 32];
        loop {
            let count = self.queue.poll(&mut batch);
            self.stashed.extend(&batch[..count]);
            if count < batch.len() {
                break;
            }
        }
        self.stashed.retain(|wc| wc.qpn != qpn);
        self.lost.retain(|wc| wc.qpn != qpn);
    }

    fn stats(&self) -> GroupStats {
        GroupStats { doorbells: self.doorbells, ..GroupStats::default() }
    }
}

impl Drop for VerbsGroup {
    fn drop(&mut self) {
        self.acknowledge_wake();
        self.acknowledge_events();
    }
}
