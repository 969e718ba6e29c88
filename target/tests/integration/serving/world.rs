//! A target, hosts and the simulated network between them, under one virtual clock.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedrail_target::Config;
use feedrail_target::error::{AddError, ListenError};
use feedrail_target::stepped::Assembly;
use feedrail_target::stepped::Inventory;
use feedrail_target::stepped::Stepped;
use feedrail_target::stepped::Turn;
use feedrail_target::stepped::{Decorate, OpenPurpose};
use feedrail_target::stepped::{Engine, Inline};
use feedrail_target::testing::Delay;
use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::nvm::Io;
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{
    Cid, Cntlid, Cqe, HostId, HostNqn, IntoBytes, Nqn, NqnField, NvmCommand, Qid, Sgl, Sqe, Status,
};
use rdma::Time;
use rdma::sim::{Sim, SimConfig, SimDevice, SimNetwork};

use super::host::{Host, Link};

pub(crate) const NQN: &str = "nqn.2026-01.io.feedrail:test";
const TARGET: &str = "10.0.0.1";
const SECOND: &str = "10.0.0.2";

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) network: SimNetwork,
    pub(crate) target: Stepped,
    /// Address that hosts connect to.
    pub(crate) address: SocketAddr,
    /// Devices of the target, one for each address that it listens on.
    pub(crate) devices: Vec<SimDevice>,
    pub(crate) hosts: Vec<Host<Sim>>,
    /// NQNs of the hosts.
    pub(crate) names: Vec<NqnField>,
    /// Host Identifiers, one for each host.
    pub(crate) ids: Vec<HostId>,
    next_cid: u16,
}

/// A queue of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct On {
    pub(crate) host: usize,
    pub(crate) queue: usize,
}

pub(crate) fn config(toml: &str) -> Config {
    let text =
        format!("cores = 2\nprovider = \"soft\"\n{toml}\n[[port]]\naddress = \"{TARGET}:4420\"\n");
    Config::from_toml(Path::new("test.toml"), &text).unwrap()
}

/// A memory namespace of 1 MiB and a null namespace, both writable.
pub(crate) fn two_namespaces() -> Config {
    namespaces("")
}

/// Namespaces of [`two_namespaces`] at a second address and device as well.
pub(crate) fn two_addresses() -> Config {
    let mut config = two_namespaces();
    let mut second = config.ports[0].clone();
    second.address.set_ip(SECOND.parse().unwrap());
    config.ports.push(second);
    config
}

pub(crate) fn namespaces(limits: &str) -> Config {
    config(&format!(
        "[limits]\n{limits}\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nname = \"ram\"\nsize_bytes = \"1MiB\"\nread_only = false\n\
         [[subsystem.namespace]]\nkind = \"null\"\nname = \"null\"\nsize_bytes = \"1TiB\"\nread_only = false\n"
    ))
}

impl World {
    pub(crate) fn new(config: &Config) -> Self {
        Self::with(config, 1, SimConfig::default(), &|_, backend| backend)
    }

    /// Creates a world whose media take five milliseconds for every operation.
    pub(crate) fn slow(config: &Config) -> Self {
        Self::with(config, 1, SimConfig::default(), &|_, backend| {
            Arc::new(Delay::new(backend, Duration::from_millis(5)))
        })
    }

    pub(crate) fn with(
        config: &Config,
        seed: u64,
        network: SimConfig,
        decorate: Decorate<'_>,
    ) -> Self {
        let add = |assembly: &mut Assembly, device| assembly.add::<Sim>(device);
        Self::of_parts(config, seed, network, decorate, add, || Box::new(Inline::new()))
    }

    /// Creates a world with the devices that `add` adds to the target, and with these engines.
    pub(crate) fn of_parts(
        config: &Config,
        seed: u64,
        network: SimConfig,
        decorate: Decorate<'_>,
        add: impl Fn(&mut Assembly, SimDevice) -> Result<Vec<ListenError>, AddError>,
        engine: impl FnMut() -> Box<dyn Engine>,
    ) -> Self {
        let network = SimNetwork::new(seed, network);
        let inventory = Inventory::open_with(config, OpenPurpose::Check, decorate).unwrap();
        let cores = config.cores.count();
        let mut assembly = Assembly::new(Arc::clone(&inventory), cores).unwrap();
        let ips = config.ports.iter().map(|port| port.address.ip());
        let devices: Vec<_> = ips.map(|ip| network.device(ip, cores).unwrap()).collect();
        for device in &devices {
            let refused = add(&mut assembly, device.clone()).unwrap();
            assert!(refused.is_empty(), "{refused:?}");
        }
        let target = Stepped::new(assembly, engine);
        let address = inventory.ports()[0].address();
        let (now, hosts) = (Time::from_nanos(1), Vec::new());
        let (names, ids) = (Vec::new(), Vec::new());
        Self { now, network, target, address, devices, hosts, names, ids, next_cid: 0 }
    }

    pub(crate) fn add_host(&mut self) -> usize {
        let number = self.hosts.len();
        let ip: IpAddr = format!("10.0.1.{}", number + 1).parse().unwrap();
        self.hosts.push(Host::new(&self.network.device(ip, 1).unwrap()));
        let name: Nqn = format!("nqn.2026-01.io.feedrail:host{number}").parse().unwrap();
        self.names.push(name.into());
        let mut id = [7; 16];
        id[0] = number as u8;
        self.ids.push(HostId(id));
        self.hosts.len() - 1
    }

    /// Takes one step: every party does what is due, or the time advances to the next event.
    pub(crate) fn step(&mut self) {
        self.step_within(Time::from_nanos(u64::MAX));
    }

    fn step_within(&mut self, until: Time) {
        let mut busy = false;
        for host in &mut self.hosts {
            busy |= host.turn(self.now);
        }
        let target = self.target.turn(self.now);
        if busy || target == Turn::Busy {
            return;
        }
        let Turn::SleepUntil(target) = target else { unreachable!() };
        let next = self.hosts.iter().filter_map(|host| host.deadline());
        let next = next.chain(target).chain(self.network.next_event()).min();
        // Without packets in flight, a waiting test waits in large steps.
        let next = next.unwrap_or(self.now + Duration::from_millis(1));
        self.now = next.max(self.now + Duration::from_nanos(100)).min(until);
    }

    pub(crate) fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..2_000_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("it never happened: {what}");
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.step_within(until);
        }
    }

    /// Starts an RDMA connection, and waits until it is accepted or rejected.
    pub(crate) fn link(&mut self, host: usize, qid: u16, entries: u16) -> (On, Link) {
        let (now, to) = (self.now, self.address);
        let queue = self.hosts[host].connect(now, to, qid, entries);
        let on = On { host, queue };
        (on, self.link_state(on))
    }

    pub(crate) fn link_with(&mut self, host: usize, private: &[u8]) -> Link {
        let (now, to) = (self.now, self.address);
        let queue = self.hosts[host].connect_with(now, to, 0, 32, private);
        self.link_state(On { host, queue })
    }

    pub(crate) fn link_state(&mut self, on: On) -> Link {
        self.run_until("the connection is up or refused", |world| world.state(on) != Link::Pending);
        self.state(on)
    }

    pub(crate) fn state(&self, on: On) -> Link {
        self.hosts[on.host].state(on.queue)
    }

    pub(crate) fn wait_down(&mut self, on: On) {
        self.run_until("the connection ends", |world| world.state(on) == Link::Down);
    }

    /// A connected, enabled admin queue.
    pub(crate) fn admin(&mut self, host: usize) -> On {
        let (on, link) = self.link(host, 0, 32);
        assert_eq!(link, Link::Up(32));
        let cqe = self.nvme_connect(on, Cntlid::DYNAMIC, 32);
        assert!(cqe.status().is_success(), "{cqe:?}");
        self.hosts[host].queues[on.queue].cntlid = Cntlid(cqe.dw0.get() as u16);
        self.enable(on);
        on
    }

    pub(crate) fn enable(&mut self, on: On) {
        let value = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4).into_bits().into();
        let set = PropertySet { property: Property::CC, size: PropertySize::FourBytes, value };
        self.ok(on, &set.to_sqe(), &[]);
    }

    /// A connected I/O queue of the same association.
    pub(crate) fn io(&mut self, admin: On, qid: u16, entries: u16) -> On {
        let cntlid = self.hosts[admin.host].queues[admin.queue].cntlid;
        let (on, link) = self.link(admin.host, qid, entries);
        assert_eq!(link, Link::Up(entries));
        let cqe = self.nvme_connect(on, cntlid, entries);
        assert!(cqe.status().is_success(), "{cqe:?}");
        on
    }

    /// Admin queue of an enabled discovery controller, of a host with an invented name.
    pub(crate) fn discover(&mut self, host: usize, number: u8) -> On {
        let (on, _) = self.link(host, 0, 32);
        let name: Nqn = format!("nqn.2026-01.io.stranger:{number}").parse().unwrap();
        let id = HostId([number + 1; 16]);
        let data = ConnectData::new(id, Cntlid::DYNAMIC, Nqn::DISCOVERY, HostNqn(name));
        self.hosts[host].put(0, data.as_bytes());
        let connect = Connect {
            qid: Qid::ADMIN,
            queue_entries: 32,
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: 0,
        };
        let sgl = self.keyed(on, 0, 1024);
        self.ok(on, &connect.to_sqe().with_data(sgl), &[]);
        self.enable(on);
        on
    }

    pub(crate) fn nvme_connect(&mut self, on: On, cntlid: Cntlid, entries: u16) -> Cqe {
        let id = self.ids[on.host];
        let unnamed = HostNqn::from_host_id(id);
        let mut data = ConnectData::new(id, cntlid, NQN.parse().unwrap(), unnamed);
        data.hostnqn = self.names[on.host];
        let host = &mut self.hosts[on.host];
        host.put(0, data.as_bytes());
        let qid = host.queues[on.queue].qid;
        let connect = Connect {
            qid,
            queue_entries: entries.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: if qid == Qid::ADMIN { 15_000 } else { 0 },
        };
        let sqe = connect.to_sqe().with_data(host.keyed(0, 1024));
        self.command(on, &sqe, &[])
    }

    pub(crate) fn cid(&mut self) -> Cid {
        self.next_cid = self.next_cid.wrapping_add(1);
        Cid(self.next_cid)
    }

    /// Sends a command and waits for its response.
    pub(crate) fn command(&mut self, on: On, sqe: &Sqe, in_capsule: &[u8]) -> Cqe {
        let cid = self.post(on, sqe, in_capsule);
        self.response(on, cid)
    }

    pub(crate) fn ok(&mut self, on: On, sqe: &Sqe, in_capsule: &[u8]) -> Cqe {
        let cqe = self.command(on, sqe, in_capsule);
        assert!(cqe.status().is_success(), "{cqe:?}");
        cqe
    }

    pub(crate) fn post(&mut self, on: On, sqe: &Sqe, in_capsule: &[u8]) -> Cid {
        let cid = self.cid();
        self.hosts[on.host].send(on.queue, &sqe.with_cid(cid), in_capsule);
        cid
    }

    pub(crate) fn response(&mut self, on: On, cid: Cid) -> Cqe {
        self.run_until("a response", |world| {
            world.take_response(on, cid).is_some_and(|cqe| {
                world.hosts[on.host].responses(on.queue).push_front(cqe);
                true
            })
        });
        self.take_response(on, cid).unwrap()
    }

    pub(crate) fn take_response(&mut self, on: On, cid: Cid) -> Option<Cqe> {
        let responses = self.hosts[on.host].responses(on.queue);
        let at = responses.iter().position(|cqe| cqe.cid() == cid)?;
        responses.remove(at)
    }

    pub(crate) fn status(&mut self, on: On, sqe: &Sqe, in_capsule: &[u8]) -> Status {
        self.command(on, sqe, in_capsule).status().without_flags()
    }

    pub(crate) fn keyed(&self, on: On, offset: usize, length: usize) -> Sgl {
        self.hosts[on.host].keyed(offset, length)
    }

    /// Writes through RDMA READ.
    pub(crate) fn write(&mut self, on: On, nsid: u32, slba: u64, bytes: &[u8]) {
        self.hosts[on.host].put(0, bytes);
        let sqe = write(nsid, slba, bytes.len()).with_data(self.keyed(on, 0, bytes.len()));
        self.ok(on, &sqe, &[]);
    }

    pub(crate) fn read(&mut self, on: On, nsid: u32, slba: u64, length: usize) -> Vec<u8> {
        self.hosts[on.host].fill(0, length, 0xEE);
        let sqe = read(nsid, slba, length).with_data(self.keyed(on, 0, length));
        self.ok(on, &sqe, &[]);
        self.hosts[on.host].get(0, length)
    }
}

pub(crate) fn io(nsid: u32, slba: u64, length: usize) -> Io {
    Io::new(nvme_proto::Nsid(nsid), slba, (length / 512) as u32)
}

pub(crate) fn read(nsid: u32, slba: u64, length: usize) -> Sqe {
    NvmCommand::Read(io(nsid, slba, length)).to_sqe()
}

pub(crate) fn write(nsid: u32, slba: u64, length: usize) -> Sqe {
    NvmCommand::Write(io(nsid, slba, length)).to_sqe()
}
