//! A host and a target on a simulated network, and the clock of both.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feedrail_initiator::{
    Controller, ControllerOptions, EngineTurn, Error, Grant, Host, HostId, HostNqn, MonotonicTime,
    Namespace, Nsid, RangeOutcome, ReadRange, RegionSlice, SubsystemAddress, WriteRange,
};
use rdma::Time;
use rdma::sim::{Sim, SimConfig, SimNetwork};

use super::fake::{Fake, ip};

pub(crate) struct World {
    pub(crate) network: SimNetwork,
    pub(crate) host: Host,
    pub(crate) fake: Fake,
    /// Targets beside it, with other addresses.
    pub(crate) others: Vec<Fake>,
    pub(crate) now: Time,
}

impl World {
    /// A namespace of `blocks` blocks, and a quick network.
    pub(crate) fn new(blocks: usize) -> Self {
        Self::with(1, SimConfig::default(), blocks, ControllerOptions::default())
    }

    pub(crate) fn with(
        seed: u64,
        config: SimConfig,
        blocks: usize,
        options: ControllerOptions,
    ) -> Self {
        let network = SimNetwork::new(seed, config);
        let id = HostId([9; 16]);
        let host = Host::builder()
            .host_id(id)
            .host_nqn(HostNqn::from_host_id(id))
            .controller_options(options)
            .build_on::<Sim>(network.device(ip(1), 1).unwrap())
            .unwrap();
        let fake = Fake::new(&network, address(), blocks);
        Self { network, host, fake, others: Vec::new(), now: Time::from_nanos(1) }
    }

    pub(crate) fn target() -> SubsystemAddress {
        SubsystemAddress {
            address: address(),
            nqn: "nqn.2024-01.org.example:fake".parse().unwrap(),
        }
    }

    /// Runs everything that happens before the next time something is due; `false` when nothing is.
    pub(crate) fn step(&mut self) -> bool {
        let turn = self.host.turn(MonotonicTime::from_nanos(self.now.as_nanos()));
        let mut worked = self.fake.turn(self.now);
        for other in &mut self.others {
            worked |= other.turn(self.now);
        }
        if worked || turn == EngineTurn::Busy {
            return true;
        }
        let own = match turn {
            EngineTurn::SleepUntil(time) => time.map(|time| Time::from_nanos(time.as_nanos())),
            EngineTurn::Busy => None,
        };
        let next = [own, self.fake.deadline(), self.network.next_event()];
        let others = self.others.iter().map(Fake::deadline);
        let Some(next) = next.into_iter().chain(others).flatten().min() else { return false };
        self.now = self.now.max(next);
        true
    }

    /// Runs the world until a future is ready.
    pub(crate) fn run<F: Future>(&mut self, future: F) -> F::Output {
        let future = pin!(future);
        self.run_within(future, Duration::from_secs(3600)).expect("no result within an hour")
    }

    /// Runs the world until a future is ready or a time has passed.
    pub(crate) fn run_within<F: Future>(
        &mut self,
        mut future: Pin<&mut F>,
        limit: Duration,
    ) -> Option<F::Output> {
        let end = self.now + limit;
        let mut context = Context::from_waker(Waker::noop());
        let mut more = true;
        while self.now < end {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            assert!(more, "nothing more can happen, and no result");
            more = self.step();
        }
        None
    }

    /// Passes simulated time while the network and the target run.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step() {}
        self.now = self.now.max(end);
    }

    pub(crate) fn connect(&mut self) -> Result<Controller, Error> {
        let connecting = self.host.connect(Self::target());
        self.run(connecting)
    }

    pub(crate) fn open(&mut self) -> (Controller, Namespace) {
        let controller = self.connect().unwrap();
        let opening = controller.namespace(Nsid(1));
        let namespace = self.run(opening).unwrap();
        (controller, namespace)
    }

    /// Reads one range into fresh memory.
    pub(crate) fn read(
        &mut self,
        namespace: &Namespace,
        offset: u64,
        length: usize,
        grant: Grant,
    ) -> RangeOutcome {
        let reading = namespace.read(offset, RegionSlice::allocate(length, grant).unwrap());
        self.run(reading)
    }

    pub(crate) fn write(
        &mut self,
        namespace: &Namespace,
        offset: u64,
        bytes: &[u8],
    ) -> RangeOutcome {
        let slice = RegionSlice::from_vec(bytes.to_vec(), Grant::Persistent);
        let writing = namespace.write(offset, slice);
        self.run(writing)
    }
}

pub(crate) fn read_range(namespace: &Namespace, offset: u64, into: RegionSlice) -> ReadRange {
    ReadRange { namespace: namespace.clone(), offset, into }
}

pub(crate) fn write_range(namespace: &Namespace, offset: u64, from: RegionSlice) -> WriteRange {
    WriteRange { namespace: namespace.clone(), offset, from }
}

fn address() -> SocketAddr {
    SocketAddr::new(ip(2), 4420)
}
