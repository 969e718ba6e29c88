//! Global identifiers (GIDs), service ids, and the IP addressing header of RDMA-CM requests.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A global identifier (GID) of a port. With RoCE v2 it is the IP address, IPv4-mapped for IPv4.
#[repr(transparent)]
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> Self {
        Ipv6Addr::from(gid.0).to_canonical()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

/// Identifies the service that a REQ connects to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// Prefix of RDMA-CM service ids, followed by port space and port.
    const RDMA_CM: u64 = 0x0100_0000;
    const TCP_PORT_SPACE: u64 = 0x0006_0000;

    /// The service id of a port in RDMA-CM's TCP port space, which NVMe over Fabrics uses.
    pub const fn tcp(port: u16) -> Self {
        Self(Self::RDMA_CM | Self::TCP_PORT_SPACE | port as u64)
    }

    /// Whether the private data of a REQ for this service begins with an [`IpHeader`].
    pub const fn is_rdma_cm(self) -> bool {
        self.0 & !0x00FF_FFFF == Self::RDMA_CM
    }

    /// The port in an RDMA-CM service id; `None` for other service ids.
    pub const fn port(self) -> Option<u16> {
        if self.is_rdma_cm() { Some(self.0 as u16) } else { None }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {:#018x}", self.0)
    }
}

/// The IP addressing header at the start of the private data of an RDMA-CM REQ (volume 1, annex
/// A11). Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Address and port of the active side.
    pub source: SocketAddr,
    /// Address of the passive side; its port is in the service id.
    pub destination: IpAddr,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct IpHeaderWire {
    major_minor_version: u8,
    /// IP version in the upper four bits.
    ip_version: u8,
    source_port: U16,
    source: [u8; 16],
    destination: [u8; 16],
}

const _: () = assert!(size_of::<IpHeaderWire>() == IpHeader::BYTES);

impl IpHeader {
    /// Length of the header in bytes.
    pub const BYTES: usize = 36;

    /// Parses the header at the start of private data; `None` if its version or address family is
    /// unknown.
    pub fn parse(private_data: &[u8]) -> Option<Self> {
        let (wire, _) = IpHeaderWire::ref_from_prefix(private_data).ok()?;
        if wire.major_minor_version != 0 {
            return None;
        }
        let address: fn(&[u8; 16]) -> IpAddr = match wire.ip_version >> 4 {
            4 => |field| IpAddr::from([field[12], field[13], field[14], field[15]]),
            6 => |field| IpAddr::from(*field),
            _ => return None,
        };
        Some(Self {
            source: SocketAddr::new(address(&wire.source), wire.source_port.get()),
            destination: address(&wire.destination),
        })
    }

    /// Encodes the header into its 36 bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let (ip_version, _) = Self::field(self.source.ip());
        let wire = IpHeaderWire {
            major_minor_version: 0,
            ip_version: ip_version << 4,
            source_port: U16::new(self.source.port()),
            source: Self::field(self.source.ip()).1,
            destination: Self::field(self.destination).1,
        };
        zerocopy::transmute!(wire)
    }

    /// IP version and address field; an IPv4 address is in the last four bytes, after zeros.
    fn field(ip: IpAddr) -> (u8, [u8; 16]) {
        match ip {
            IpAddr::V4(v4) => {
                let mut field = [0; 16];
                field[12..].copy_from_slice(&v4.octets());
                (4, field)
            }
            IpAddr::V6(v6) => (6, v6.octets()),
        }
    }
}
