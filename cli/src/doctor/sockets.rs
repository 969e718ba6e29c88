//! Checks of the buffers that the kernel grants the sockets of the soft provider.

use rdma::{LocalAddress, sysfs};

use super::finding::{Advice, DoctorFinding, FindingId};
use super::memlock::has_capability;
use super::tree::{SystemTree, fields};
use crate::size::human;

/// Receive and send buffers that each socket of the soft provider requests.
const RECEIVE_BYTES: u64 = 8 << 20;
const SEND_BYTES: u64 = 4 << 20;
/// Number of `CAP_NET_ADMIN`, a capability that lifts the limit of receive buffers.
const CAP_NET_ADMIN: u32 = 12;

/// Returns findings on socket buffers, and on offloads and MTU of the interfaces with these
/// addresses.
pub(crate) fn examine(tree: &SystemTree, addresses: &[LocalAddress]) -> Vec<DoctorFinding> {
    let mut findings: Vec<DoctorFinding> =
        [receive_buffer(tree), send_buffer(tree)].into_iter().flatten().collect();
    for interface in interfaces(addresses) {
        findings.extend(offloads(tree, interface));
        findings.extend(mtu(tree, interface));
    }
    findings
}

/// Names of the interfaces, without the loopback interface.
fn interfaces(addresses: &[LocalAddress]) -> Vec<&str> {
    let outside = addresses.iter().filter(|address| !address.ip.is_loopback());
    let mut names: Vec<&str> = outside.map(|address| address.interface.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn receive_buffer(tree: &SystemTree) -> Option<DoctorFinding> {
    let max: u64 = tree.number("proc/sys/net/core/rmem_max")?;
    if max >= RECEIVE_BYTES || has_capability(tree, CAP_NET_ADMIN) {
        return None;
    }
    Some(DoctorFinding {
        id: FindingId::ReceiveBuffer,
        subject: "net.core.rmem_max".to_owned(),
        what: format!(
            "a socket is granted {} to receive into, not {}",
            human(max),
            human(RECEIVE_BYTES)
        ),
        why: format!(
            "This bounds the bytes in flight to a core of this machine: at a round trip of 1 ms that is {:.0} MB/s at most, and what overflows is lost and sent again.",
            max as f64 / 1e-3 / 1e6
        ),
        advice: Advice::mend(format!("sysctl -w net.core.rmem_max={RECEIVE_BYTES}")),
    })
}

fn send_buffer(tree: &SystemTree) -> Option<DoctorFinding> {
    let max: u64 = tree.number("proc/sys/net/core/wmem_max")?;
    (max < SEND_BYTES).then(|| DoctorFinding {
        id: FindingId::SendBuffer,
        subject: "net.core.wmem_max".to_owned(),
        what: format!("a socket is granted {} to send from, not {}", human(max), human(SEND_BYTES)),
        why: format!(
            "About {} trains of 64 KiB fit before the kernel refuses more, and the provider must come back for each.",
            max / (64 << 10)
        ),
        advice: Advice::mend(format!("sysctl -w net.core.wmem_max={SEND_BYTES}")),
    })
}

fn offloads(tree: &SystemTree, interface: &str) -> Vec<DoctorFinding> {
    let Some(text) = tree.tool("ethtool", &["-k", interface]) else { return Vec::new() };
    let is_off = |feature: &str| {
        fields(&text).any(|(name, state)| name == feature && state.starts_with("off"))
    };
    let finding = |id, what: &str, option: &str| {
        DoctorFinding {
        id,
        subject: interface.to_owned(),
        what: what.to_owned(),
        why: "Packets then go through the kernel one by one. Over loopback, plain datagrams of 4 KiB reach 0.5 to 0.9 GB/s on a core, trains 1.5 to 2.8 GB/s."
            .to_owned(),
        advice: Advice::mend(format!("ethtool -K {interface} {option} on")),
    }
    };
    let mut findings = Vec::new();
    if is_off("generic-receive-offload") {
        findings.push(finding(
            FindingId::GroOff,
            "GRO is off: arriving packets are not joined",
            "gro",
        ));
    }
    // The kernel refuses UDP_SEGMENT where it would have to compute checksums itself.
    if is_off("tx-checksumming") {
        findings.push(finding(
            FindingId::GsoOff,
            "transmit checksums are off, and with them trains (UDP_SEGMENT)",
            "tx",
        ));
    } else if is_off("generic-segmentation-offload") {
        findings.push(finding(
            FindingId::GsoOff,
            "GSO is off: trains are cut before the network stack",
            "gso",
        ));
    }
    findings
}

fn mtu(tree: &SystemTree, interface: &str) -> Option<DoctorFinding> {
    let mtu: usize = tree.number(&format!("sys/class/net/{interface}/mtu"))?;
    let payload = sysfs::roce_payload(mtu)?;
    let what = format!("MTU {mtu}: packets have {payload} bytes of payload");
    Some(DoctorFinding::info(FindingId::InterfaceMtu, interface, what))
}
