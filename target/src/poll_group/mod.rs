//! Poll groups: all work of one core.
//!
//! A group never waits (except in [`PollGroup::sleep`]) and reads no clock. Its driver calls
//! [`PollGroup::turn`] with the time; when the turn returns that nothing is due, the driver may
//! sleep.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crossbeam::channel::Receiver;
use rdma::{GroupStats, Time, WakeFor};

use crate::backend::BackendError;
use crate::controller::Associations;
use crate::core_context::events::BufferEvent;
use crate::core_context::pool::{Buffer, Pool};
use crate::core_context::throttle::WaitEnd;
use crate::core_context::{CoreBuffers, CoreContext, RequestKey};
use crate::doorbell::Doorbell;
use crate::limits::turn::UNTHROTTLED_AT_ONCE;
use crate::limits::{MAX_DEVICES, STORAGE_GRACE};
use crate::metrics::snapshot::PoolStats;
use crate::storage::{Engine, EngineStats, Storage, StorageReport};
use crate::transport::Stop;

/// Result of a turn, by which its driver decides whether to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The turn did some work, and there may be more.
    Busy,
    /// Nothing is due before a wake-up or this time; `None` is no time limit.
    SleepUntil(Option<Time>),
}

/// Transport of one device on one core. A poll group makes one virtual call per turn and event.
pub(crate) trait Transport: Send {
    /// Handles arrived capsules, completions and messages of other threads; true if there were any.
    fn turn(&mut self, core: &mut CoreContext) -> bool;

    /// Continues a request whose storage operation has ended.
    fn operation_ended(
        &mut self,
        core: &mut CoreContext,
        whose: RequestKey,
        result: Result<(), BackendError>,
    );

    /// Responds to the Abort of a request whose storage operation cannot be cancelled.
    fn operation_not_cancelled(&mut self, core: &mut CoreContext, whose: RequestKey);

    /// Continues a request that waited for a quota.
    fn quota_passed(&mut self, core: &mut CoreContext, whose: RequestKey, end: WaitEnd);

    /// Continues a request that waited for a buffer.
    fn buffer_granted(&mut self, core: &mut CoreContext, whose: RequestKey, buffer: Buffer);

    /// Sends the responses of the turn and submits all work requests to the device.
    fn flush(&mut self, core: &mut CoreContext);

    /// Time at which [`Transport::turn`] must run even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// Arms the device, so that the next completion that `what` covers makes [`Transport::watched`]
    /// readable. Returns whether one more turn is needed before sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// Acknowledges the events that made [`Transport::watched`] readable.
    fn woken(&mut self);

    /// Descriptor of the device to sleep on; `None` under a simulator.
    fn watched(&self) -> Option<RawFd>;

    /// Starts to end every connection, as `how` says.
    fn stop(&mut self, how: Stop);

    /// Whether no connection is left.
    fn is_empty(&self) -> bool;

    /// Whether its device has failed and all its connections have ended, so that it can be dropped.
    fn is_over(&self) -> bool;

    /// Counters of its group of the RDMA provider.
    fn stats(&self) -> GroupStats;
}

/// All work of one core: transports, storage and buffers.
pub(crate) struct PollGroup {
    // Dropped first, so that connections end before storage and buffers are dropped.
    transports: Vec<Option<Box<dyn Transport>>>,
    /// Channel of transports of devices that were added.
    joining: Receiver<JoiningTransport>,
    core: CoreContext,
    bell: Arc<Doorbell>,
    stop_request: Arc<StopRequest>,
    /// Last stop request that was passed to the transports.
    applied_stop: Option<Stop>,
    /// Time at which the group ends even if storage operations are still running.
    over_at: Option<Time>,
    /// Whether `over_at` has passed.
    gave_up: bool,
}

/// A transport that a core adds to its poll group.
pub(crate) struct JoiningTransport {
    /// Index in the transports of the core: the next one, or that of a dropped transport.
    pub(crate) slot: usize,
    pub(crate) transport: Box<dyn Transport>,
}

/// A poll group without its storage engine, which must be created on the thread that will use it.
pub(crate) struct PollGroupBuilder {
    pub(crate) associations: Arc<Associations>,
    pub(crate) pool: Pool,
    pub(crate) anonymous_pool: Pool,
    /// Channel of its transports: those that exist already, and later ones.
    pub(crate) transports: Receiver<JoiningTransport>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) stop_request: Arc<StopRequest>,
}

/// Counters of one poll group.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollGroupStats {
    /// Counters of its storage engine.
    pub engine: EngineStats,
    /// Counters of its RDMA provider groups.
    pub network: GroupStats,
    /// Size and use of its buffer pool.
    pub pool: PoolStats,
}

impl PollGroupBuilder {
    pub(crate) fn build(self, engine: Box<dyn Engine>) -> PollGroup {
        let buffers = CoreBuffers::new(self.pool, self.anonymous_pool);
        let storage = Storage::new(engine);
        let core = CoreContext::new(self.associations, storage, buffers, &self.bell);
        let (joining, bell, stop_request) = (self.transports, self.bell, self.stop_request);
        let mut group = PollGroup {
            transports: Vec::with_capacity(MAX_DEVICES),
            joining,
            core,
            bell,
            stop_request,
            applied_stop: None,
            over_at: None,
            gave_up: false,
        };
        group.take_transports();
        group
    }

    /// Buffer pool for commands of connected hosts, so that an engine can register it. Buffers of
    /// anonymous connections are never passed to storage.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl PollGroup {
    /// Does all work of the core that is due at `now`.
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
        progress |= self.resume_throttled();
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

    /// Arms the wake-ups of the devices. Returns whether the group needs one more turn before it
    /// may sleep, since something may have arrived in between.
    pub(crate) fn arm(&mut self) -> bool {
        // The completion of a response frees its buffer. A wake-up for that is needed only if a
        // request waits for a buffer.
        let what = match self.core.buffers().is_waited_for() {
            true => WakeFor::Everything,
            false => WakeFor::Arrivals,
        };
        let arm = |unsure, transport: &mut Box<dyn Transport>| transport.arm(what) | unsure;
        let unsure = self.transports.iter_mut().flatten().fold(false, arm);
        if unsure {
            // A group that polls needs no wake-ups from its peers.
            self.transports.iter_mut().flatten().for_each(|transport| transport.woken());
        }
        unsure
    }

    /// Sleeps until there is work, or `timeout` has passed. Only for drivers with threads.
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

    /// Whether all connections have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.transports.iter().flatten().all(|transport| transport.is_empty())
    }

    /// Whether the target is stopping and this group has finished, or has waited `STORAGE_GRACE`
    /// for storage operations that do not end.
    pub(crate) fn is_over(&self) -> bool {
        self.applied_stop.is_some() && (self.is_empty() || self.gave_up)
    }

    /// Ends a group that has finished (see [`PollGroup::is_over`]).
    ///
    /// # Errors
    /// The number of running storage operations. Their memory is never freed, and the thread must
    /// not end before the process, since the kernel would make it wait for them.
    pub(crate) fn end(self) -> Result<(), usize> {
        if self.is_empty() {
            return Ok(());
        }
        let mut kept = std::mem::ManuallyDrop::new(self);
        Err(kept.core.storage().in_flight())
    }

    /// Number of storage operations on namespaces that have begun, plus the number that have ended.
    pub(crate) fn operations(&mut self) -> u64 {
        self.core.storage().begun_and_ended()
    }

    /// Counters of the group, its transports and its engine.
    pub(crate) fn stats(&mut self) -> PollGroupStats {
        let mut network = GroupStats::default();
        self.transports.iter().flatten().for_each(|transport| network += transport.stats());
        let engine = self.core.storage().stats();
        PollGroupStats { engine, network, pool: self.core.buffers().stats() }
    }

    /// Returns the events since the last call of the buffers of hosts and of anonymous connections.
    /// The first call comes before all connections.
    pub(crate) fn buffer_events(&mut self) -> [Vec<BufferEvent>; 2] {
        self.core.buffers().take_events()
    }

    /// Adds the transports of devices that were added.
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

    /// Drops the transports whose device has failed and whose connections have ended, so that the
    /// system can release the device.
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
        let ordered = self.stop_request.get();
        if ordered != self.applied_stop {
            self.applied_stop = ordered;
            if let Some(how) = ordered {
                self.core.throttle.release(self.core.now, |_| true);
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
                    let transport = transport_of(&mut self.transports, tag);
                    transport.operation_ended(&mut self.core, tag, result);
                }
                StorageReport::NotCancelled { tag } => {
                    let transport = transport_of(&mut self.transports, tag);
                    transport.operation_not_cancelled(&mut self.core, tag);
                }
            }
        }
        progress
    }

    /// Continues commands that have waited for their quotas.
    fn resume_throttled(&mut self) -> bool {
        if self.core.throttle.is_empty() {
            return false;
        }
        self.core.follow_limits();
        let mut progress = false;
        for _ in 0..UNTHROTTLED_AT_ONCE {
            let Some((whose, end)) = self.core.throttle.next_due(self.core.now) else { break };
            progress = true;
            let transport = transport_of(&mut self.transports, whose);
            transport.quota_passed(&mut self.core, whose, end);
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
        let throttled = self.core.throttle.deadline();
        transports.chain(storage).chain(throttled).chain(over).min()
    }
}

fn transport_of(
    transports: &mut [Option<Box<dyn Transport>>],
    whose: RequestKey,
) -> &mut Box<dyn Transport> {
    transports[usize::from(whose.transport)].as_mut().expect("it stays until its requests ended")
}

impl Drop for PollGroup {
    /// Waits until the kernel has finished with the connections and buffers, which are dropped
    /// next.
    fn drop(&mut self) {
        self.core.storage().abandon();
    }
}

/// Request of the target to stop, which all its poll groups read.
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
