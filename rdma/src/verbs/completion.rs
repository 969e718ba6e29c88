//! A completion queue and its channel to sleep on.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::c_int;
use core::ptr::null_mut;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi::*;
use super::context::{Context, set_nonblocking};
use super::lockable::explain;
use super::requests::MAX_QUEUE_PAIRS;
use crate::{Caps, GroupConfig, Wc};

/// A completion queue with its channel. It has room for every completion of every queue pair that completes to it: one
/// that overran would take all of them with it.
pub(crate) struct CompletionQueue {
    context: Arc<Context>,
    channel: *mut ibv_comp_channel,
    pub(crate) raw: *mut ibv_cq,
    reserved: Mutex<Reserved>,
    /// It could not be polled or armed; said once, for it will be tried for ever.
    failed: AtomicBool,
}

/// What the queue pairs that complete to a queue may need of it.
#[derive(Default)]
struct Reserved {
    queue_pairs: u32,
    entries: u32,
}

// SAFETY: libibverbs lets any thread poll, arm and resize a queue; its drivers lock.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// Entries reserved for one queue pair, until this is dropped.
pub(crate) struct Room {
    queue: Arc<CompletionQueue>,
    entries: u32,
}

impl CompletionQueue {
    pub(crate) fn create(context: &Arc<Context>, config: &GroupConfig) -> io::Result<Self> {
        let functions = &context.library.verbs;
        // SAFETY: the context is open.
        let channel = unsafe { (functions.ibv_create_comp_channel)(context.raw) };
        if channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        let context = Arc::clone(context);
        let mut queue = Self {
            context,
            channel,
            raw: null_mut(),
            reserved: Mutex::default(),
            failed: AtomicBool::new(false),
        };
        // SAFETY: the channel was just made.
        set_nonblocking(unsafe { (*channel).fd })?;
        let info = &queue.context.info;
        let completions = config.completions.clamp(1, info.caps.max_cqe);
        if completions < config.completions {
            let wanted = config.completions;
            tracing::info!(
                wanted,
                granted = completions,
                "a completion queue is smaller than was asked for"
            );
        }
        let vector = config.completion_vector % info.completion_vectors;
        // SAFETY: context and channel are alive; the vector is within range.
        queue.raw = unsafe {
            (functions.ibv_create_cq)(
                queue.context.raw,
                signed(completions),
                null_mut(),
                channel,
                signed(vector),
            )
        };
        if queue.raw.is_null() {
            let what = format!("the memory of a completion queue of {completions} entries");
            return Err(explain(io::Error::last_os_error(), &what));
        }
        Ok(queue)
    }

    /// Sets room aside for the completions of a queue pair, which must not be made without.
    pub(crate) fn reserve(self: &Arc<Self>, entries: u32) -> io::Result<Room> {
        let mut reserved = self.lock_reserved();
        if reserved.queue_pairs == MAX_QUEUE_PAIRS {
            return Err(io::Error::other("one core has no room for so many RDMA connections"));
        }
        let wanted = reserved.entries.saturating_add(entries);
        // SAFETY: the queue is alive; its size changes only below, under the lock.
        let size = u32::try_from(unsafe { (*self.raw).cqe }).unwrap_or(0);
        if wanted > size {
            self.grow(size, wanted)?;
        }
        reserved.queue_pairs += 1;
        reserved.entries = wanted;
        Ok(Room { queue: Arc::clone(self), entries })
    }

    fn lock_reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Polls straight into `out`.
    pub(crate) fn poll(&self, out: &mut [Wc]) -> usize {
        // SAFETY: the queue is alive, `Wc` has the layout of `ibv_wc`, any bits in it are valid, and there is room for
        // that many.
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

    /// Asks for one event on the channel when the next completion comes; returns whether there will be one.
    pub(crate) fn arm(&self) -> bool {
        // SAFETY: the queue is alive.
        let rc = unsafe { (self.context.data_path.req_notify_cq)(self.raw, 0) };
        if rc != 0 {
            self.note_failure(&io::Error::from_raw_os_error(rc.saturating_abs()));
        }
        rc == 0
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it its descriptor, lives as long as we do.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Takes an event off the channel, if there is one. It has to be acknowledged.
    pub(crate) fn take_event(&self) -> bool {
        let get = self.context.library.verbs.ibv_get_cq_event;
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and does not block; both places are ours.
        unsafe { get(self.channel, &raw mut queue, &raw mut context) == 0 }
    }

    /// Without this, destroying the queue would wait for ever.
    pub(crate) fn acknowledge(&self, events: u32) {
        if events > 0 {
            // SAFETY: that many events were taken and not acknowledged yet.
            unsafe { (self.context.library.verbs.ibv_ack_cq_events)(self.raw, events) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let functions = &self.context.library.verbs;
        // SAFETY: every queue pair that completes to it holds it, so none is left; its events are acknowledged.
        let rc =
            unsafe { if self.raw.is_null() { 0 } else { (functions.ibv_destroy_cq)(self.raw) } };
        if rc != 0 {
            tracing::error!(
                "a completion queue is left: {}",
                io::Error::from_raw_os_error(rc.abs())
            );
            return;
        }
        // SAFETY: the only queue that reports to the channel is gone.
        unsafe { (functions.ibv_destroy_comp_channel)(self.channel) };
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut reserved = self.queue.lock_reserved();
        reserved.queue_pairs -= 1;
        reserved.entries -= self.entries;
    }
}

fn signed(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}
