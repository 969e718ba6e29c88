//! The providers under test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdma::shm::{Shm, ShmDevice, ShmOptions};
use rdma::sim::{Sim, SimConfig, SimDevice, SimNetwork};
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsOptions};
use rdma::{Provider, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::differences::{self, Differences};
use super::world::{Bench, Host};

/// The vendor that rxe says it is from.
const RXE: u32 = 0xff_ffff;

/// Real sockets on loopback addresses, and the real clock.
pub struct SoftBench {
    start: Instant,
    pub receive_buffer_bytes: Option<usize>,
    pub port: PortChoice,
}

impl SoftBench {
    #[expect(clippy::disallowed_methods, reason = "this is the driver")]
    pub fn new() -> Self {
        Self { start: Instant::now(), receive_buffer_bytes: None, port: PortChoice::Roce }
    }

    /// A bench of the same clock and options, for another thread.
    pub fn again(&self) -> Self {
        Self { start: self.start, receive_buffer_bytes: self.receive_buffer_bytes, port: self.port }
    }

    pub fn options(&self, groups: usize) -> SoftOptions {
        let mut options = SoftOptions::new(address(), self.port);
        options.groups = groups;
        options.receive_buffer_bytes = self.receive_buffer_bytes;
        options
    }
}

/// A loopback address of its own: of this process by its id, of this call by a counter.
pub fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = (std::process::id() ^ std::process::id() >> 15).to_be_bytes();
    Ipv4Addr::from([127, high | 1, low ^ (next >> 8) as u8, next as u8]).into()
}

impl Bench for SoftBench {
    type Provider = Soft;

    fn device(&mut self, groups: usize) -> SoftDevice {
        SoftDevice::open(&self.options(groups)).expect("open a soft device")
    }

    fn now(&self) -> Time {
        #[expect(clippy::disallowed_methods, reason = "this is the driver")]
        let elapsed = Instant::now() - self.start;
        Time::ZERO + elapsed
    }

    fn wait(&mut self, hosts: &[&Host<Soft>], deadline: Option<Time>) {
        let now = self.now();
        wait_for_any(hosts, deadline.map(|deadline| deadline - now));
    }

    fn nobody(&mut self) -> IpAddr {
        address()
    }
}

/// Shared memory, and the real clock.
pub struct ShmBench {
    start: Instant,
}

impl ShmBench {
    #[expect(clippy::disallowed_methods, reason = "this is the driver")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Bench for ShmBench {
    type Provider = Shm;

    fn device(&mut self, groups: usize) -> ShmDevice {
        ShmDevice::open(&ShmOptions { groups, ..ShmOptions::new(address()) })
            .expect("open a device for shared memory")
    }

    fn now(&self) -> Time {
        #[expect(clippy::disallowed_methods, reason = "this is the driver")]
        let elapsed = Instant::now() - self.start;
        Time::ZERO + elapsed
    }

    fn wait(&mut self, hosts: &[&Host<Shm>], deadline: Option<Time>) {
        let now = self.now();
        wait_for_any(hosts, deadline.map(|deadline| deadline - now));
    }

    fn nobody(&mut self) -> IpAddr {
        address()
    }

    fn differences(&self) -> &'static Differences {
        &differences::SHARED_MEMORY
    }
}

/// Sleeps until a host has something to do.
pub fn wait_for_any<P: Provider>(hosts: &[&Host<P>], timeout: Option<Duration>) {
    let fds = hosts.iter().flat_map(|host| host.fds());
    let mut polled: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A wake-up that is lost is a failure, not a delay.
    let timeout = timeout.unwrap_or(Duration::from_secs(20));
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    poll(&mut polled, Some(&timeout)).expect("poll");
}

/// A simulated network with a clock that jumps.
pub struct SimBench {
    pub network: SimNetwork,
    now: Time,
    next: u8,
}

impl SimBench {
    pub fn new(seed: u64, config: SimConfig) -> Self {
        Self { network: SimNetwork::new(seed, config), now: Time::ZERO, next: 1 }
    }

    pub fn quiet() -> Self {
        Self::new(1, SimConfig::default())
    }

    /// Moves the clock of the network.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    fn ip(&mut self) -> IpAddr {
        self.next += 1;
        Ipv4Addr::from([10, 0, 0, self.next]).into()
    }
}

impl Bench for SimBench {
    type Provider = Sim;

    fn device(&mut self, groups: usize) -> SimDevice {
        let ip = self.ip();
        self.network.device(ip, groups).expect("a simulated device")
    }

    fn now(&self) -> Time {
        self.now
    }

    fn wait(&mut self, _hosts: &[&Host<Sim>], deadline: Option<Time>) {
        let next = [deadline, self.network.next_event()].into_iter().flatten().min();
        let next = next.expect("nothing will ever happen again");
        self.now = self.now.max(next);
    }

    fn nobody(&mut self) -> IpAddr {
        self.ip()
    }
}

/// An RDMA device that is really there, named by the address in `FEEDRAIL_VERBS_ADDRESS`, and the
/// real clock.
pub struct VerbsBench {
    start: Instant,
    address: IpAddr,
}

impl VerbsBench {
    /// `None` where no device was named.
    #[expect(clippy::disallowed_methods, reason = "this is the driver")]
    pub fn new() -> Option<Self> {
        let address = std::env::var("FEEDRAIL_VERBS_ADDRESS").ok()?;
        let address = address.parse().expect("FEEDRAIL_VERBS_ADDRESS is an IP address");
        Some(Self { start: Instant::now(), address })
    }
}

impl Bench for VerbsBench {
    type Provider = Verbs;

    fn device(&mut self, _groups: usize) -> VerbsDevice {
        let options = VerbsOptions { ignore_quirks: true, ..VerbsOptions::default() };
        VerbsDevice::open(self.address, options).expect("open an RDMA device")
    }

    fn now(&self) -> Time {
        #[expect(clippy::disallowed_methods, reason = "this is the driver")]
        let elapsed = Instant::now() - self.start;
        Time::ZERO + elapsed
    }

    fn wait(&mut self, hosts: &[&Host<Verbs>], deadline: Option<Time>) {
        let now = self.now();
        wait_for_any(hosts, deadline.map(|deadline| deadline - now));
    }

    fn nobody(&mut self) -> IpAddr {
        // The same network, and an address without a host.
        match self.address {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4) ^ 0x80)),
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) ^ 0x80).into()),
        }
    }

    fn differences(&self) -> &'static Differences {
        let serving = rdma::verbs::device_for(self.address).expect("an RDMA device");
        if serving.device.vendor_id == RXE {
            &differences::VERBS_ON_RXE
        } else {
            &differences::VERBS
        }
    }
}
