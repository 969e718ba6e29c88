//! `feedrail devices`: the RDMA devices of this machine, and the provider that serves each of its
//! addresses.

use core::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use rdma::sysfs::{self, SysfsDevice, SysfsGid, SysfsPort};
use rdma::verbs::{self, DeviceInfo, LoadError};
use rdma::{LocalAddress, ProviderKind, Selection};
use serde_json::{Value, json};

use crate::options::{Format, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail devices
  feedrail devices -o json";

/// Shows the RDMA devices of this machine, and the provider that `--provider auto` selects for each
/// of its addresses
///
/// Without an RDMA device, it prints the reason and succeeds: the soft provider (RoCE v2 in
/// userspace) serves all addresses then.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    output: Output,
}

impl DevicesArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let report = DevicesReport::gather()?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&report.to_json()),
            Format::Normal => report.to_text(),
        })
    }
}

struct DevicesReport {
    devices: Vec<Shown>,
    /// Error for which verbs cannot be used at all.
    obstacle: Option<String>,
    addresses: Vec<AddressChoice>,
}

/// Provider that `--provider auto` takes for a local address, and why.
struct AddressChoice {
    local: LocalAddress,
    provider: &'static str,
    reason: String,
}

/// RDMA device as the kernel (sysfs) and rdma-core (verbs) describe it.
struct Shown {
    device: SysfsDevice,
    info: Option<DeviceInfo>,
    serves: Vec<IpAddr>,
}

impl DevicesReport {
    fn gather() -> Result<Self> {
        let listed = sysfs::devices(Path::new(sysfs::CLASS));
        let (infos, obstacle) = match listed.as_deref() {
            None | Some([]) => (Vec::new(), Some(nothing(listed.is_some(), verbs::available()))),
            Some(_) => match verbs::devices() {
                Ok(infos) => (infos, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            },
        };
        let local = rdma::local_addresses().context("cannot list the addresses of this machine")?;
        let shown = |device: SysfsDevice| Shown {
            info: infos.iter().find(|info| info.caps.name == device.name).cloned(),
            serves: local.iter().map(|local| local.ip).filter(|ip| serves(&device, *ip)).collect(),
            device,
        };
        let devices = listed.unwrap_or_default().into_iter().map(shown).collect();
        let addresses = local.into_iter().map(AddressChoice::of).collect();
        Ok(Self { devices, obstacle, addresses })
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(obstacle) = &self.obstacle {
            text += &format!(
                "No usable RDMA device: {obstacle}. `auto` takes the soft provider, RoCE v2 in userspace, for every address.\n"
            );
        }
        if self.devices.is_empty() {
            return text;
        }
        for shown in &self.devices {
            text += &shown.to_text();
        }
        text + "\n" + &self.choices()
    }

    fn choices(&self) -> String {
        let row = |AddressChoice { local, provider, reason }: &AddressChoice| {
            let LocalAddress { ip, interface } = local;
            vec![ip.to_string(), interface.clone(), (*provider).to_owned(), reason.clone()]
        };
        let rows: Vec<_> = self.addresses.iter().map(row).collect();
        output::table(&["Address", "Interface", "Auto", "Reason"], &rows)
    }

    fn to_json(&self) -> Value {
        json!({
            "devices": self.devices.iter().map(Shown::to_json).collect::<Value>(),
            "obstacle": self.obstacle,
            "addresses": self.addresses.iter().map(AddressChoice::to_json).collect::<Value>(),
        })
    }
}

impl AddressChoice {
    fn of(local: LocalAddress) -> Self {
        match rdma::select(ProviderKind::Auto, local.ip) {
            Ok(Selection { choice, reason, .. }) => Self { local, provider: choice.name(), reason },
            // The address has just been added or removed.
            Err(error) => Self { local, provider: "none", reason: error.to_string() },
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "address": self.local.ip.to_string(),
            "interface": self.local.interface,
            "provider": self.provider,
            "reason": self.reason,
        })
    }
}

/// Explains that no RDMA device exists, and whether libibverbs is missing, too.
fn nothing(is_class_there: bool, libraries: Result<(), LoadError>) -> String {
    let missing = if is_class_there { "is empty" } else { "does not exist" };
    match libraries {
        Ok(()) => format!("{} {missing}", sysfs::CLASS),
        Err(error) => format!("{} {missing}, and {error}", sysfs::CLASS),
    }
}

fn serves(device: &SysfsDevice, ip: IpAddr) -> bool {
    let by_gid = device.ports.iter().any(|port| port.has_roce_v2(ip));
    by_gid || verbs::device_for(ip).is_ok_and(|serving| serving.device.caps.name == device.name)
}

/// Formats a line of a device's description, indented below its heading.
fn line(indent: usize, key: &str, value: &str) -> String {
    let width = 24 - indent;
    format!("{:indent$}{key:<width$}{value}", "").trim_end().to_owned() + "\n"
}

fn yes_or(reason: Option<&str>) -> String {
    reason.map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"))
}

impl Shown {
    fn to_text(&self) -> String {
        let device = &self.device;
        let mut text = format!("{}\n", device.name);
        text += &line(2, "Kind", if device.software { "software" } else { "hardware" });
        text += &line(2, "Node GUID", &device.node_guid);
        let serves: Vec<String> = self.serves.iter().map(IpAddr::to_string).collect();
        let serves = if serves.is_empty() { "no address".to_owned() } else { serves.join(", ") };
        text += &line(2, "Serves", &serves);
        if let Some(info) = &self.info {
            text += &capabilities_text(info);
        }
        for port in &device.ports {
            text += &port_text(port);
        }
        text
    }

    fn to_json(&self) -> Value {
        let device = &self.device;
        json!({
            "name": device.name,
            "software": device.software,
            "node_guid": device.node_guid,
            "firmware": self.info.as_ref().map(|info| &info.firmware),
            "vendor_id": self.info.as_ref().map(|info| info.vendor_id),
            "addresses": self.serves.iter().map(IpAddr::to_string).collect::<Value>(),
            "capabilities": self.info.as_ref().map(capabilities_json),
            "ports": device.ports.iter().map(port_json).collect::<Value>(),
        })
    }
}

fn capabilities_text(info: &DeviceInfo) -> String {
    let caps = &info.caps;
    let dma_buf = if caps.software {
        Some("software cannot reach them")
    } else {
        Some("rdma-core is too old")
    };
    [
        line(2, "Firmware", &info.firmware),
        line(2, "Vendor", &format!("{:#06x}", info.vendor_id)),
        line(2, "Work requests", &format!("{} per queue, {} SGEs each", caps.max_wr, caps.max_sge)),
        line(
            2,
            "Completions",
            &format!("{} per queue, {} vectors", caps.max_cqe, info.completion_vectors),
        ),
        line(
            2,
            "RDMA READs",
            &format!("{} out, {} in", caps.max_initiator_depth, caps.max_responder_resources),
        ),
        line(2, "SEND with Invalidate", &yes_or(info.no_send_with_invalidate)),
        line(2, "Memory windows", &yes_or(info.no_memory_windows)),
        line(2, "dma-buf", &yes_or(dma_buf.filter(|_| !caps.dma_buf))),
    ]
    .concat()
}

fn capabilities_json(info: &DeviceInfo) -> Value {
    let caps = &info.caps;
    json!({
        "iwarp": caps.iwarp,
        "max_wr": caps.max_wr,
        "max_sge": caps.max_sge,
        "max_cqe": caps.max_cqe,
        "completion_vectors": info.completion_vectors,
        "max_initiator_depth": caps.max_initiator_depth,
        "max_responder_resources": caps.max_responder_resources,
        "max_region_bytes": caps.max_region_bytes,
        "send_with_invalidate": caps.send_with_invalidate,
        "no_send_with_invalidate": info.no_send_with_invalidate,
        "memory_windows": caps.memory_windows,
        "no_memory_windows": info.no_memory_windows,
        "dma_buf": caps.dma_buf,
    })
}

fn port_text(port: &SysfsPort) -> String {
    let mtu = port.active_mtu().map_or("unknown".to_owned(), |mtu| mtu.to_string());
    let mut text = format!("  Port {}\n", port.number);
    text += &line(4, "State", &format!("{} ({})", port.state, port.physical_state));
    text += &line(4, "Rate", &port.rate);
    text += &line(4, "Link layer", &port.link_layer);
    text += &line(4, "Interface", &port.interfaces().join(", "));
    text += &line(4, "Active MTU", &mtu);
    for gid in &port.gids {
        text += &line(4, &format!("GID {}", gid.index), &gid_text(gid));
    }
    text
}

fn gid_text(gid: &SysfsGid) -> String {
    let interface = gid.interface.as_deref().map(|name| format!(", {name}")).unwrap_or_default();
    format!("{}, {}{interface}", gid.gid, gid.kind)
}

fn port_json(port: &SysfsPort) -> Value {
    let gid = |gid: &SysfsGid| {
        json!({
            "index": gid.index,
            "gid": gid.gid.to_string(),
            "type": gid.kind,
            "interface": gid.interface,
        })
    };
    json!({
        "port": port.number,
        "state": port.state,
        "physical_state": port.physical_state,
        "rate": port.rate,
        "link_layer": port.link_layer,
        "interfaces": port.interfaces(),
        "active_mtu": port.active_mtu(),
        "gids": port.gids.iter().map(gid).collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use rdma::Caps;

    use super::*;

    fn rxe() -> Shown {
        let gid = |index, gid: &str| SysfsGid {
            index,
            gid: gid.parse().unwrap(),
            kind: "RoCE v2".to_owned(),
            interface: Some("veth0".to_owned()),
        };
        let port = SysfsPort {
            number: 1,
            state: "ACTIVE".to_owned(),
            physical_state: "LinkUp".to_owned(),
            rate: "10 Gb/sec (1X FDR10)".to_owned(),
            link_layer: "Ethernet".to_owned(),
            gids: vec![gid(0, "fe80::1"), gid(1, "::ffff:10.1.0.1")],
        };
        let info = DeviceInfo {
            caps: Caps::software("rxe0"),
            no_send_with_invalidate: Some("the device does not offer it"),
            no_memory_windows: None,
            vendor_id: 0xff_ffff,
            firmware: "1.2.3".to_owned(),
            ports: 1,
            completion_vectors: 2,
        };
        let device = SysfsDevice {
            name: "rxe0".to_owned(),
            node_guid: "28e8:a7ff:feca:98a9".to_owned(),
            software: true,
            parent: Some("veth0".to_owned()),
            ports: vec![port],
        };
        Shown { device, info: Some(info), serves: vec!["10.1.0.1".parse().unwrap()] }
    }

    fn report() -> DevicesReport {
        let local = LocalAddress { ip: "10.1.0.1".parse().unwrap(), interface: "veth0".to_owned() };
        let reason = "RDMA device rxe0 serves the address".to_owned();
        let choice = AddressChoice { local, provider: "verbs", reason };
        DevicesReport { devices: vec![rxe()], obstacle: None, addresses: vec![choice] }
    }

    #[test]
    fn text_shows_device_port_and_choice() {
        let text = report().to_text();
        for expected in [
            "rxe0\n  Kind                  software\n",
            "  Serves                10.1.0.1\n",
            "  SEND with Invalidate  no: the device does not offer it\n",
            "  Memory windows        yes\n",
            "  dma-buf               no: software cannot reach them\n",
            "  Port 1\n    State               ACTIVE (LinkUp)\n",
            "    GID 1               ::ffff:10.1.0.1, RoCE v2, veth0\n",
            "\n10.1.0.1  veth0      verbs  RDMA device rxe0 serves the address\n",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
    }

    #[test]
    fn json_has_all_of_it() {
        let value = report().to_json();
        let device = &value["devices"][0];
        assert_eq!((&device["name"], &device["firmware"]), (&json!("rxe0"), &json!("1.2.3")));
        assert_eq!(device["addresses"], json!(["10.1.0.1"]));
        assert_eq!(device["capabilities"]["memory_windows"], true);
        assert_eq!(device["ports"][0]["state"], "ACTIVE");
        assert_eq!(device["ports"][0]["gids"][1]["gid"], "::ffff:10.1.0.1");
        assert_eq!(value["addresses"][0]["provider"], "verbs");
        assert_eq!(value["obstacle"], Value::Null);
    }

    #[test]
    fn without_devices_there_is_one_line() {
        let reason = "cannot open shared object file".to_owned();
        let error = LoadError::NoLibrary { library: "libibverbs.so.1", reason };
        for (obstacle, expected) in [
            (nothing(false, Ok(())), "/sys/class/infiniband does not exist."),
            (nothing(true, Ok(())), "/sys/class/infiniband is empty."),
            (nothing(false, Err(error)), "does not exist, and libibverbs.so.1 cannot be loaded"),
        ] {
            let report =
                DevicesReport { devices: Vec::new(), obstacle: Some(obstacle), ..report() };
            let text = report.to_text();
            assert!(text.contains(expected) && text.contains("soft provider"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn a_device_without_usable_libraries_is_shown() {
        let mut report = report();
        report.devices[0].info = None;
        report.obstacle = Some("libibverbs.so.1 cannot be loaded".to_owned());
        let text = report.to_text();
        assert!(text.starts_with("No usable RDMA device: libibverbs.so.1 cannot"), "{text}");
        assert!(text.contains("State               ACTIVE"), "{text}");
        assert_eq!(report.to_json()["devices"][0]["capabilities"], Value::Null);
    }
}
