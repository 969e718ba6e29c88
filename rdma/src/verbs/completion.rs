//! Completion queues and the completion channel that reports their events.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi::*;
use super::context::Context;
use super::handle::set_nonblocking;
use super::lockable::explain;
use super::requests::{MAX_QUEUE_PAIRS, WorkQueueKind};
use crate::{Caps, GroupConfig, Wc};

/// The completion queues of a group: one for its send requests and one for its receives, so that
/// the group may sleep on the receives alone. Each has room for every completion of all its queue
/// pairs: an overrun would break all of them.
pub(crate) struct CompletionQueues {
    pub(crate) sends: CompletionQueue,
    pub(crate) receives: CompletionQueue,
    reserved: Mutex<ReservedCompletions>,
    // Dropped after the queues, which report to it.
    channel: CompletionChannel,
}

/// A completion queue, destroyed when the [`CompletionQueues`] that it belongs to is dropped.
pub(crate) struct CompletionQueue {
    context: Arc<Context>,
    pub(crate) raw: *mut ibv_cq,
    /// True once polling or arming failed. The failure is logged once, since both are tried again.
    failed: AtomicBool,
}

/// The completion channel (`ibv_comp_channel`) of a group, non-blocking.
struct CompletionChannel {
    context: Arc<Context>,
    raw: *mut ibv_comp_channel,
}

/// Completion-queue entries reserved for the queue pairs of a group.
#[derive(Default)]
struct ReservedCompletions {
    queue_pairs: u32,
    sends: u32,
    receives: u32,
}

// SAFETY: libibverbs lets any thread poll, arm and resize a queue and read a channel; its drivers
// lock.
unsafe impl Send for CompletionQueues {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueues {}

/// Entries reserved for one queue pair, released when this is dropped.
pub(crate) struct CompletionRoom {
    queues: Arc<CompletionQueues>,
    sends: u32,
    receives: u32,
}

impl CompletionQueues {
    pub(crate) fn create(context: &Arc<Context>, config: &GroupConfig) -> io::Result<Self> {
        let most = context.info.caps.max_cqe;
        let completions = config.completions.clamp(1, most);
        if completions < config.completions {
            let wanted = config.completions;
            tracing::info!(
                wanted,
                granted = completions,
                "completion queues are smaller than was asked for"
            );
        }
        let vector = config.completion_vector % context.info.completion_vectors;
        let channel = CompletionChannel::create(context)?;
        Ok(Self {
            sends: CompletionQueue::create(&channel, completions, vector)?,
            receives: CompletionQueue::create(&channel, completions, vector)?,
            reserved: Mutex::default(),
            channel,
        })
    }

    /// Reserves the completion-queue entries of a queue pair, which must not be created without.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        sends: u32,
        receives: u32,
    ) -> io::Result<CompletionRoom> {
        let mut reserved = self.lock_reserved();
        if reserved.queue_pairs == MAX_QUEUE_PAIRS {
            return Err(io::Error::other("one core has no room for so many RDMA connections"));
        }
        let all_sends = reserved.sends.saturating_add(sends);
        let all_receives = reserved.receives.saturating_add(receives);
        self.sends.make_room(all_sends)?;
        self.receives.make_room(all_receives)?;
        reserved.queue_pairs += 1;
        reserved.sends = all_sends;
        reserved.receives = all_receives;
        Ok(CompletionRoom { queues: Arc::clone(self), sends, receives })
    }

    fn lock_reserved(&self) -> MutexGuard<'_, ReservedCompletions> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Takes an event off the channel and returns the queue that it is for, if any. The caller must
    /// acknowledge the event.
    pub(crate) fn take_event(&self) -> Option<WorkQueueKind> {
        let raw = self.channel.take_event()?;
        Some(if raw == self.sends.raw { WorkQueueKind::Send } else { WorkQueueKind::Receive })
    }
}

impl CompletionChannel {
    fn create(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.verbs.ibv_create_comp_channel)(context.raw) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        let channel = Self { context: Arc::clone(context), raw };
        set_nonblocking(channel.fd().as_raw_fd())?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it its descriptor, lives as long as we do.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    fn take_event(&self) -> Option<*mut ibv_cq> {
        let get = self.context.library.verbs.ibv_get_cq_event;
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and does not block; both places are ours.
        (unsafe { get(self.raw, &raw mut queue, &raw mut context) } == 0).then_some(queue)
    }
}

impl CompletionQueue {
    fn create(channel: &CompletionChannel, completions: u32, vector: u32) -> io::Result<Self> {
        let context = Arc::clone(&channel.context);
        // SAFETY: context and channel are alive; the vector is within range.
        let raw = unsafe {
            (context.library.verbs.ibv_create_cq)(
                context.raw,
                signed(completions),
                null_mut(),
                channel.raw,
                signed(vector),
            )
        };
        if raw.is_null() {
            let what = format!("the memory of a completion queue of {completions} entries");
            return Err(explain(io::Error::last_os_error(), &what));
        }
        Ok(Self { context, raw, failed: AtomicBool::new(false) })
    }

    /// Grows the queue to `wanted` entries if it has fewer. The caller holds the lock of
    /// `reserved`.
    fn make_room(&self, wanted: u32) -> io::Result<()> {
        // SAFETY: the queue is alive; its size changes only here, under the lock.
        let size = u32::try_from(unsafe { (*self.raw).cqe }).unwrap_or(0);
        if wanted > size { self.grow(size, wanted) } else { Ok(()) }
    }

    fn grow(&self, size: u32, wanted: u32) -> io::Result<()> {
        let Caps { name, max_cqe, .. } = &self.context.info.caps;
        let refuse = |reason: &str| {
            let advice = "use more cores, fewer connections or smaller queues";
            let message = format!(
                "a completion queue of RDMA device {name} would need {wanted} entries, {reason}: {advice}"
            );
            Err(io::Error::new(io::ErrorKind::OutOfMemory, message))
        };
        if wanted > *max_cqe {
            return refuse(&format!("and {max_cqe} is the most"));
        }
        let larger = size.saturating_mul(2).clamp(wanted, *max_cqe);
        // SAFETY: the queue is alive; the driver keeps what lies in it.
        match unsafe { (self.context.library.verbs.ibv_resize_cq)(self.raw, signed(larger)) } {
            0 => Ok(()),
            rc => {
                let error = io::Error::from_raw_os_error(rc.saturating_abs());
                refuse(&format!("and cannot grow beyond {size} ({error})"))
            }
        }
    }

    /// Polls completions directly into `out`; returns their number, 0 after a failure.
    pub(crate) fn poll(&self, out: &mut [Wc]) -> usize {
        // SAFETY: the queue is alive, `Wc` has the layout of `ibv_wc`, any bits in it are valid,
        // and there is room for that many.
        let count = unsafe {
            let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
            (self.context.data_path.poll_cq)(self.raw, room, out.as_mut_ptr())
        };
        usize::try_from(count).unwrap_or_else(|_| {
            self.note_failure(&io::Error::from_raw_os_error(count.saturating_abs()));
            0
        })
    }

    fn note_failure(&self, error: &io::Error) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            let device = &self.context.info.caps.name;
            tracing::error!(device, "a completion queue of the RDMA device does not work: {error}");
        }
    }

    /// Requests one event on the channel for the next completion; returns false if that failed.
    pub(crate) fn arm(&self) -> bool {
        // SAFETY: the queue is alive.
        let rc = unsafe { (self.context.data_path.req_notify_cq)(self.raw, 0) };
        if rc != 0 {
            self.note_failure(&io::Error::from_raw_os_error(rc.saturating_abs()));
        }
        rc == 0
    }

    /// Acknowledges events; until all are, destroying the queue would block.
    pub(crate) fn acknowledge(&self, events: u32) {
        if events > 0 {
            // SAFETY: that many events were taken and not acknowledged yet.
            unsafe { (self.context.library.verbs.ibv_ack_cq_events)(self.raw, events) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair that completes to it holds it, so none is left; its events are
        // acknowledged.
        let rc = unsafe { (self.context.library.verbs.ibv_destroy_cq)(self.raw) };
        if rc != 0 {
            tracing::error!(
                "a completion queue is left: {}",
                io::Error::from_raw_os_error(rc.abs())
            );
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: no queue reports to it now; if one could not be destroyed this is refused.
        unsafe { (self.context.library.verbs.ibv_destroy_comp_channel)(self.raw) };
    }
}

impl Drop for CompletionRoom {
    fn drop(&mut self) {
        let mut reserved = self.queues.lock_reserved();
        reserved.queue_pairs -= 1;
        reserved.sends -= self.sends;
        reserved.receives -= self.receives;
    }
}

fn signed(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}
