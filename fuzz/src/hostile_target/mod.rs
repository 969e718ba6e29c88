//! An initiator as a hostile target sees it.

mod behaviour;
mod jobs;
mod pages;
mod target;

use std::cell::Cell;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use feedrail_initiator::{
    Controller, ControllerOptions, EngineTurn as HostTurn, Grant, Host, HostId, HostNqn,
    MonotonicTime, Namespace, Nsid, SubsystemAddress as Name,
};
use feedrail_target::stepped::Turn;
use rdma::sim::{Sim, SimConfig, SimDevice, SimNetwork};
use rdma::{Device, Time};

use self::behaviour::Behaviour;
use self::jobs::{BatchPlan, FinishedJob, InitiatorJob, JobOutcome, RangeBatch};
use self::target::{DISK_BYTES, FuzzedTarget, LBA_BYTES, WRITABLE_BYTES};
use crate::clockwork::Clockwork;
use crate::input::Input;

const HOST: [u8; 4] = [10, 0, 0, 1];
const TARGET: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 4420;
const NQN: &str = "nqn.2026-01.org.example:hostile";
const OPERATIONS_MAX: usize = 40;
/// Jobs at a time.
const JOBS_MAX: usize = 6;
const RANGES_MAX: usize = 6;
const RANGE_BYTES_MAX: usize = 5000;

/// Runs a sequence of operations of sixteen bytes each: calls of the initiator, and actions of the
/// target.
///
/// Must hold: each range gets one result, and all memory comes back; memory that is open to each
/// command alone is touched by no other, and not after the result; while the target's responses are
/// true, bytes read are those of the disk; when no connection is in use, all comes to rest, and
/// nothing is kept.
///
/// Host and target live on from one execution to the next: each ends only when everything is as it
/// was.
pub fn run(data: &[u8]) {
    thread_local! {
        static WORLD: Cell<Option<Box<TargetWorld>>> = const { Cell::new(None) };
    }
    // One whose execution fails is not used again.
    let mut world = WORLD.take().unwrap_or_else(|| Box::new(TargetWorld::new()));
    world.play(data);
    world.end();
    WORLD.set(Some(world));
}

struct TargetWorld {
    // First: jobs are part of the host.
    jobs: Vec<InitiatorJob>,
    controller: Option<Controller>,
    namespace: Option<Namespace>,
    finished: Vec<FinishedJob>,
    now: Time,
    network: SimNetwork,
    host: Host,
    device: SimDevice,
    target: FuzzedTarget,
    /// Regions on the devices of host and target while nothing is connected.
    regions: [u64; 2],
}

impl TargetWorld {
    fn new() -> Self {
        let network = SimNetwork::new(1, SimConfig::default());
        let open = |address: [u8; 4]| network.device(address.into(), 1).expect("it is free");
        let device = open(HOST);
        let id = HostId([9; 16]);
        let host = Host::builder()
            .host_id(id)
            .host_nqn(HostNqn::from_host_id(id))
            .controller_options(options())
            .build_on::<Sim>(device.clone())
            .expect("there are descriptors");
        let target = FuzzedTarget::new(open(TARGET), address());
        let regions = [&device, target.device()].map(|device| device.stats().regions);
        Self {
            jobs: Vec::new(),
            controller: None,
            namespace: None,
            finished: Vec::new(),
            now: Time::from_nanos(1),
            network,
            host,
            device,
            target,
            regions,
        }
    }

    fn play(&mut self, data: &[u8]) {
        let mut input = Input::new(data);
        for _ in 0..OPERATIONS_MAX {
            if input.is_empty() {
                break;
            }
            self.operate(&mut Input::new(input.slice(16)));
            self.turn();
        }
    }

    /// Does the operation that sixteen bytes encode.
    fn operate(&mut self, input: &mut Input<'_>) {
        match input.choice(16) {
            0 => self.connect(),
            1 => self.open(),
            2 => self.settle(),
            3 => self.pass(Duration::from_nanos(1 << (input.u8() % 34))),
            4 | 5 => self.transfer(input),
            6 => self.ask(input),
            7 => self.controller = None,
            8 => self.namespace = None,
            9 => self.target.disconnect(self.now, input.u8().into()),
            10 => self.target.answer_again(input.u8().into(), input.u16()),
            11 => {
                let [which, write] = input.array();
                self.target.touch(which.into(), write & 1 == 1, input.u32() as i32, input.u16());
            }
            12 => {
                self.target.truthful = false;
                let [page, with] = input.array();
                self.target.pages.change_byte(page, input.u16(), with);
            }
            13 if input.u8() & 1 == 0 => self.network.cut(HOST.into(), TARGET.into()),
            13 => self.network.heal(HOST.into(), TARGET.into()),
            14 => match input.u8() {
                0 => self.target.refuses = true,
                entries => self.target.claimed_entries = Some((entries - 1).into()),
            },
            _ => {
                let count = 1 + input.choice(4);
                let behaviour = Behaviour::decode(input);
                self.target.plan.extend((1..count).map(|_| Behaviour::default()));
                self.target.plan.push_back(behaviour);
            }
        }
    }

    fn begin(&mut self, job: InitiatorJob) {
        if self.jobs.len() < JOBS_MAX {
            self.jobs.push(job);
        }
    }

    fn connect(&mut self) {
        let nqn = NQN.parse().expect("it is one");
        let connecting = self.host.connect(Name { address: address(), nqn });
        self.begin(InitiatorJob::Connect(connecting));
    }

    fn open(&mut self) {
        if let Some(controller) = &self.controller {
            let opening = controller.namespace(Nsid(1));
            self.begin(InitiatorJob::Open(opening));
        }
    }

    /// Reads or writes some ranges.
    fn transfer(&mut self, input: &mut Input<'_>) {
        let Some(namespace) = &self.namespace else { return };
        let [flags, count] = input.array();
        let length = 1 + usize::from(input.u16()) % RANGE_BYTES_MAX;
        let length = if flags & 4 == 0 { length.next_multiple_of(LBA_BYTES) } else { length };
        let writes = flags & 1 == 1;
        let count = 1 + usize::from(count) % RANGES_MAX;
        let stride = u64::from(input.u16()) % 4096;
        // Within the disk, and only then within the half that is written.
        let room = if writes { WRITABLE_BYTES } else { DISK_BYTES } - length;
        let room = (room as u64).saturating_sub((count as u64 - 1) * stride);
        let offset = u64::from(input.u16()) % (room + 1);
        let offset = if flags & 8 == 0 { offset / 512 * 512 } else { offset };
        let grant = if flags & 2 == 0 { Grant::PerCommand } else { Grant::Persistent };
        let plan = BatchPlan { writes, grant, count, length, offset, stride };
        let batch = RangeBatch::start(&self.host, namespace, plan);
        self.begin(InitiatorJob::Batch(batch));
    }

    /// Asks for something else.
    fn ask(&mut self, input: &mut Input<'_>) {
        let what = input.choice(8);
        if what == 0 {
            let discovering = self.host.discover(address());
            return self.begin(InitiatorJob::Other(Box::pin(async { drop(discovering.await) })));
        }
        if let Some(controller) = &self.controller {
            match what {
                1 => {
                    let listing = controller.active_namespaces();
                    return self
                        .begin(InitiatorJob::Other(Box::pin(async { drop(listing.await) })));
                }
                2 => {
                    let identifying = controller.identify();
                    return self
                        .begin(InitiatorJob::Other(Box::pin(async { drop(identifying.await) })));
                }
                _ => {}
            }
        }
        let Some(namespace) = &self.namespace else { return };
        let (offset, length) = (u64::from(input.u8()) % 32 * 512, 512 + usize::from(input.u8()));
        let asked = match what {
            3 => namespace.flush(),
            4 => namespace.write_zeroes(offset, 512),
            5 => namespace.deallocate(&[(offset, 512), (offset, 1024)]),
            6 => namespace.compare(offset, &[1; 512]),
            _ if length & 1 == 1 => {
                let reading = jobs::read_rows(&self.host, namespace, offset, length as u32);
                return self.begin(InitiatorJob::Other(Box::pin(reading)));
            }
            _ => {
                let reading = namespace.read_to_vec(offset, length);
                return self.begin(InitiatorJob::Other(Box::pin(async { drop(reading.await) })));
            }
        };
        self.begin(InitiatorJob::Other(Box::pin(async { drop(asked.await) })));
    }

    /// Every job ends with its result, and nothing is left.
    fn end(&mut self) {
        self.finish_jobs();
        self.controller = None;
        self.namespace = None;
        self.rest();
        self.finished.drain(..).for_each(|finished| finished.check());
        let host = self.device.stats();
        assert_eq!((host.queue_pairs, host.regions), (0, self.regions[0]));
        // While the network was cut it may have missed a disconnection, and it has no timer for
        // that.
        self.target.disconnect_all(self.now);
        self.rest();
        let target = self.target.device().stats();
        assert_eq!((target.queue_pairs, target.regions), (0, self.regions[1]));
        self.target.restore();
    }

    /// All that was asked for has a result.
    fn finish_jobs(&mut self) {
        self.network.heal(HOST.into(), TARGET.into());
        for _ in 0..Self::STEPS_MAX {
            if self.jobs.is_empty() {
                return;
            }
            // The effect of the last timer is seen by asking for it.
            let goes_on = self.step() || self.poll_jobs();
            assert!(goes_on, "nothing more can happen, and something has no result");
        }
        panic!("something has no result");
    }

    /// Polls all jobs; true if any has ended.
    fn poll_jobs(&mut self) -> bool {
        let before = self.jobs.len();
        let mut outcomes = Vec::new();
        self.jobs.retain_mut(|job| match job.poll() {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                outcomes.push(outcome);
                false
            }
        });
        for outcome in outcomes {
            match outcome {
                JobOutcome::Connected(result) => {
                    self.controller = result.ok().or(self.controller.take())
                }
                JobOutcome::Opened(result) => {
                    self.namespace = result.ok().or(self.namespace.take())
                }
                JobOutcome::Transferred(finished) => {
                    finished.check();
                    if self.target.truthful {
                        finished.check_bytes();
                    }
                    self.finished.push(*finished);
                }
                JobOutcome::Nothing => {}
            }
        }
        self.jobs.len() < before
    }
}

impl Clockwork for TargetWorld {
    const STEPS_MAX: usize = 200_000;

    fn turn(&mut self) -> Turn {
        let outcomes = self.poll_jobs();
        let host = self.host.turn(MonotonicTime::from_nanos(self.now.as_nanos()));
        let target = self.target.turn(self.now);
        let host = match host {
            HostTurn::SleepUntil(time) if !target && !outcomes => {
                time.map(|time| Time::from_nanos(time.as_nanos()))
            }
            _ => return Turn::Busy,
        };
        let next = host.into_iter().chain(self.target.deadline()).chain(self.network.next_event());
        Turn::SleepUntil(next.min())
    }

    fn now(&mut self) -> &mut Time {
        &mut self.now
    }

    fn network(&self) -> &SimNetwork {
        &self.network
    }
}

fn address() -> SocketAddr {
    (TARGET, PORT).into()
}

fn options() -> ControllerOptions {
    ControllerOptions::new()
        .io_queues(2)
        .queue_entries(8)
        .connect_timeout(Duration::from_secs(3))
        .reconnect_delay(Duration::from_millis(300))
        .loss_timeout(Duration::from_secs(3))
        .io_timeout(Duration::from_secs(2))
        .admin_timeout(Duration::from_secs(2))
        .abort_timeout(Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the ranges of a script succeeded.
    fn transferred(script: &[u8]) -> Vec<bool> {
        let mut world = TargetWorld::new();
        world.play(script);
        world.finish_jobs();
        let done = world.finished.iter().flat_map(FinishedJob::done).collect();
        world.end();
        done
    }

    #[test]
    fn a_target_without_faults_serves() {
        let read = include_bytes!("../../corpus/hostile_target/read");
        assert_eq!(transferred(read), [true; 2]);
        let unaligned = include_bytes!("../../corpus/hostile_target/read-unaligned");
        assert_eq!(transferred(unaligned), [true; 4]);
        let write = include_bytes!("../../corpus/hostile_target/write");
        assert_eq!(transferred(write), [true; 5]);
    }

    #[test]
    fn a_fault_is_survived() {
        let lies = include_bytes!("../../corpus/hostile_target/lies");
        assert_eq!(transferred(lies).len(), 4);
    }

    #[test]
    #[should_panic(expected = "other bytes")]
    fn reads_of_wrong_bytes_are_detected() {
        let mut world = TargetWorld::new();
        let script = include_bytes!("../../corpus/hostile_target/read");
        let (beginning, read) = script.split_at(64);
        world.play(beginning);
        world.target.change_disk();
        world.play(read);
    }
}
