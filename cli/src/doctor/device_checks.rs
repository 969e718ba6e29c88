//! Checks of RDMA devices and their ports.

use std::net::IpAddr;

use rdma::{sysfs, verbs};

use super::device::{Driver, RdmaDevice, RdmaInterface, RdmaPort, RdmaProtocol};
use super::finding::{Advice, DoctorFinding, FindingId};

/// Largest RoCE path MTU, in bytes of payload.
const FULL_PAYLOAD: usize = 4096;
/// Smallest interface MTU with room for [`FULL_PAYLOAD`] and headers, rounded up.
const FULL_MTU: usize = 4200;
/// Bytes of a typical large read of a data loader.
const LARGE_READ: usize = 128 << 10;

/// Returns the findings for a device and its ports.
pub(crate) fn examine(device: &RdmaDevice) -> Vec<DoctorFinding> {
    let mut findings = vec![summary(device)];
    findings.extend(quirks(device));
    match device.protocol {
        RdmaProtocol::Iwarp => findings.push(iwarp(device)),
        RdmaProtocol::Unconnected => findings.push(no_reliable_connection(device)),
        RdmaProtocol::Roce => {
            for port in &device.ports {
                findings.extend(examine_port(device, port));
            }
        }
    }
    findings
}

fn examine_port(device: &RdmaDevice, port: &RdmaPort) -> Vec<DoctorFinding> {
    if !port.sysfs.is_active() {
        return vec![port_down(device, port)];
    }
    if !port.sysfs.is_ethernet() {
        return Vec::new();
    }
    if port.sysfs.gids.is_empty() {
        return vec![no_gids(device, port)];
    }
    let mut findings: Vec<DoctorFinding> = roce_mode(device, port).into_iter().collect();
    if let Some(interface) = &port.interface {
        let without = interface.addresses.iter().filter(|ip| port.taken_gid(**ip).is_none());
        findings.extend(without.map(|ip| no_roce_v2(device, port, interface, *ip)));
        findings.extend(port_mtu(interface));
    }
    findings
}

/// Name of a port in findings. The number is left out if the device has only one port.
pub(crate) fn port_name(device: &RdmaDevice, port: &RdmaPort) -> String {
    match device.ports.len() {
        1 => device.name().to_owned(),
        _ => format!("{} port {}", device.name(), port.sysfs.number),
    }
}

fn summary(device: &RdmaDevice) -> DoctorFinding {
    let firmware = device.firmware.as_deref().unwrap_or("unknown");
    let mut what = format!("driver {}, firmware {firmware}", device.driver.name());
    for port in &device.ports {
        let sysfs = &port.sysfs;
        what += &format!(
            "; port {}: {}, {}, {}",
            sysfs.number, sysfs.state, sysfs.rate, sysfs.link_layer
        );
        if let Some(interface) = &port.interface {
            let mtu = interface.mtu.map_or("unknown".to_owned(), |mtu| mtu.to_string());
            what += &format!(", interface {} with MTU {mtu}", interface.name);
            if let Some(payload) = interface.mtu.and_then(sysfs::roce_payload) {
                what += &format!(", so {payload} bytes of payload in a packet");
            }
        }
        for ip in port.addresses() {
            if let Some(gid) = port.taken_gid(*ip) {
                what += &format!("; {ip} takes GID {} ({})", gid.index, gid.kind);
            }
        }
    }
    DoctorFinding::info(FindingId::Device, device.name(), what)
}

fn port_down(device: &RdmaDevice, port: &RdmaPort) -> DoctorFinding {
    let advice = match (&port.interface, &device.sysfs.parent) {
        (Some(RdmaInterface { name, .. }), _) | (None, Some(name)) => {
            Advice::mend(format!("ip link set {name} up"))
        }
        (None, None) => {
            Advice::look(format!("rdma link show {}/{}", device.name(), port.sysfs.number))
        }
    };
    let (state, physical) = (&port.sysfs.state, &port.sysfs.physical_state);
    DoctorFinding {
        id: FindingId::PortDown,
        subject: port_name(device, port),
        what: format!("the port is {state} ({physical})"),
        why: "No packet leaves or arrives, and `soft` cannot stand in where the device has UDP port 4791 of the address."
            .to_owned(),
        advice,
    }
}

/// Warns if connections would use RoCE v1, which routers do not forward and our target does not
/// serve.
fn roce_mode(device: &RdmaDevice, port: &RdmaPort) -> Option<DoctorFinding> {
    let mode = port.default_mode.as_deref().filter(|mode| *mode != "RoCE v2")?;
    let (name, number) = (device.name(), port.sysfs.number);
    Some(DoctorFinding {
        id: FindingId::RoceModeV1,
        subject: port_name(device, port),
        what: format!("new connections take {mode}, not RoCE v2"),
        why: "RoCE v1 has no IP header: its packets pass no router, carry no DSCP and no ECN, and a peer on UDP port 4791 sees none of them."
            .to_owned(),
        advice: Advice::mend(format!(
            "echo 'RoCE v2' > /sys/kernel/config/rdma_cm/{name}/ports/{number}/default_roce_mode"
        )),
    })
}

fn no_roce_v2(
    device: &RdmaDevice,
    port: &RdmaPort,
    interface: &RdmaInterface,
    ip: IpAddr,
) -> DoctorFinding {
    let has_any = port.sysfs.gids.iter().any(|gid| gid.is_roce_v2());
    let (name, number, interface) = (device.name(), port.sysfs.number, &interface.name);
    let (what, advice) = if has_any {
        (
            format!("there is no RoCE v2 GID for {ip}, but for other addresses"),
            Advice::mend(format!(
                "a=$(ip -o address show dev {interface} to {ip} | awk '{{ print $4 }}'); ip address del $a dev {interface}; ip address add $a dev {interface}"
            )),
        )
    } else {
        let first = port.sysfs.gids.first().map_or("no GID", |gid| gid.kind.as_str());
        let advice =
            Advice::look(format!("rdma link show {name}/{number}; ibv_devinfo -v -d {name}"));
        (format!("the port has no RoCE v2 GID, only {first}"), advice)
    };
    DoctorFinding {
        id: FindingId::NoRoceV2,
        subject: port_name(device, port),
        what,
        why: format!(
            "Connections from {ip} do not take the device: with `auto` they go over `soft`, where the CPU sends each packet."
        ),
        advice,
    }
}

/// Finding for a port without any GID: RoCE was switched off there.
fn no_gids(device: &RdmaDevice, port: &RdmaPort) -> DoctorFinding {
    let advice = match (&device.driver, &device.pci_address) {
        (Driver::Mlx5, Some(pci)) => Advice::Mend(vec![
            format!("devlink dev param set pci/{pci} name enable_roce value true cmode driverinit"),
            format!("devlink dev reload pci/{pci}"),
        ]),
        _ => Advice::look(format!("rdma link show {}/{}", device.name(), port.sysfs.number)),
    };
    DoctorFinding {
        id: FindingId::NoRoceV2,
        subject: port_name(device, port),
        what: "the port has no GID at all: RoCE is switched off, or its interface is down"
            .to_owned(),
        why: "With `auto` everything goes over `soft`, where the CPU sends each packet.".to_owned(),
        advice,
    }
}

fn port_mtu(interface: &RdmaInterface) -> Option<DoctorFinding> {
    let mtu = interface.mtu?;
    let payload = sysfs::roce_payload(mtu).unwrap_or(0);
    if payload >= FULL_PAYLOAD {
        return None;
    }
    let packets = LARGE_READ / payload.max(1);
    Some(DoctorFinding {
        id: FindingId::PortMtu,
        subject: interface.name.clone(),
        what: format!(
            "an MTU of {mtu} leaves {payload} bytes of payload in a packet, not {FULL_PAYLOAD}"
        ),
        why: format!(
            "A read of 128 KiB takes {packets} packets rather than {}, and both ends and every switch between must agree on the MTU.",
            LARGE_READ / FULL_PAYLOAD
        ),
        advice: Advice::mend(format!("ip link set {} mtu {FULL_MTU}", interface.name)),
    })
}

fn iwarp(device: &RdmaDevice) -> DoctorFinding {
    let advice = match (&device.driver, &device.pci_address) {
        (Driver::Irdma, Some(pci)) => Advice::Mend(vec![
            format!("devlink dev param set pci/{pci} name enable_iwarp value false cmode runtime"),
            format!("devlink dev param set pci/{pci} name enable_roce value true cmode runtime"),
        ]),
        _ => Advice::Nothing,
    };
    DoctorFinding {
        id: FindingId::Iwarp,
        subject: device.name().to_owned(),
        what: format!("{} runs iWARP, which Feedrail does not use", device.driver.name()),
        why: "An iWARP NIC opens the sink of each RDMA READ to the peer's writes. `auto` takes `soft` on its addresses, where the CPU sends each packet."
            .to_owned(),
        advice,
    }
}

fn no_reliable_connection(device: &RdmaDevice) -> DoctorFinding {
    DoctorFinding {
        id: FindingId::NoReliableConnection,
        subject: device.name().to_owned(),
        what: format!("{} has no reliable connections (RC)", device.driver.name()),
        why: "NVMe over RDMA needs RC, and EFA has datagrams of its own kind only (SRD, UD). `auto` takes `soft` over the ENA interface of the instance."
            .to_owned(),
        advice: Advice::Nothing,
    }
}

/// Findings for known faults of the device, and for features that it lacks.
fn quirks(device: &RdmaDevice) -> Vec<DoctorFinding> {
    let faults = device.vendor_id.into_iter().flat_map(verbs::known_faults);
    let mut findings: Vec<DoctorFinding> = faults
        .map(|(feature, reason)| {
            let what = format!("{feature} not used: {reason}");
            DoctorFinding::info(FindingId::DeviceFault, device.name(), what)
        })
        .collect();
    if device.driver == Driver::Mana {
        let what = "its library has neither memory windows nor shared receive queues: a region is open to the target for as long as it is registered, not for one command";
        findings.push(DoctorFinding::info(FindingId::DeviceLimits, device.name(), what));
    }
    findings
}
