//! Poll groups: everything that one core does.
//!
//! A group never waits and reads no clock. Its driver calls [`PollGroup::turn`] with the time; when
//! a turn returns that there is nothing to do, the driver may sleep, on a thread with
//! [`PollGroup::sleep`].

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crossbeam::channel::Receiver;
use rdma::{GroupStats, Time, WakeFor};

use crate::controller::Associations;
use crate::core_context::buffers::CoreBuffers;
use crate::core_context::events::BufferEvent;
use crate::core_context::pool::Pool;
use crate::core_context::{CoreContext, RequestKey};
use crate::doorbell::Doorbell;
use crate::limits::{MAX_DEVICES, STORAGE_GRACE};
use crate::metrics::snapshot::PoolStats;
use crate::storage::{Engine, EngineStats, Storage, StorageReport};
use crate::transport::{Stop, Transport};

/// The result of a turn, for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something was done; there may be more.
    Busy,
    /// Nothing is to be done before a wake-up or this time.
    SleepUntil(Option<Time>),
}

/// One core's work: transports, storage and buffers.
pub(crate) struct PollGroup {
    // First: their connections are gone before the storage and the buffers.
    transports: Vec<Option<Box<dyn Transport>>>,
    /// Those that are to join them.
    joining: Receiver<JoiningTransport>,
    core: CoreContext,
    bell: Arc<Doorbell>,
    orders: Arc<StopRequest>,
    applied_stop: Option<Stop>,
    /// When it ends though storage still works on something.
    over_at: Option<Time>,
    gave_up: bool,
}

/// A transport that a core is to take in.
pub(crate) struct JoiningTransport {
    /// Its index among the transports of the core: the next one, or that of one that is gone.
    pub(crate) slot: usize,
    pub(crate) transport: Box<dyn Transport>,
}

/// A poll group that still lacks its engine, which has to be made on the thread that will use it.
pub(crate) struct PollGroupBuilder {
    pub(crate) associations: Arc<Associations>,
    pub(crate) pool: Pool,
    pub(crate) guest_pool: Pool,
    /// Where its transports come from, now and later.
    pub(crate) transports: Receiver<JoiningTransport>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) orders: Arc<StopRequest>,
}

/// Counters of one group.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollGroupStats {
    /// Of its storage engine.
    pub engine: EngineStats,
    /// Of its device groups.
    pub network: GroupStats,
    /// Of its buffer pool.
    pub pool: PoolStats,
}

impl PollGroupBuilder {
    /// The group, with its engine.
    pub(crate) fn build(self, engine: Box<dyn Engine>) -> PollGroup {
        let buffers = CoreBuffers::new(self.pool, self.guest_pool);
        let storage = Storage::new(engine);
        let core = CoreContext::new(self.associations, storage, buffers, &self.bell);
        let (joining, bell, orders) = (self.transports, self.bell, self.orders);
        let mut group = PollGroup {
            transports: Vec::with_capacity(MAX_DEVICES),
            joining,
            core,
            bell,
            orders,
            applied_stop: None,
            over_at: None,
            gave_up: false,
        };
        group.take_transports();
        group
    }

    /// The pool of hosts, for an engine that registers it. Anonymous connections need no storage.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl PollGroup {
    /// Does all that is ready at `now`.
    pub(crate) fn turn(&mut self, now: Time) -> Turn {
        self.core.begin_turn(now);
        self.core.rung = self.bell.answer();
        self.core.follow_exports();
        if self.core.rung {
            self.take_transports();
        }
        self.apply_stop();
        self.gave_up |= self.over_at.is_some_and(|at| at <= now);
        let mut progress = self.core.rung;
        for transport in self.transports.iter_mut().flatten() {
            progress |= transport.turn(&mut self.core);
        }
        progress |= self.serve_storage();
        progress |= self.grant_buffers();
        for transport in self.transports.iter_mut().flatten() {
            transport.flush(&mut self.core);
        }
        if progress {
            return Turn::Busy;
        }
        self.drop_gone();
        self.core.buffers().note_rest();
        Turn::SleepUntil(self.deadline())
    }

    /// Asks the devices for wake-ups. Returns whether one more turn is due before sleeping, since
    /// something may have arrived before.
    pub(crate) fn arm(&mut self) -> bool {
        // Buffers that were sent are free when that is reported, which matters only to those that
        // wait for one.
        let what = match self.core.buffers().is_waited_for() {
            true => WakeFor::Everything,
            false => WakeFor::Arrivals,
        };
        let arm = |unsure, transport: &mut Box<dyn Transport>| transport.arm(what) | unsure;
        let unsure = self.transports.iter_mut().flatten().fold(false, arm);
        if unsure {
            // It does not sleep, so that peers need not wake it.
            self.transports.iter_mut().flatten().for_each(|transport| transport.woken());
        }
        unsure
    }

    /// Sleeps until there is something to do, or `timeout` passes. For drivers with a thread.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        if !self.bell.is_quiet() {
            return;
        }
        let mut watched = [RawFd::default(); 1 + MAX_DEVICES];
        watched[0] = self.bell.fd();
        let mut count = 1;
        for fd in self.transports.iter().flatten().filter_map(|transport| transport.watched()) {
            watched[count] = fd;
            count += 1;
        }
        let storage = self.core.storage();
        storage.sleep(&watched[..count], timeout);
        for transport in self.transports.iter_mut().flatten() {
            if transport.watched().is_some_and(|fd| storage.was_readable(fd)) {
                transport.woken();
            }
        }
    }

    /// Whether no connection is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.transports.iter().flatten().all(|transport| transport.is_empty())
    }

    /// Whether the target is ending and this group is done, or has given up operations that storage
    /// does not end.
    pub(crate) fn is_over(&self) -> bool {
        self.applied_stop.is_some() && (self.is_empty() || self.gave_up)
    }

    /// Ends a group that is over.
    ///
    /// # Errors
    /// The number of operations on which storage still works. Their memory is never freed; and the
    /// thread must not end before the process, since the kernel would have it wait for them.
    pub(crate) fn end(self) -> Result<(), usize> {
        if self.is_empty() {
            return Ok(());
        }
        let mut kept = std::mem::ManuallyDrop::new(self);
        Err(kept.core.storage().in_flight())
    }

    /// How many operations on namespaces have begun and ended.
    pub(crate) fn operations(&mut self) -> u64 {
        self.core.storage().begun_and_ended()
    }

    /// Counters of the group, its transports and its engine.
    pub(crate) fn stats(&mut self) -> PollGroupStats {
        let mut network = GroupStats::default();
        self.transports.iter().flatten().for_each(|transport| network += transport.stats());
        let engine = self.core.storage().stats();
        let buffers = self.core.buffers();
        PollGroupStats {
            engine,
            network,
            pool: PoolStats {
                bytes: buffers.total_bytes(),
                used_bytes: buffers.used_bytes(),
                waits: buffers.waits(),
            },
        }
    }

    /// The events of the buffers of hosts and of those of anonymous connections since the last
    /// call; the first one comes before all connections.
    pub(crate) fn buffer_events(&mut self) -> [Vec<BufferEvent>; 2] {
        self.core.buffers().take_events()
    }

    /// Takes in the transports of devices that were added.
    fn take_transports(&mut self) {
        while let Ok(JoiningTransport { slot, mut transport }) = self.joining.try_recv() {
            if let Some(how) = self.applied_stop {
                transport.stop(how);
            }
            match self.transports.get_mut(slot) {
                Some(vacant) => *vacant = Some(transport),
                None => self.transports.push(Some(transport)),
            }
        }
    }

    /// Drops the transports whose devices are gone, so that the system can forget these.
    fn drop_gone(&mut self) {
        for slot in &mut self.transports {
            if let Some(gone) = slot.take_if(|transport| transport.is_over())
                && let Some(fd) = gone.watched()
            {
                self.core.storage().unwatch(fd);
            }
        }
    }

    fn apply_stop(&mut self) {
        let ordered = self.orders.get();
        if ordered != self.applied_stop {
            self.applied_stop = ordered;
            if let Some(how) = ordered {
                self.transports.iter_mut().flatten().for_each(|transport| transport.stop(how));
                if how == Stop::Now {
                    self.over_at = Some(self.core.now + STORAGE_GRACE);
                }
            }
        }
    }

    fn serve_storage(&mut self) -> bool {
        let now = self.core.now;
        let mut progress = self.core.storage().turn(now);
        while let Some(report) = self.core.storage().next_report() {
            progress = true;
            match report {
                StorageReport::Done { tag, result } => {
                    let whose = RequestKey::from_bits(tag.0);
                    let transport = transport_of(&mut self.transports, whose);
                    transport.operation_ended(&mut self.core, whose, result);
                }
                StorageReport::NotCancelled { tag } => {
                    let whose = RequestKey::from_bits(tag.0);
                    let transport = transport_of(&mut self.transports, whose);
                    transport.operation_not_cancelled(&mut self.core, whose);
                }
            }
        }
        progress
    }

    fn grant_buffers(&mut self) -> bool {
        let mut progress = false;
        while let Some((whose, buffer)) = self.core.buffers().grant() {
            progress = true;
            let transport = transport_of(&mut self.transports, whose);
            transport.buffer_granted(&mut self.core, whose, buffer);
        }
        progress
    }

    fn deadline(&mut self) -> Option<Time> {
        let storage = self.core.storage().deadline();
        let transports = self.transports.iter().flatten();
        let transports = transports.filter_map(|transport| transport.deadline());
        let over = self.over_at.filter(|_| !self.gave_up);
        transports.chain(storage).chain(over).min()
    }
}

/// The transport that has a request.
fn transport_of(
    transports: &mut [Option<Box<dyn Transport>>],
    whose: RequestKey,
) -> &mut Box<dyn Transport> {
    transports[usize::from(whose.transport)].as_mut().expect("it stays until its requests ended")
}

impl Drop for PollGroup {
    /// Connections and buffers that are dropped with the group must not be in the kernel's hands
    /// any more.
    fn drop(&mut self) {
        self.core.storage().abandon();
    }
}

/// The instruction of the target to all its poll groups.
#[derive(Debug, Default)]
pub(crate) struct StopRequest(AtomicU8);

impl StopRequest {
    pub(crate) fn set(&self, how: Stop) {
        let order = match how {
            Stop::Drain => 1,
            Stop::Now => 2,
        };
        self.0.fetch_max(order, Ordering::AcqRel);
    }

    pub(crate) fn get(&self) -> Option<Stop> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Stop::Drain),
            _ => Some(Stop::Now),
        }
    }
}

impl std::ops::AddAssign for PollGroupStats {
    fn add_assign(&mut self, other: Self) {
        let Self { engine, network, pool } = other;
        self.engine += engine;
        self.network += network;
        self.pool += pool;
    }
}
