//! Sends datagrams to a UDP port of the target, to see whether it answers port unreachable.

use core::time::Duration;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::Passage;

/// Port of the range that `traceroute` uses, on which normally no program listens.
pub(super) const CLOSED_PORT: u16 = 33_499;
const PATIENCE: Duration = Duration::from_millis(500);
const TRIES: u32 = 2;

/// Reaction to a datagram to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knock {
    /// The peer sent ICMP port unreachable: datagrams reach it, and the port is closed.
    Refused,
    /// No reply: a program listens there, or the datagrams are dropped on the way.
    Silent,
}

/// Sends a datagram to a port, with data that no RoCE endpoint takes for a packet.
pub(super) fn knock(source: IpAddr, peer: IpAddr, port: u16) -> io::Result<Knock> {
    let answer = send(source, SocketAddr::new(peer, port), &[0; 1])?;
    Ok(if answer == Passage::Passes { Knock::Refused } else { Knock::Silent })
}

/// Whether a datagram of this many bytes reaches the peer whole, which then refuses it.
pub(super) fn passage(source: IpAddr, peer: IpAddr, bytes: usize) -> Passage {
    let peer = SocketAddr::new(peer, CLOSED_PORT);
    send(source, peer, &vec![0; bytes]).unwrap_or(Passage::Silent)
}

fn send(source: IpAddr, peer: SocketAddr, data: &[u8]) -> io::Result<Passage> {
    let socket = UdpSocket::bind(SocketAddr::new(source, 0))?;
    if peer.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
    }
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(peer)?;
    for _ in 0..TRIES {
        let answer = socket.send(data).and_then(|_| socket.recv(&mut [0; 1]));
        match answer {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(Passage::Passes);
            }
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                return Ok(Passage::TooLong);
            }
            _ => {}
        }
    }
    Ok(Passage::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_refuses_and_an_open_one_is_silent() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let open = UdpSocket::bind((ip, 0)).unwrap();
        let port = open.local_addr().unwrap().port();
        assert_eq!(knock(ip, ip, port).unwrap(), Knock::Silent);
        drop(open);
        assert_eq!(knock(ip, ip, port).unwrap(), Knock::Refused);
    }
}
