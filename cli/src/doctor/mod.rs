//! `feedrail doctor`: finds what keeps RoCE from working well, and names commands that mend it.

mod counters;
mod device;
mod device_checks;
mod finding;
mod memlock;
mod neighbours;
mod priority;
mod priority_checks;
mod probe;
mod report;
mod roce_port;
mod sockets;
#[cfg(test)]
mod tests;
mod tree;

use core::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nvme_proto::{Nqn, Nsid};
use rdma::LocalAddress;

use self::counters::CounterSample;
use self::device::{RdmaDevice, RdmaProtocol};
use self::finding::{Advice, DoctorFinding, FindingId};
use self::neighbours::NeighbourSample;
use self::priority::PriorityTable;
use self::probe::PathProbe;
use self::report::DoctorReport;
use self::tree::SystemTree;
use crate::clock::{now, sleep};
use crate::options::{Format, Local, Output, ProviderArg, TransportArg, nsid};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail doctor
      This machine: its RDMA devices, or what soft needs without one.
  feedrail doctor --tos 104 --interval 10
      Whether packets with DSCP 26 are lossless, and what counters say over 10 s.
  feedrail doctor -a 192.0.2.10
      The path to a target too: MTU, round trip, loss, order, DSCP and ECN, UDP port 4791.
  feedrail doctor -a 192.0.2.10 -n nqn.2026-01.org.example:shards -o json
      Bandwidth both ways as well, for a program to read. Nothing is written to the target.

Exit codes:
  0  nothing wrong
  1  it could not look
  2  wrong usage
  3  the worst finding is a warning
  4  the worst finding is an error";

/// Checks this machine for problems of RoCE, and prints how to fix them
///
/// Examines RDMA devices (ports, GIDs, MTU, DSCP, PFC, ECN, counters, limits, known faults) and
/// what the soft provider needs (socket buffers, offloads, UDP port 4791, neighbours). It changes
/// nothing: each finding has the command that fixes it, or one that shows details. NIC counters and
/// priorities are read with ethtool and dcb if they are installed; some checks need root.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Transport type of the target's address
    #[arg(short = 't', long, value_enum, default_value_t = TransportArg::Rdma)]
    transport: TransportArg,
    /// Address of a target, to check the path to it
    #[arg(short = 'a', long, value_name = "IP")]
    traddr: Option<IpAddr>,
    /// Transport service ID (TRSVCID) of the target: its RDMA/CM port
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420, requires = "traddr")]
    trsvcid: u16,
    /// NQN of a subsystem of the target, to measure the path with Read and Compare commands
    #[arg(short = 'n', long, value_name = "NQN", requires = "traddr")]
    nqn: Option<Nqn>,
    /// Namespace of the subsystem to read from
    #[arg(long, value_name = "NSID", default_value = "1", value_parser = nsid, requires = "nqn")]
    namespace_id: Nsid,
    #[command(flatten)]
    local: Local,
    /// Interval in seconds between two samples of the counters
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    interval: u32,
    #[command(flatten)]
    output: Output,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let tree = SystemTree::live();
        let addresses = tree.addresses()?;
        let machine = LocalMachine::read(&tree, addresses);
        let before = MachineSample::take(&tree, &machine);
        let began = now();
        let mut findings = machine.examine(&tree, self.wanted());
        if let Some(ip) = self.traddr {
            let probe = PathProbe {
                local: &self.local,
                address: SocketAddr::new(ip, self.trsvcid),
                nqn: self.nqn,
                nsid: self.namespace_id,
            };
            findings.extend(probe.run(&tree)?);
        }
        sleep(Duration::from_secs(self.interval.into()).saturating_sub(began.elapsed()));
        let after = MachineSample::take(&tree, &machine);
        findings.extend(after.since(&before, began.elapsed()));
        let report = DoctorReport::new(findings);
        output::print(&match self.output.output_format {
            Format::Json => output::json(&report.to_json()),
            Format::Normal => report.to_text(),
        })?;
        Ok(report.exit_code())
    }

    fn wanted(&self) -> Wanted {
        let Local { host_traddr, tos, provider, .. } = self.local;
        Wanted { source: host_traddr, tos, provider }
    }
}

/// Properties of the connections for which the machine is examined.
#[derive(Clone, Copy)]
struct Wanted {
    /// Local address; `None` for all addresses.
    source: Option<IpAddr>,
    tos: Option<u8>,
    provider: ProviderArg,
}

/// Addresses and RDMA devices of this machine.
struct LocalMachine {
    addresses: Vec<LocalAddress>,
    devices: Option<Vec<RdmaDevice>>,
}

impl LocalMachine {
    fn read(tree: &SystemTree, addresses: Vec<LocalAddress>) -> Self {
        Self { devices: device::read(tree, &addresses), addresses }
    }

    fn devices(&self) -> &[RdmaDevice] {
        self.devices.as_deref().unwrap_or_default()
    }

    /// Whether a device serves the wanted local address, or any address if none is given.
    fn has_device_for(&self, wanted: Wanted) -> bool {
        let mut devices = self.devices().iter();
        match wanted.source {
            Some(ip) => devices.any(|device| device.serves(ip)),
            None => devices.any(|device| device.protocol == RdmaProtocol::Roce),
        }
    }

    fn examine(&self, tree: &SystemTree, wanted: Wanted) -> Vec<DoctorFinding> {
        let mut findings = Vec::new();
        if self.devices().is_empty() {
            findings.push(no_device(self.devices.is_some()));
        } else {
            findings.extend(tree.verbs_obstacle().map(no_libraries));
        }
        for device in self.devices() {
            findings.extend(device_checks::examine(device));
            if device.protocol == RdmaProtocol::Roce && !device.sysfs.software {
                findings.extend(priorities(tree, device, wanted.tos));
            }
        }
        let uses_device = self.has_device_for(wanted) && wanted.provider != ProviderArg::Soft;
        if uses_device {
            findings.extend(memlock::examine(tree));
        } else {
            findings.extend(sockets::examine(tree, &self.of_source(wanted.source)));
        }
        findings.extend(roce_port::examine(tree, self.devices(), !uses_device));
        findings
    }

    fn of_source(&self, source: Option<IpAddr>) -> Vec<LocalAddress> {
        let is_wanted = |address: &&LocalAddress| source.is_none_or(|ip| ip == address.ip);
        self.addresses.iter().filter(is_wanted).cloned().collect()
    }
}

fn priorities(tree: &SystemTree, device: &RdmaDevice, tos: Option<u8>) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for port in device.ports.iter().filter(|port| port.sysfs.is_active()) {
        if let Some(interface) = port.interface.as_ref().filter(|_| port.sysfs.is_ethernet()) {
            let table = PriorityTable::read(tree, &device.driver, device.name(), &interface.name);
            findings.extend(priority_checks::examine(device, port, &table, tos));
        }
    }
    findings
}

fn no_device(is_class_there: bool) -> DoctorFinding {
    let missing = if is_class_there { "is empty" } else { "does not exist" };
    let what = format!(
        "none found ({} {missing}): connections use soft, RoCE v2 in userspace",
        rdma::sysfs::CLASS
    );
    DoctorFinding::info(FindingId::NoDevice, "RDMA device", what)
}

fn no_libraries(obstacle: String) -> DoctorFinding {
    DoctorFinding {
        id: FindingId::NoLibraries,
        subject: "rdma-core".to_owned(),
        what: obstacle,
        why: "The kernel has RDMA devices, but they cannot be used without these libraries. Connections then use soft, which receives nothing where a device owns UDP port 4791."
            .to_owned(),
        advice: Advice::mend("apt-get install libibverbs1 librdmacm1 ibverbs-providers"),
    }
}

/// Values of all counters of the machine at one time.
struct MachineSample {
    counters: CounterSample,
    neighbours: NeighbourSample,
}

impl MachineSample {
    fn take(tree: &SystemTree, machine: &LocalMachine) -> Self {
        Self {
            counters: CounterSample::take(tree, machine.devices()),
            neighbours: NeighbourSample::take(tree),
        }
    }

    fn since(&self, before: &Self, interval: Duration) -> Vec<DoctorFinding> {
        let mut findings = self.counters.since(&before.counters, interval);
        findings.extend(self.neighbours.since(&before.neighbours, interval));
        findings
    }
}
