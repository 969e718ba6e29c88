//! Socket for ICMP echo requests that reports the type of service of each reply.
#![expect(unsafe_code, reason = "no crate at hand receives control messages of IP")]

use core::time::Duration;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, Timeout};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, ipproto, send, socket_with,
};

/// ICMP message types, and bytes of the header before the data.
const ECHO_V4: u8 = 8;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
pub(super) const ICMP_HEADER: usize = 8;
/// Minimum bytes of an IPv4 header.
const IPV4_HEADER: usize = 20;

/// Echo reply: sequence number, data, and the type of service that it arrived with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EchoReply {
    pub(super) sequence: u16,
    pub(super) data: Vec<u8>,
    pub(super) tos: Option<u8>,
}

/// Socket that sends echo requests to one peer and receives its replies.
pub(super) struct IcmpSocket {
    socket: OwnedFd,
    is_v4: bool,
    /// Raw sockets need root and receive all ICMP messages of the peer. Datagram sockets are open
    /// to the groups in `net.ipv4.ping_group_range`.
    is_raw: bool,
}

impl IcmpSocket {
    /// # Errors
    /// The system does not permit such a socket to this user, or there is no route to the peer.
    pub(super) fn open(peer: IpAddr, source: Option<IpAddr>) -> io::Result<Self> {
        let is_v4 = peer.is_ipv4();
        let (family, protocol) = if is_v4 {
            (AddressFamily::INET, ipproto::ICMP)
        } else {
            (AddressFamily::INET6, ipproto::ICMPV6)
        };
        let make = |kind| socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol));
        let (socket, is_raw) = match make(SocketType::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (make(SocketType::RAW)?, true),
        };
        if is_v4 {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
            sockopt::set_ip_recvtos(&socket, true)?;
        } else {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
            sockopt::set_ipv6_recvtclass(&socket, true)?;
        }
        if let Some(source) = source {
            bind(&socket, &SocketAddr::new(source, 0))?;
        }
        connect(&socket, &SocketAddr::new(peer, 0))?;
        Ok(Self { socket, is_v4, is_raw })
    }

    pub(super) fn set_tos(&self, tos: u8) -> io::Result<()> {
        if self.is_v4 {
            sockopt::set_ip_tos(&self.socket, tos)?;
        } else {
            sockopt::set_ipv6_tclass(&self.socket, tos.into())?;
        }
        Ok(())
    }

    /// Sends an echo request that must not be cut into fragments.
    pub(super) fn send(&self, sequence: u16, data: &[u8]) -> io::Result<()> {
        let kind = if self.is_v4 { ECHO_V4 } else { ECHO_V6 };
        let [high, low] = sequence.to_be_bytes();
        // The kernel fills in the identifier, and the checksum of ICMPv6.
        let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
        message.extend(data);
        if self.is_v4 {
            let checksum = internet_checksum(&message).to_be_bytes();
            message[2..4].copy_from_slice(&checksum);
        }
        send(&self.socket, &message, SendFlags::empty())?;
        Ok(())
    }

    /// Waits up to `wait` for the next reply.
    ///
    /// # Errors
    /// An ICMP error that the network sent for an earlier request, such as host unreachable.
    pub(super) fn receive(&self, wait: Duration) -> io::Result<Option<EchoReply>> {
        // A timeout of 0 would disable it.
        let wait = wait.max(Duration::from_micros(1));
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(wait))?;
        let mut buffer = vec![0; 1 << 16];
        match self.receive_message(&mut buffer) {
            Ok((length, tos)) => Ok(self.parse(&buffer[..length], tos)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(&self, message: &[u8], tos: Option<u8>) -> Option<EchoReply> {
        let message = if self.is_raw && self.is_v4 { past_ipv4_header(message)? } else { message };
        let reply = if self.is_v4 { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
        let (header, data) = message.split_at_checked(ICMP_HEADER)?;
        let sequence = u16::from_be_bytes([header[6], header[7]]);
        (header[0] == reply).then(|| EchoReply { sequence, data: data.to_vec(), tos })
    }

    /// Receives the next message. Returns its length in bytes and its type of service.
    fn receive_message(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<u8>)> {
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: all of its fields are numbers and pointers, for which zeros are valid.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        // SAFETY: the header describes `buffer` and `control`, which live across the call and are
        // not used otherwise until it returns.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, 0) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok((length, tos_of(&bytes[..header.msg_controllen.min(bytes.len())])))
    }
}

fn past_ipv4_header(packet: &[u8]) -> Option<&[u8]> {
    let words = usize::from(packet.first()? & 0xF);
    packet.get((words * 4).max(IPV4_HEADER)..)
}

/// Type of service or traffic class in the control messages: `struct cmsghdr` and its data, each at
/// a multiple of eight bytes.
fn tos_of(mut control: &[u8]) -> Option<u8> {
    const HEADER: usize = 16;
    loop {
        let length = usize::from_ne_bytes(*control.first_chunk()?);
        let level = i32::from_ne_bytes(*control.get(8..)?.first_chunk()?);
        let kind = i32::from_ne_bytes(*control.get(12..)?.first_chunk()?);
        let data = control.get(HEADER..length)?;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => return data.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                return u8::try_from(i32::from_ne_bytes(*data.first_chunk()?)).ok();
            }
            _ => control = control.get(length.next_multiple_of(8)..)?,
        }
    }
}

/// Internet checksum (RFC 1071).
fn internet_checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // The example of RFC 1071; its sum is DDF2.
        assert_eq!(internet_checksum(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]), !0xDDF2);
        assert_eq!(internet_checksum(&[0xFF]), 0x00FF);
    }

    #[test]
    fn the_type_of_service_is_found_among_control_messages() {
        let message = |level: i32, kind: i32, data: &[u8]| {
            let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
            bytes.extend(level.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(data);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        let other = message(libc::SOL_SOCKET, 29, &[1; 16]);
        let v4 = message(libc::IPPROTO_IP, libc::IP_TOS, &[0x6A]);
        let v6 = message(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &0x6Bi32.to_ne_bytes());
        assert_eq!(tos_of(&[other.clone(), v4].concat()), Some(0x6A));
        assert_eq!(tos_of(&v6), Some(0x6B));
        assert_eq!(tos_of(&other), None);
        for length in 0..v6.len() {
            let _ = tos_of(&v6[..length]);
        }
    }

    #[test]
    fn a_raw_answer_has_an_ip_header_before_it() {
        let packet = [&[0x46; 24][..], &[0, 0, 0, 0, 0, 0, 0, 7, 1, 2]].concat();
        assert_eq!(past_ipv4_header(&packet), Some(&packet[24..]));
        assert_eq!(past_ipv4_header(&[0x4F; 20]), None);
    }
}
