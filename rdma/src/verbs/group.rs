//! A group: queue pairs and the completion queues that they complete to.
#![expect(unsafe_code, reason = "implements methods that take memory by address")]

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use slab::Slab;

use super::completion::{CompletionQueue, CompletionQueues};
use super::context::Context;
use super::queue_pair::VerbsQp;
use super::requests::{Token, WorkQueueKind};
use crate::{
    Group, GroupConfig, GroupStats, PushError, QpConfig, QpKey, RecvWr, SendWr, Time, WakeFor, Wc,
    WcOpcode, WcStatus,
};

/// Completion events are acknowledged in batches of this many, since acknowledging takes a mutex.
const EVENTS_PER_ACKNOWLEDGE: u32 = 256;

/// Interval at which queued sends are retried until their connection is established. The connection
/// manager's thread establishes it without waking the group; this matters when a peer's first
/// command arrives before the end of our `accept`.
const CONNECTING: Duration = Duration::from_millis(1);

/// Completion queues and the queue pairs that complete to them.
pub struct VerbsGroup {
    queue_pairs: Slab<VerbsQueuePair>,
    dirty: Vec<usize>,
    /// Time of the next attempt to post sends whose connection is not established.
    retry: Option<Time>,
    generation: u32,
    /// Flush completions of requests that the device refused.
    lost: VecDeque<Wc>,
    of_sends: Wakes,
    of_receives: Wakes,
    doorbells: u64,
    queues: Arc<CompletionQueues>,
}

/// The state of the events of one completion queue.
#[derive(Default)]
struct Wakes {
    /// True while an event is requested and not taken, so that arming again would be a useless
    /// call.
    armed: bool,
    unacknowledged: u32,
}

struct VerbsQueuePair {
    qp: VerbsQp,
    dirty: bool,
}

/// A reference to a group for the connection manager.
#[derive(Clone)]
pub struct VerbsGroupHandle(pub(crate) Arc<CompletionQueues>);

impl VerbsGroup {
    pub(crate) fn new(context: &Arc<Context>, config: &GroupConfig) -> io::Result<Self> {
        let queue_pairs = usize::try_from(config.queue_pairs).expect("u32 fits");
        Ok(Self {
            queue_pairs: Slab::with_capacity(queue_pairs),
            dirty: Vec::with_capacity(queue_pairs),
            retry: None,
            generation: 0,
            lost: VecDeque::new(),
            of_sends: Wakes::default(),
            of_receives: Wakes::default(),
            doorbells: 0,
            queues: Arc::new(CompletionQueues::create(context, config)?),
        })
    }

    /// The index of a key's queue pair; `None` if it was released.
    fn find(&self, key: QpKey) -> Option<usize> {
        let index = usize::try_from(key.0 & u64::from(u32::MAX)).expect("32 bits fit");
        self.queue_pairs.get(index).is_some_and(|entry| entry.qp.key() == key).then_some(index)
    }

    fn index(&self, key: QpKey) -> usize {
        self.find(key).expect("the key's queue pair is in this group")
    }

    fn mark_dirty(&mut self, index: usize) {
        if !core::mem::replace(&mut self.queue_pairs[index].dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Replaces the token in a completion by the consumer's identifier; `None` if the queue pair
    /// was released.
    fn translate(&mut self, mut wc: Wc) -> Option<Wc> {
        let token = Token::from_wr_id(wc.wr_id);
        let index = self.find(token.qp)?;
        wc.wr_id = self.queue_pairs[index].qp.complete(token, wc.status)?;
        Some(wc)
    }

    /// Polls one completion queue into `out`; returns the number of completions.
    fn poll_queue(&mut self, which: WorkQueueKind, out: &mut [Wc]) -> usize {
        loop {
            let polled = match which {
                WorkQueueKind::Send => self.queues.sends.poll(out),
                WorkQueueKind::Receive => self.queues.receives.poll(out),
            };
            let mut count = 0;
            for index in 0..polled {
                if let Some(wc) = self.translate(out[index]) {
                    out[count] = wc;
                    count += 1;
                }
            }
            if count > 0 || polled < out.len() || out.is_empty() {
                return count;
            }
        }
    }
}

impl Wakes {
    /// Requests an event unless one is requested already; returns whether it was requested now.
    fn arm(&mut self, queue: &CompletionQueue) -> bool {
        let was_armed = self.armed;
        self.armed = was_armed || queue.arm();
        self.armed && !was_armed
    }

    /// Notes that an event was taken.
    fn took_one(&mut self, queue: &CompletionQueue) {
        self.armed = false;
        self.unacknowledged += 1;
        if self.unacknowledged >= EVENTS_PER_ACKNOWLEDGE {
            self.acknowledge(queue);
        }
    }

    fn acknowledge(&mut self, queue: &CompletionQueue) {
        queue.acknowledge(core::mem::take(&mut self.unacknowledged));
    }
}

/// Returns a closure that adds a flush completion for a request that the device refused.
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
        VerbsGroupHandle(Arc::clone(&self.queues))
    }

    fn adopt(&mut self, mut qp: VerbsQp) -> QpKey {
        self.generation = self.generation.wrapping_add(1);
        let vacant = self.queue_pairs.vacant_entry();
        // Less than `MAX_QUEUE_PAIRS`: `CompletionQueues::reserve` limits the number.
        let key = QpKey(u64::from(self.generation) << 32 | vacant.key() as u64);
        qp.adopted_as(key);
        vacant.insert(VerbsQueuePair { qp, dirty: false });
        key
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

    fn flush(&mut self, now: Time) {
        let mut kept = 0;
        for position in 0..self.dirty.len() {
            let index = self.dirty[position];
            let entry = &mut self.queue_pairs[index];
            entry.qp.flush(&mut note_lost(&mut self.lost, entry.qp.qpn()));
            self.doorbells += 1;
            // Sends that wait for their connection keep the queue pair dirty.
            entry.dirty = entry.qp.wants_flush();
            if entry.dirty {
                self.dirty[kept] = index;
                kept += 1;
            }
        }
        self.dirty.truncate(kept);
        self.retry = (kept > 0).then(|| now + CONNECTING);
    }

    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize {
        if !self.dirty.is_empty() {
            self.flush(now);
        }
        // Sends first: their completions free resources that newly arrived requests may need.
        let mut count = self.poll_queue(WorkQueueKind::Send, out);
        if count < out.len() {
            count += self.poll_queue(WorkQueueKind::Receive, &mut out[count..]);
        }
        if count < out.len() {
            count += drain(&mut self.lost, &mut out[count..]);
        }
        count
    }

    fn deadline(&self) -> Option<Time> {
        self.retry.filter(|_| !self.dirty.is_empty())
    }

    fn arm(&mut self, what: WakeFor) -> bool {
        // A request that the device refused causes no event.
        let mut unsure = !self.lost.is_empty();
        unsure |= self.of_receives.arm(&self.queues.receives);
        if what == WakeFor::Everything {
            unsure |= self.of_sends.arm(&self.queues.sends);
        }
        unsure
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queues.fd())
    }

    fn acknowledge_wake(&mut self) {
        // Each arming of a queue causes one event; if there is a second event, the descriptor stays
        // readable.
        match self.queues.take_event() {
            Some(WorkQueueKind::Send) => self.of_sends.took_one(&self.queues.sends),
            Some(WorkQueueKind::Receive) => self.of_receives.took_one(&self.queues.receives),
            None => {}
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
        self.lost.retain(|wc| wc.qpn != qpn);
    }

    fn stats(&self) -> GroupStats {
        GroupStats { doorbells: self.doorbells, ..GroupStats::default() }
    }
}

impl Drop for VerbsGroup {
    fn drop(&mut self) {
        self.of_sends.acknowledge(&self.queues.sends);
        self.of_receives.acknowledge(&self.queues.receives);
    }
}
