//! The MTU of the route to a peer, from the routing table.
//!
//! `IP_MTU` of a connected socket is not used, since it includes path MTU updates from ICMP
//! messages, which may be forged. Netlink returns the route as configured.

use std::io;
use std::net::IpAddr;

use rustix::net::netdevice::index_to_name;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::interface;

const RTM_GETROUTE: u16 = 26;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// Return the route as configured, without path MTU updates learned since.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTAX_MTU: u16 = 2;
/// Length of `struct nlmsghdr`, and of `struct rtmsg`, in bytes.
const MESSAGE_HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;

/// The largest IP packet for the route from `local` to `peer`, in bytes.
///
/// # Errors
/// There is no route, or its MTU is unknown.
pub(super) fn mtu(local: IpAddr, peer: IpAddr) -> io::Result<usize> {
    let (kind, socket) = (SocketType::RAW, SocketFlags::CLOEXEC);
    // Routes are protocol 0.
    let netlink = socket_with(AddressFamily::NETLINK, kind, socket, None)?;
    send(&netlink, &request(local, peer), SendFlags::empty())?;
    let mut answer = [0; 4096];
    // The kernel has answered before `send` returns.
    let (length, _) = recv(&netlink, &mut answer[..], RecvFlags::DONTWAIT)?;
    let route = RouteEntry::parse(&answer[..length])?;
    let device_mtu = |&index: &u32| interface::mtu(&index_to_name(&netlink, index).ok()?);
    let devices = route.devices.iter().filter_map(device_mtu);
    devices.chain(route.mtu).min().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// A netlink request for the route from `local` to `peer`.
fn request(local: IpAddr, peer: IpAddr) -> Vec<u8> {
    let (family, prefix) = match peer {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let mut route = vec![u8::try_from(family).expect("small"), prefix, prefix, 0, 0, 0, 0, 0];
    route.extend(RTM_F_FIB_MATCH.to_ne_bytes());
    for (kind, ip) in [(RTA_DST, peer), (RTA_SRC, local)] {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        route.extend(u16::try_from(4 + octets.len()).expect("at most 20").to_ne_bytes());
        route.extend(kind.to_ne_bytes());
        route.extend(octets);
    }
    let length = u32::try_from(MESSAGE_HEADER + route.len()).expect("at most 68");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(RTM_GETROUTE.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port id, which are not needed.
    message.extend([0; 8]);
    message.extend(route);
    message
}

/// The interfaces and the configured MTU of a route.
#[derive(Debug, Default, PartialEq, Eq)]
struct RouteEntry {
    devices: Vec<u32>,
    mtu: Option<usize>,
}

impl RouteEntry {
    fn parse(answer: &[u8]) -> io::Result<Self> {
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let length = word(answer, 0).ok_or_else(malformed)? as usize;
        let kind = half(answer, 4).ok_or_else(malformed)?;
        let message = answer.get(MESSAGE_HEADER..length).ok_or_else(malformed)?;
        match kind {
            RTM_NEWROUTE => {}
            NLMSG_ERROR => {
                let error = word(message, 0).ok_or_else(malformed)?;
                return Err(io::Error::from_raw_os_error(error.wrapping_neg().cast_signed()));
            }
            _ => return Err(malformed()),
        }
        let mut route = Self::default();
        for (kind, value) in attributes(message.get(ROUTE_HEADER..).ok_or_else(malformed)?) {
            match kind {
                RTA_OIF => route.devices.extend(word(value, 0)),
                RTA_MULTIPATH => route.devices.extend(next_hops(value)),
                RTA_METRICS => {
                    let mtu = attributes(value).find(|(kind, _)| *kind == RTAX_MTU);
                    route.mtu = mtu.and_then(|(_, value)| word(value, 0)).map(|mtu| mtu as usize);
                }
                _ => {}
            }
        }
        Ok(route)
    }
}

/// The netlink attributes in `bytes`: type and value. A truncated attribute ends the iteration.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)?;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The interfaces of a multipath route (a list of `struct rtnexthop` with attributes).
fn next_hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?).max(8);
        let device = word(bytes, 4)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(device)
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(MESSAGE_HEADER + body.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(MESSAGE_HEADER, 0);
        bytes.extend(body);
        bytes
    }

    fn route(attributes: &[Vec<u8>]) -> Vec<u8> {
        answer(RTM_NEWROUTE, &[vec![0; ROUTE_HEADER], attributes.concat()].concat())
    }

    #[test]
    fn a_route_has_devices_and_an_mtu() {
        let mtu = attribute(RTAX_MTU, &1400u32.to_ne_bytes());
        let metrics = attribute(RTA_METRICS, &[attribute(9, &[1; 5]), mtu].concat());
        let device = attribute(RTA_OIF, &7u32.to_ne_bytes());
        let bytes = route(&[attribute(RTA_DST, &[10, 0, 0, 1]), device, metrics]);
        assert_eq!(
            RouteEntry::parse(&bytes).unwrap(),
            RouteEntry { devices: vec![7], mtu: Some(1400) }
        );
    }

    #[test]
    fn each_next_hop_has_a_device() {
        let hop = |length: u16, device: u32| {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([0; 2]);
            bytes.extend(device.to_ne_bytes());
            bytes.resize(length.into(), 0);
            bytes
        };
        let bytes = route(&[attribute(RTA_MULTIPATH, &[hop(16, 3), hop(8, 4)].concat())]);
        assert_eq!(RouteEntry::parse(&bytes).unwrap().devices, [3, 4]);
    }

    #[test]
    fn an_error_is_the_systems() {
        let error = RouteEntry::parse(&answer(NLMSG_ERROR, &(-libc::ENETUNREACH).to_ne_bytes()));
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENETUNREACH));
    }

    #[test]
    fn nonsense_ends_nothing() {
        let whole = route(&[attribute(RTA_OIF, &7u32.to_ne_bytes()), attribute(9, &[0; 9])]);
        for length in 0..whole.len() {
            let _ = RouteEntry::parse(&whole[..length]);
            let _ = RouteEntry::parse(&answer(RTM_NEWROUTE, &vec![0; length]));
        }
    }

    #[test]
    fn the_way_to_loopback_takes_large_packets() {
        let mtu = |ip: &str| mtu(ip.parse().unwrap(), ip.parse().unwrap());
        assert!(mtu("127.7.7.7").unwrap() > 4096);
    }
}
