//! The reads of a lane: those that wait, and those in flight with their memory.
#![expect(unsafe_code, reason = "answers out of registered memory")]

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use feedrail_initiator::{
    Entry, Error, Grant, Host, MonotonicTime, PlanError, Region, Shards, Submit, Ticket,
};
use rustix::io::Errno;

use crate::device::FuseDevice;
use crate::fault::ReadFault;
use crate::protocol::MAX_TRANSFER_BYTES;

/// Reads in flight at a time, each with memory for the largest: those beyond wait.
const SLOTS: usize = 32;

/// How long a read may take after the reader was told by a signal not to wait for it. Most end well
/// in that time, so that signals that a program handles do not show.
const GRACE: Duration = Duration::from_millis(250);

/// Pause before a read is tried again whose target is away.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRead {
    pub(crate) unique: u64,
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    /// Bytes, all of them within the file: at most [`MAX_TRANSFER_BYTES`].
    pub(crate) length: u32,
    /// Time at which the kernel has asked.
    pub(crate) begun: MonotonicTime,
    /// When it is tried again, if it has failed.
    again: Option<MonotonicTime>,
    /// When it is given up, if it was interrupted.
    give_up: Option<MonotonicTime>,
}

impl PendingRead {
    pub(crate) fn new(
        unique: u64,
        inode: u64,
        (offset, length): (u64, u32),
        begun: MonotonicTime,
    ) -> Self {
        Self { unique, inode, offset, length, begun, again: None, give_up: None }
    }

    /// The read, to be tried again after a pause.
    pub(crate) fn postponed(self, now: MonotonicTime) -> Self {
        Self { again: Some(later(now, PAUSE)), ..self }
    }

    /// Whether it can be tried.
    pub(crate) fn is_due(&self, now: MonotonicTime) -> bool {
        self.again.is_none_or(|again| again <= now)
    }

    fn interrupt(&mut self, now: MonotonicTime) {
        self.give_up.get_or_insert(later(now, GRACE));
    }
}

fn later(time: MonotonicTime, by: Duration) -> MonotonicTime {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    MonotonicTime::from_nanos(time.as_nanos().saturating_add(nanos))
}

/// A read whose commands are on their way.
struct InFlight {
    /// `None` once it was given up: the memory is in use until the commands have ended.
    read: Option<PendingRead>,
    ticket: Ticket,
}

pub(crate) struct Reads {
    region: Region,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    waiting: VecDeque<PendingRead>,
}

impl Reads {
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            region: Region::allocate(SLOTS * MAX_TRANSFER_BYTES, Grant::Persistent)?,
            slots: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            waiting: VecDeque::new(),
        })
    }

    /// Takes a read, which waits for its file and for memory.
    pub(crate) fn push(&mut self, read: PendingRead) {
        self.waiting.push_back(read);
    }

    /// The reads that wait; those that still do are to be pushed again.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<PendingRead> {
        std::mem::take(&mut self.waiting)
    }

    /// Whether a read can be started now.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Starts a read if there is room, else lets it wait.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(crate) fn start(
        &mut self,
        host: &Host,
        shards: &Shards,
        read: PendingRead,
    ) -> Result<(), ReadFault> {
        let Some(slot) = self.free.pop() else {
            self.waiting.push_back(read);
            return Ok(());
        };
        let dst = (slot * MAX_TRANSFER_BYTES) as u64;
        let entry = Entry { shard: 0, length: read.length, offset: read.offset, dst };
        match host.submit(shards, &[entry], &self.region, Submit::default()) {
            Ok(ticket) => {
                self.slots[slot] = Some(InFlight { read: Some(read), ticket });
                Ok(())
            }
            Err(error) => {
                self.free.push(slot);
                tracing::debug!(%error, "cannot read");
                Err(match error {
                    PlanError::Host(error) => ReadFault::of(&error),
                    _ => ReadFault::Final(Errno::IO),
                })
            }
        }
    }

    /// Answers the reads that have ended; calls `ended` with each, and why it did not end well.
    /// Returns whether there were any.
    pub(crate) fn finish(
        &mut self,
        device: &FuseDevice,
        mut ended: impl FnMut(PendingRead, Option<Error>),
    ) -> bool {
        let mut has_moved = false;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let Some(InFlight { read, ticket }) = slot.take_if(|it| it.ticket.is_done()) else {
                continue;
            };
            has_moved = true;
            if let Some(read) = read {
                let error = ticket.error(0);
                if error.is_none() {
                    let data = self.region.as_ptr().wrapping_add(number * MAX_TRANSFER_BYTES);
                    let length = read.length as usize;
                    // SAFETY: the bytes are within the region, which lives, and no plan in
                    // flight reads into them.
                    unsafe { device.answer_raw(read.unique, data, length) };
                }
                ended(read, error);
            }
            self.free.push(number);
        }
        has_moved
    }

    /// Notes that nobody waits for a request any longer.
    pub(crate) fn interrupt(&mut self, unique: u64, now: MonotonicTime) {
        let in_flight = self.slots.iter_mut().flatten().filter_map(|slot| slot.read.as_mut());
        let mut all = self.waiting.iter_mut().chain(in_flight);
        if let Some(read) = all.find(|read| read.unique == unique) {
            read.interrupt(now);
        }
    }

    /// Gives up the interrupted reads whose time has come.
    pub(crate) fn give_up(&mut self, device: &FuseDevice, now: MonotonicTime) {
        let is_over = |read: &PendingRead| read.give_up.is_some_and(|time| time <= now);
        self.waiting.retain(|read| {
            if is_over(read) {
                device.fail(read.unique, Errno::INTR);
            }
            !is_over(read)
        });
        for slot in self.slots.iter_mut().flatten() {
            if let Some(read) = slot.read.take_if(|read| is_over(read)) {
                device.fail(read.unique, Errno::INTR);
                slot.ticket.cancel();
            }
        }
    }

    /// When a read is given up or tried again next.
    pub(crate) fn next_due(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        let in_flight = self.slots.iter().flatten().filter_map(|slot| slot.read.as_ref());
        // One that is due by now waits for memory.
        let again = self.waiting.iter().filter_map(|read| read.again.filter(|&again| again > now));
        let give_up = self.waiting.iter().chain(in_flight).filter_map(|read| read.give_up);
        again.chain(give_up).min()
    }
}
