//! RDMA devices as sysfs and configfs describe them.

use std::net::IpAddr;
use std::path::Path;

use rdma::LocalAddress;
use rdma::sysfs::{self, SysfsDevice, SysfsGid, SysfsPort};

use super::tree::SystemTree;

/// Driver of a device, where the checks depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// NVIDIA ConnectX-4 and later.
    Mlx5,
    /// Broadcom NetXtreme-E, served by `bnxt_re`.
    Bnxt,
    /// Amazon's Elastic Fabric Adapter.
    Efa,
    /// Microsoft's Azure Network Adapter.
    Mana,
    /// Intel E800 (`ice`) and X722 (`i40e`), served by `irdma`.
    Irdma,
    /// The kernel's software RoCE.
    Rxe,
    /// Any other driver, by the name of its module.
    Other(String),
}

impl Driver {
    fn of(tree: &SystemTree, device: &SysfsDevice) -> Self {
        if device.software {
            return if device.name.starts_with("siw") {
                Self::Other("siw".to_owned())
            } else {
                Self::Rxe
            };
        }
        let link = format!("{}/device/driver", folder(&device.name));
        match tree.link_name(&link).unwrap_or_default().as_str() {
            "mlx5_core" => Self::Mlx5,
            "bnxt_en" => Self::Bnxt,
            "efa" => Self::Efa,
            "mana" => Self::Mana,
            "ice" | "i40e" => Self::Irdma,
            "" => Self::Other("unknown driver".to_owned()),
            other => Self::Other(other.to_owned()),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Mlx5 => "mlx5_core",
            Self::Bnxt => "bnxt_re",
            Self::Efa => "efa",
            Self::Mana => "mana",
            Self::Irdma => "irdma",
            Self::Rxe => "rdma_rxe",
            Self::Other(name) => name,
        }
    }
}

/// RDMA protocol of a device's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaProtocol {
    /// InfiniBand or RoCE, with reliable connections.
    Roce,
    /// RDMA over TCP, without RoCE packets.
    Iwarp,
    /// Datagrams only, without connections, as EFA.
    Unconnected,
}

/// RDMA device with its driver, firmware, PCI address and ports.
#[derive(Clone, Debug)]
pub(crate) struct RdmaDevice {
    pub(crate) sysfs: SysfsDevice,
    pub(crate) driver: Driver,
    pub(crate) protocol: RdmaProtocol,
    pub(crate) firmware: Option<String>,
    /// PCI vendor ID, which verbs report as `vendor_id`.
    pub(crate) vendor_id: Option<u32>,
    /// Address on the PCI bus.
    pub(crate) pci_address: Option<String>,
    pub(crate) ports: Vec<RdmaPort>,
}

/// Port of an RDMA device, with its network interface and the defaults of rdma_cm.
#[derive(Clone, Debug)]
pub(crate) struct RdmaPort {
    pub(crate) sysfs: SysfsPort,
    pub(crate) interface: Option<RdmaInterface>,
    /// RoCE mode that rdma_cm uses by default; `None` unless its directory in configfs exists.
    pub(crate) default_mode: Option<String>,
    /// ToS of connections that set none.
    pub(crate) default_tos: u8,
}

/// The network interface of a port.
#[derive(Clone, Debug)]
pub(crate) struct RdmaInterface {
    pub(crate) name: String,
    pub(crate) mtu: Option<usize>,
    pub(crate) addresses: Vec<IpAddr>,
}

fn folder(device: &str) -> String {
    format!("{}/{device}", sysfs::CLASS.trim_start_matches('/'))
}

/// Reads the RDMA devices of a machine. `None` if the kernel has no RDMA subsystem loaded.
pub(crate) fn read(tree: &SystemTree, addresses: &[LocalAddress]) -> Option<Vec<RdmaDevice>> {
    let class = tree.path(sysfs::CLASS.trim_start_matches('/'));
    let devices = sysfs::devices(Path::new(&class))?;
    Some(devices.into_iter().map(|device| RdmaDevice::read(tree, device, addresses)).collect())
}

impl RdmaDevice {
    fn read(tree: &SystemTree, sysfs: SysfsDevice, addresses: &[LocalAddress]) -> Self {
        let folder = folder(&sysfs.name);
        let driver = Driver::of(tree, &sysfs);
        let node_type = tree.text(&format!("{folder}/node_type")).unwrap_or_default();
        let protocol = match (&driver, node_type.split(':').next()) {
            (Driver::Efa, _) => RdmaProtocol::Unconnected,
            (_, Some("4")) => RdmaProtocol::Iwarp,
            _ => RdmaProtocol::Roce,
        };
        let vendor = tree.text(&format!("{folder}/device/vendor"));
        let vendor_id = match driver {
            Driver::Rxe => Some(rdma::verbs::RXE_VENDOR_ID),
            _ => vendor.and_then(|id| u32::from_str_radix(id.trim_start_matches("0x"), 16).ok()),
        };
        let firmware = tree.text(&format!("{folder}/fw_ver")).filter(|text| !text.is_empty());
        let port = |port: &SysfsPort| RdmaPort::read(tree, &sysfs, port.clone(), addresses);
        Self {
            ports: sysfs.ports.iter().map(port).collect(),
            pci_address: tree.link_name(&format!("{folder}/device")),
            sysfs,
            driver,
            protocol,
            firmware,
            vendor_id,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.sysfs.name
    }

    /// Whether the device can serve the address with reliable connections over RoCE v2.
    pub(crate) fn serves(&self, ip: IpAddr) -> bool {
        self.protocol == RdmaProtocol::Roce
            && self.sysfs.ports.iter().any(|port| !port.is_ethernet() || port.has_roce_v2(ip))
    }
}

impl RdmaPort {
    fn read(
        tree: &SystemTree,
        device: &SysfsDevice,
        sysfs: SysfsPort,
        addresses: &[LocalAddress],
    ) -> Self {
        let of_gids = sysfs.interfaces().first().map(|name| (*name).to_owned());
        let name = of_gids.or_else(|| device.parent.clone());
        let interface = name.map(|name| RdmaInterface {
            mtu: tree.number(&format!("sys/class/net/{name}/mtu")),
            addresses: addresses
                .iter()
                .filter(|address| address.interface == name)
                .map(|address| address.ip)
                .collect(),
            name,
        });
        let of_cm = |file: &str| {
            let (device, port) = (&device.name, sysfs.number);
            tree.text(&format!("sys/kernel/config/rdma_cm/{device}/ports/{port}/{file}"))
        };
        let default_tos = of_cm("default_roce_tos").and_then(|text| text.parse().ok());
        // MLNX_OFED can force a traffic class upon all connections: `Global tclass=106`.
        let forced =
            tree.text(&format!("{}/tc/{}/traffic_class", folder(&device.name), sysfs.number));
        let forced = forced.and_then(|text| text.rsplit('=').next()?.trim().parse().ok());
        Self {
            interface,
            default_mode: of_cm("default_roce_mode"),
            default_tos: forced.or(default_tos).unwrap_or(0),
            sysfs,
        }
    }

    /// Returns the GID that connections from a local address use.
    pub(crate) fn taken_gid(&self, ip: IpAddr) -> Option<&SysfsGid> {
        self.sysfs.gids.iter().find(|gid| gid.is_roce_v2() && gid.ip() == ip)
    }

    /// IP addresses of the port's network interface.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        self.interface.as_ref().map_or(&[], |interface| &interface.addresses)
    }

    /// Speed in bits per second, from `100 Gb/sec (4X EDR)`.
    pub(crate) fn bits_per_second(&self) -> Option<f64> {
        let gigabits: f64 = self.sysfs.rate.split_whitespace().next()?.parse().ok()?;
        (gigabits > 0.0).then_some(gigabits * 1e9)
    }
}
