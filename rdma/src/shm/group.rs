//! Groups of a shared-memory device.
#![expect(unsafe_code, reason = "work requests name memory by address")]

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::link::ShmClosing;
use super::link_watch::LinkWatch;
use super::queue_pair::ShmQueuePair;
use super::shared::{Shm, ShmDeviceShared, ShmGroupMessage};
use super::sleep_word::{PeerNews, publish_sleep};
use super::turn::QpTurn;
use crate::software::mailbox::Mailbox;
use crate::software::qp_table::QpTable;
use crate::{
    Deadlines, Group, GroupConfig, GroupStats, PushError, QpConfig, QpKey, RecvWr, SendWr, Time,
    WakeFor, Wc, WriteRoom,
};

/// Maximum number of rounds over the queue pairs in one `poll`.
const ROUNDS: usize = 8;
/// Interval at which a polling group checks for dead peers and expired requests, which costs a
/// system call.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Epoll data of the mailbox; other events have a queue pair number.
const MAILBOX: u64 = u64::MAX;
const EVENTS: usize = 64;

/// A reference to a group of a shared-memory device, for the connection manager.
#[derive(Clone, Debug)]
pub struct ShmGroupHandle {
    pub(super) index: u8,
}

/// A queue pair that no group has adopted yet.
pub struct ShmNewQp(pub(super) Box<ShmQueuePair>);

/// A group of a shared-memory device.
pub struct ShmGroup {
    shared: Arc<ShmDeviceShared>,
    index: u8,
    qps: QpTable<Box<ShmQueuePair>>,
    links: LinkWatch,
    /// When queue pairs whose peers make no progress fail; possibly earlier.
    deadlines: Deadlines,
    /// Slots of queue pairs that get a turn in the next round, whatever their peers do.
    due: Vec<u32>,
    /// Slots of queue pairs that get a turn in this round; empty between rounds.
    current: Vec<u32>,
    /// Slots of queue pairs with requests that are not written to the ring yet.
    pushed: Vec<u32>,
    completions: VecDeque<Wc>,
    stats: GroupStats,
    sleep: OwnedFd,
    now: Time,
    look_again: Time,
    /// True if more work may be pending.
    busy: bool,
    /// The news that peers were asked to ring for; `None` once a wake-up was acknowledged. It stays
    /// set while the group polls, since its caller may still sleep afterwards.
    asleep: Option<WakeFor>,
    /// Slots of queue pairs whose peers are not asked to ring. A peer that has been asked stays so
    /// until the queue pair has a turn while the group is awake.
    unarmed: Vec<u32>,
    /// The least that peers that are asked to ring do ring for.
    armed_for: WakeFor,
}

impl ShmGroup {
    pub(super) fn new(
        shared: Arc<ShmDeviceShared>,
        index: u8,
        config: &GroupConfig,
    ) -> io::Result<Self> {
        let sleep = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(mailbox) = shared.mailbox(index).and_then(|mailbox| mailbox.fd()) {
            epoll::add(&sleep, mailbox, EventData::new_u64(MAILBOX), EventFlags::IN)?;
        }
        let queue_pairs = config.queue_pairs as usize;
        Ok(Self {
            shared,
            index,
            qps: QpTable::new(queue_pairs),
            links: LinkWatch::with_capacity(queue_pairs),
            deadlines: Deadlines::default(),
            // A slot may be in it three times: for pushed requests, for news and for another turn.
            due: Vec::with_capacity(3 * queue_pairs),
            current: Vec::with_capacity(3 * queue_pairs),
            pushed: Vec::with_capacity(queue_pairs),
            completions: VecDeque::with_capacity(config.completions as usize),
            stats: GroupStats::default(),
            sleep,
            now: Time::ZERO,
            look_again: Time::ZERO,
            busy: true,
            asleep: None,
            unarmed: Vec::with_capacity(queue_pairs),
            armed_for: WakeFor::Everything,
        })
    }

    /// Gives each of the queue pairs a turn; returns whether any did work. It did all that can be
    /// done until its peer has news or it gets requests.
    fn each_turn(
        &mut self,
        slots: &[u32],
        mut action: impl FnMut(&mut ShmQueuePair, &mut QpTurn<'_>) -> bool,
    ) -> bool {
        if slots.is_empty() {
            // Without the fence of a section.
            return false;
        }
        let Self { shared, index, qps, deadlines, due, completions, stats, now, .. } = self;
        let Self { asleep, unarmed, .. } = self;
        let view = shared.regions.view(usize::from(*index) - 1);
        let mut busy = false;
        for &slot in slots {
            let qp = qps.get_mut(slot);
            let mut turn = QpTurn {
                now: *now,
                memory: view.in_domain(qp.domain()),
                qpn: qp.qpn(),
                completions,
                stats,
                news: PeerNews::default(),
            };
            busy |= action(qp, &mut turn);
            if let Some(deadline) = qp.deadline() {
                deadlines.at_latest(slot, deadline);
            }
            match *asleep {
                Some(what) if qp.stay_asleep(what) => {
                    busy = true;
                    if !qp.set_due(true) {
                        due.push(slot);
                    }
                }
                None if qp.wake_up() => unarmed.push(slot),
                _ => {}
            }
        }
        busy
    }

    /// Schedules a turn of a queue pair for the next round.
    fn mark_due(&mut self, slot: u32) {
        if !self.qps.get_mut(slot).set_due(true) {
            self.due.push(slot);
        }
    }

    /// Calls `action` for one queue pair.
    fn turn<T>(
        &mut self,
        slot: u32,
        action: impl FnOnce(&mut ShmQueuePair, &mut QpTurn<'_>) -> T,
    ) -> T {
        let Self { shared, index, qps, completions, stats, now, .. } = self;
        let view = shared.regions.view(usize::from(*index) - 1);
        let qp = qps.get_mut(slot);
        let memory = view.in_domain(qp.domain());
        let (now, qpn, news) = (*now, qp.qpn(), PeerNews::default());
        action(qp, &mut QpTurn { now, memory, qpn, completions, stats, news })
    }

    /// Runs one round: gives each queue pair that may have work a turn; returns whether any did
    /// work.
    fn progress(&mut self) -> bool {
        let mut slots = std::mem::take(&mut self.current);
        std::mem::swap(&mut slots, &mut self.due);
        slots.iter().for_each(|&slot| {
            self.qps.get_mut(slot).set_due(false);
        });
        self.links.look(&mut slots);
        slots.append(&mut self.pushed);
        let busy = self.each_turn(&slots, ShmQueuePair::progress);
        slots.clear();
        self.current = slots;
        busy
    }

    fn read_mail(&mut self) {
        if let Some(mailbox) = self.shared.mailbox(self.index) {
            mailbox.quiet();
        }
        while let Some(message) = self.shared.mailbox(self.index).and_then(Mailbox::receive) {
            match message {
                ShmGroupMessage::Connect { number, agreement } => {
                    if let Some(slot) = self.find(number) {
                        self.qps.get_mut(slot).connect(agreement);
                        self.mark_due(slot);
                    }
                }
                ShmGroupMessage::Fail { number } => {
                    if let Some(slot) = self.find(number) {
                        self.turn(slot, |qp, turn| qp.fail(turn, ShmClosing::Ended));
                    }
                }
            }
        }
    }

    fn find(&self, (qpn, serial): (u32, u64)) -> Option<u32> {
        let slot = self.qps.find(qpn)?;
        (self.qps.get(slot).serial() == serial).then_some(slot)
    }

    /// Processes epoll events, and returns how many: clears rung bells and marks queue pairs whose
    /// peer is gone. Before a wake-up is acknowledged only hang-ups are processed: another thread
    /// may be about to sleep on a rung bell, and a peer rings only once.
    fn answer_bells(&mut self) -> usize {
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(count) = epoll::wait(&self.sleep, &mut events, Some(&at_once)) else { return 0 };
        for event in &events[..count] {
            // Copied, since the struct is packed.
            let flags = event.flags;
            if self.asleep.is_some() && !flags.contains(EventFlags::HUP) {
                continue;
            }
            let Ok(qpn) = u32::try_from(event.data.u64()) else { continue };
            let Some(slot) = self.qps.find(qpn) else { continue };
            let qp = self.qps.get_mut(slot);
            let is_gone = qp.silence_bell();
            // The peer does not ring until it is asked again.
            if qp.wake_up() {
                self.unarmed.push(slot);
            }
            if is_gone {
                // A hung-up socket would stay readable.
                let _ = epoll::delete(&self.sleep, qp.bell());
                self.mark_due(slot);
                self.busy = true;
            }
        }
        count
    }

    fn check_time(&mut self) {
        let mut slots = std::mem::take(&mut self.current);
        while let Some(slot) = self.deadlines.pop_due(self.now) {
            slots.push(slot);
        }
        self.busy |= self.each_turn(&slots, |qp, turn| {
            qp.check_time(turn);
            false
        });
        slots.clear();
        self.current = slots;
    }
}

impl Group<Shm> for ShmGroup {
    fn handle(&self) -> ShmGroupHandle {
        ShmGroupHandle { index: self.index }
    }

    fn adopt(&mut self, ShmNewQp(qp): ShmNewQp) -> QpKey {
        let qpn = qp.qpn();
        if let Err(error) =
            epoll::add(&self.sleep, qp.bell(), EventData::new_u64(qpn.into()), EventFlags::IN)
        {
            // The queue pair still works while the group polls; otherwise its requests time out.
            tracing::error!(%error, "cannot wait for a peer in shared memory");
        }
        let slot = self.qps.insert(qpn, qp);
        self.deadlines.reserve(slot as usize + 1);
        self.unarmed.push(slot);
        // SAFETY: the queue pair maps the word, and is in the table until the link is removed.
        unsafe { self.links.add(slot, self.qps.get(slot).peer_news()) };
        self.mark_due(slot);
        self.qps.key(slot)
    }

    fn qpn(&self, qp: QpKey) -> u32 {
        self.qps.get(self.qps.slot(qp)).qpn()
    }

    fn granted(&self, qp: QpKey) -> QpConfig {
        self.qps.get(self.qps.slot(qp)).granted()
    }

    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError> {
        let slot = self.qps.slot(qp);
        let qp = self.qps.get_mut(slot);
        // SAFETY: as the caller promises.
        unsafe { qp.push_send(wr) }?;
        let failed = qp.has_failed();
        self.stats.doorbells += 1;
        if failed {
            self.turn(slot, |qp, turn| qp.flush(turn));
        } else if self.pushed.last() != Some(&slot) {
            self.pushed.push(slot);
        }
        Ok(())
    }

    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError> {
        let slot = self.qps.slot(qp);
        let qp = self.qps.get_mut(slot);
        qp.push_recv(wr)?;
        let (starved, failed) = (qp.is_starved(), qp.has_failed());
        if starved {
            self.mark_due(slot);
            self.busy = true;
        }
        if failed {
            self.turn(slot, |qp, turn| qp.flush(turn));
        }
        Ok(())
    }

    fn has_write_room(&mut self, qp: QpKey, total: u32) -> bool {
        self.qps.get_mut(self.qps.slot(qp)).has_write_room(total)
    }

    fn write_room(&mut self, qp: QpKey, total: u32) -> Option<WriteRoom> {
        self.qps.get_mut(self.qps.slot(qp)).write_room(total)
    }

    fn send_room(&mut self, qp: QpKey, room: WriteRoom, remote_addr: u64, rkey: u32) -> bool {
        let slot = self.qps.slot(qp);
        let sent = self.qps.get_mut(slot).send_room(&room, remote_addr, rkey);
        if sent {
            self.stats.packets_sent += 1;
            self.stats.payload_bytes_sent += u64::from(room.length);
            if self.pushed.last() != Some(&slot) {
                self.pushed.push(slot);
            }
        }
        sent
    }

    fn flush(&mut self, now: Time) {
        self.now = self.now.max(now);
        let pushed = std::mem::take(&mut self.pushed);
        self.busy |= self.each_turn(&pushed, |qp, turn| {
            qp.hand_over(turn);
            false
        });
        self.pushed = pushed;
        self.pushed.clear();
    }

    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize {
        self.now = self.now.max(now);
        self.read_mail();
        let look = self.now >= self.look_again;
        if look {
            self.look_again = self.now + LOOK_INTERVAL;
            self.answer_bells();
        }
        for _ in 0..ROUNDS {
            self.busy = self.progress();
            if !self.busy || !self.completions.is_empty() {
                break;
            }
        }
        if look {
            self.check_time();
        }
        let count = out.len().min(self.completions.len());
        for (place, wc) in out.iter_mut().zip(self.completions.drain(..count)) {
            *place = wc;
        }
        count
    }

    fn deadline(&self) -> Option<Time> {
        let has_mail = self.shared.mailbox(self.index).is_some_and(|mailbox| !mailbox.is_empty());
        if self.busy || has_mail || !self.completions.is_empty() || !self.pushed.is_empty() {
            return Some(self.now);
        }
        // Not before the next check, in which deadlines are handled.
        self.deadlines.earliest().map(|time| time.max(self.look_again))
    }

    fn arm(&mut self, what: WakeFor) -> bool {
        if self.asleep.is_none() {
            // Peers that rang while the group was awake are asked again. Epoll reports each of them
            // in so many calls, even if some never stop ringing.
            for _ in 0..=self.links.len() / EVENTS {
                if self.answer_bells() < EVENTS {
                    break;
                }
            }
        }
        self.asleep = Some(what);
        if what == WakeFor::Everything && self.armed_for == WakeFor::Arrivals {
            self.unarmed.clear();
            self.unarmed.extend(self.links.slots());
        }
        self.armed_for = what;
        for &slot in &self.unarmed {
            self.qps.get_mut(slot).fall_asleep(what);
        }
        publish_sleep();
        let Self { qps, due, unarmed, .. } = self;
        unarmed.retain(|&slot| {
            let qp = qps.get_mut(slot);
            if qp.has_news() && !qp.set_due(true) {
                due.push(slot);
            }
            !qp.is_armed()
        });
        !due.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sleep.as_fd())
    }

    /// Only after this are bells cleared: a caller may arm the group, poll it and then sleep.
    fn acknowledge_wake(&mut self) {
        self.asleep = None;
        self.answer_bells();
    }

    fn fail(&mut self, qp: QpKey) {
        let slot = self.qps.slot(qp);
        self.turn(slot, |qp, turn| qp.fail(turn, ShmClosing::Failed));
    }

    fn release(&mut self, qp: QpKey) {
        let slot = self.qps.slot(qp);
        let qp = self.qps.remove(slot);
        qp.leave();
        let _ = epoll::delete(&self.sleep, qp.bell());
        self.links.remove(slot);
        self.deadlines.remove(slot);
        for list in [&mut self.due, &mut self.pushed, &mut self.unarmed] {
            list.retain(|&other| other != slot);
        }
        self.completions.retain(|wc| wc.qpn != qp.qpn());
    }

    fn stats(&self) -> GroupStats {
        self.stats
    }
}

impl Drop for ShmGroup {
    fn drop(&mut self) {
        self.shared.give_group_back(self.index);
    }
}
