//! Addresses for one test alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// UDP port of RoCE v2.
const ROCE_PORT: u16 = 4791;

/// A random address in 127.0.0.0/8 whose RoCE port is free now, so that tests can run side by side.
///
/// # Panics
/// If no free address is found, for example because `rdma_rxe` holds the port on all of them.
pub fn loopback_address() -> IpAddr {
    let candidates = std::iter::repeat_with(|| {
        let [a, b, c] = random_bytes();
        IpAddr::from(Ipv4Addr::new(127, 1 + a % 254, b, 1 + c % 254))
    });
    candidates
        .take(64)
        .find(|address| roce_port_is_free(*address))
        .expect("a free loopback address")
}

/// Whether UDP port 4791 of an address can be bound.
pub fn roce_port_is_free(address: IpAddr) -> bool {
    UdpSocket::bind((address, ROCE_PORT)).is_ok()
}

/// A TCP address that nobody listens on.
///
/// # Panics
/// If the system has no port to give.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((loopback_address(), 0)).expect("a free port");
    listener.local_addr().expect("it is bound")
}

fn random_bytes() -> [u8; 3] {
    let mut bytes = [0; 3];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the kernel has randomness for three bytes");
    bytes
}
