//! RDMA devices as the kernel lists them, with or without rdma-core.
//!
//! Files are read one by one and devices come and go, so an entry that cannot be read is left out.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::str::FromStr;

use roce_proto::PathMtu;

use crate::interface;

/// Where Linux lists RDMA devices.
pub const CLASS: &str = "/sys/class/infiniband";

/// The most bytes of an Ethernet frame besides the payload of a RoCE v2 packet, as the kernel
/// counts them: network header, UDP, the longest transport headers and the CRC.
const ROCE_OVERHEAD_BYTES: usize = 40 + 8 + 12 + 4 + 28 + 4;

/// An RDMA device, as its folder in [`CLASS`] describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsDevice {
    /// Name of the device: `mlx5_0`, `rxe0`, ...
    pub name: String,
    /// Global identifier of the device, as the kernel writes it.
    pub node_guid: String,
    /// Whether it is a software device such as rxe: it has no `device` link to a bus.
    pub software: bool,
    /// The network interface of a software device.
    pub parent: Option<String>,
    /// Ports of the device, by number.
    pub ports: Vec<SysfsPort>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsPort {
    /// Number of the port, from 1.
    pub number: u8,
    /// Logical state: `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
    pub state: String,
    /// Physical state: `LinkUp`, `Disabled`, `Polling`, ...
    pub physical_state: String,
    /// Speed as the kernel writes it: `10 Gb/sec (1X FDR10)`.
    pub rate: String,
    /// Link layer: `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// The entries of its GID table that are in use.
    pub gids: Vec<SysfsGid>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysfsGid {
    /// Index in the GID table.
    pub index: u16,
    /// The GID: for an IPv4 address its mapped form, `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
    /// The GID type as the kernel writes it: `RoCE v2` or `IB/RoCE v1`.
    pub kind: String,
    /// The network interface that has the address.
    pub interface: Option<String>,
}

/// Reads the devices in a folder such as [`CLASS`], sorted by name; `None` if there is no such
/// folder.
pub fn devices(class: &Path) -> Option<Vec<SysfsDevice>> {
    let names = names(class)?;
    Some(names.into_iter().map(|name| SysfsDevice::read(&class.join(&name), name)).collect())
}

impl SysfsDevice {
    fn read(folder: &Path, name: String) -> Self {
        let ports = folder.join("ports");
        let port = |number: u8| SysfsPort::read(&ports.join(number.to_string()), number);
        Self {
            node_guid: text(&folder.join("node_guid")).unwrap_or_default(),
            software: !folder.join("device").exists(),
            parent: text(&folder.join("parent")),
            ports: numbers(&ports).into_iter().map(port).collect(),
            name,
        }
    }

    /// The port with this number, from 1.
    pub fn port(&self, number: u8) -> Option<&SysfsPort> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// The port whose GIDs come from a network interface, or the first port of a software device on
    /// it.
    pub fn port_on(&self, interface: &str) -> Option<&SysfsPort> {
        let on = |port: &&SysfsPort| port.interfaces().contains(&interface);
        let parent = || self.ports.first().filter(|_| self.parent.as_deref() == Some(interface));
        self.ports.iter().find(on).or_else(parent)
    }
}

impl SysfsPort {
    fn read(folder: &Path, number: u8) -> Self {
        let file = |name| text(&folder.join(name)).unwrap_or_default();
        let gids = numbers(&folder.join("gids"));
        Self {
            number,
            state: without_number(&file("state")),
            physical_state: without_number(&file("phys_state")),
            rate: file("rate"),
            link_layer: file("link_layer"),
            gids: gids.into_iter().filter_map(|index| SysfsGid::read(folder, index)).collect(),
        }
    }

    /// Whether the port's logical state is `ACTIVE`, so that it carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether its link layer is Ethernet, so that its protocol is RoCE or iWARP.
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    /// Whether the port has a RoCE v2 GID for a local address. If so, the device takes the packets
    /// to UDP port 4791 of that address.
    pub fn has_roce_v2(&self, ip: IpAddr) -> bool {
        self.gids.iter().any(|gid| gid.is_roce_v2() && gid.ip() == ip)
    }

    /// The network interfaces of its GIDs, each once.
    pub fn interfaces(&self) -> Vec<&str> {
        let mut interfaces: Vec<&str> =
            self.gids.iter().filter_map(|gid| gid.interface.as_deref()).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        interfaces
    }

    /// The largest payload of a packet that the port's interface leaves room for, in bytes; `None`
    /// where no interface limits it.
    pub fn active_mtu(&self) -> Option<usize> {
        let interface = self.interfaces().into_iter().next()?;
        roce_payload(interface::mtu(interface)?)
    }
}

/// The largest payload of a RoCE v2 packet, in bytes, that an interface with this MTU leaves room
/// for; `None` where not even the smallest one fits.
pub fn roce_payload(interface_mtu: usize) -> Option<usize> {
    let room = interface_mtu.checked_sub(ROCE_OVERHEAD_BYTES)?;
    PathMtu::largest_within(room).map(PathMtu::bytes)
}

impl SysfsGid {
    fn read(port: &Path, index: u16) -> Option<Self> {
        let entry = |folder: &str| text(&port.join(folder).join(index.to_string()));
        let gid = entry("gids").and_then(|text| Ipv6Addr::from_str(&text).ok())?;
        // Entries that are not in use read as zeros and have no attributes.
        let kind = entry("gid_attrs/types")?;
        Some(Self { index, gid, kind, interface: entry("gid_attrs/ndevs") })
    }

    /// Whether packets with this GID are RoCE v2 ones, which use UDP.
    pub fn is_roce_v2(&self) -> bool {
        self.kind == "RoCE v2"
    }

    /// The IP address of the GID: IPv4 if it is an IPv4-mapped one.
    pub fn ip(&self) -> IpAddr {
        self.gid.to_ipv4_mapped().map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }
}

fn names(folder: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Some(names)
}

/// The names in a folder that parse as numbers, sorted.
fn numbers<N: FromStr + Ord>(folder: &Path) -> Vec<N> {
    let names = names(folder).unwrap_or_default();
    let mut numbers: Vec<N> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort();
    numbers
}

/// The first line of a file, trimmed; `None` if it is empty or cannot be read.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Removes the number: `ACTIVE` from `4: ACTIVE`.
fn without_number(state: &str) -> String {
    state.split_once(": ").map_or(state, |(_, name)| name).to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder of devices like the kernel's, to be filled.
    pub(crate) struct FakeClass(tempfile::TempDir);

    impl FakeClass {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
            self
        }

        pub(crate) fn port(&self, device: &str, state: &str, link_layer: &str) -> &Self {
            let port = format!("{device}/ports/1");
            self.file(&format!("{device}/node_guid"), "28e8:a7ff:feca:98a9")
                .file(&format!("{port}/state"), state)
                .file(&format!("{port}/phys_state"), "5: LinkUp")
                .file(&format!("{port}/rate"), "10 Gb/sec (1X FDR10)")
                .file(&format!("{port}/link_layer"), link_layer)
        }

        pub(crate) fn gid(
            &self,
            device: &str,
            index: u16,
            gid: &str,
            kind: &str,
            interface: &str,
        ) -> &Self {
            let port = format!("{device}/ports/1");
            self.file(&format!("{port}/gids/{index}"), gid)
                .file(&format!("{port}/gid_attrs/types/{index}"), kind)
                .file(&format!("{port}/gid_attrs/ndevs/{index}"), interface)
        }

        pub(crate) fn devices(&self) -> Vec<SysfsDevice> {
            devices(self.0.path()).unwrap()
        }
    }

    pub(crate) const GID_OF_10_1_0_1: &str = "0000:0000:0000:0000:0000:ffff:0a01:0001";

    #[test]
    fn a_device_of_the_kernel_is_understood() {
        let class = FakeClass::new();
        class
            .port("rxe0", "4: ACTIVE", "Ethernet")
            .file("rxe0/parent", "veth0")
            .gid("rxe0", 0, "fe80:0000:0000:0000:28e8:a7ff:feca:98a9", "RoCE v2", "veth0")
            .gid("rxe0", 10, GID_OF_10_1_0_1, "RoCE v2", "veth0")
            .gid("rxe0", 2, GID_OF_10_1_0_1, "IB/RoCE v1", "veth0")
            // An entry that is not in use.
            .file("rxe0/ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000");
        let devices = class.devices();
        let [device] = devices.as_slice() else { panic!("{devices:?}") };
        assert_eq!((device.name.as_str(), device.software), ("rxe0", true));
        assert_eq!(device.node_guid, "28e8:a7ff:feca:98a9");
        let port = device.port_on("veth0").unwrap();
        assert_eq!((port.number, port.state.as_str()), (1, "ACTIVE"));
        assert_eq!((port.physical_state.as_str(), port.is_active()), ("LinkUp", true));
        assert_eq!(port.gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 2, 10]);
        assert_eq!(port.interfaces(), ["veth0"]);
        assert!(port.has_roce_v2("10.1.0.1".parse().unwrap()));
        assert!(!port.has_roce_v2("10.1.0.2".parse().unwrap()));
        assert_eq!(device.port_on("veth1"), None);
    }

    #[test]
    fn addresses_of_roce_v1_alone_do_not_count() {
        let class = FakeClass::new();
        class.port("mlx4_0", "4: ACTIVE", "Ethernet").file("mlx4_0/device/vendor", "0x15b3");
        class.gid("mlx4_0", 0, GID_OF_10_1_0_1, "IB/RoCE v1", "eth0");
        let devices = class.devices();
        assert!(!devices[0].software);
        assert!(!devices[0].ports[0].has_roce_v2("10.1.0.1".parse().unwrap()));
    }

    #[test]
    fn unreadable_entries_are_left_out() {
        assert_eq!(devices(Path::new("/nonexistent/infiniband")), None);
        let class = FakeClass::new();
        assert_eq!(class.devices(), []);
        class.file("odd0/ports/x/state", "4: ACTIVE").file("odd0/ports/1/gids/0", "no GID");
        let device = &class.devices()[0];
        assert_eq!((device.ports.len(), device.ports[0].gids.len()), (1, 0));
        assert!(!device.ports[0].is_active());
        assert_eq!(device.ports[0].active_mtu(), None);
    }

    #[test]
    fn a_software_device_is_on_its_parent_interface() {
        let class = FakeClass::new();
        class.port("rxe0", "1: DOWN", "Ethernet").file("rxe0/parent", "eth0");
        let devices = class.devices();
        assert_eq!(devices[0].port_on("eth0").map(|port| port.state.as_str()), Some("DOWN"));
    }

    #[test]
    fn the_interface_limits_the_payload() {
        let class = FakeClass::new();
        class.port("rxe0", "4: ACTIVE", "Ethernet").gid(
            "rxe0",
            0,
            GID_OF_10_1_0_1,
            "RoCE v2",
            "lo",
        );
        assert_eq!(class.devices()[0].ports[0].active_mtu(), Some(4096));
    }
}
