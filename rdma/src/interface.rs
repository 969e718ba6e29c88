//! The network interfaces of this machine and their addresses.
#![expect(unsafe_code, reason = "walks the system's list of addresses")]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;

/// An IP address of a network interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalAddress {
    /// An IPv4 or IPv6 address, without prefix length or scope.
    pub ip: IpAddr,
    /// Name of the network interface.
    pub interface: String,
}

/// The addresses of this machine that a peer could connect to, in the order of `getifaddrs`.
/// Link-local IPv6 addresses are left out, since they are valid only together with an interface.
///
/// # Errors
/// The error of `getifaddrs`.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut addresses = all()?;
    addresses.retain(|address| !is_link_local(address.ip));
    Ok(addresses)
}

/// The MTU of the interface that has `ip`, in bytes of IP packet; `None` if it cannot be read.
pub(crate) fn mtu_of(ip: IpAddr) -> Option<usize> {
    mtu(&name_of(ip)?)
}

/// The MTU of an interface, in bytes of IP packet; `None` if it cannot be read.
pub(crate) fn mtu(name: &str) -> Option<usize> {
    fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()
}

/// The name of the interface that has `ip`; `None` if it is not an address of this machine.
pub(crate) fn name_of(ip: IpAddr) -> Option<String> {
    let found = all().ok()?.into_iter().find(|address| address.ip == ip);
    // All of 127.0.0.0/8 belongs to `lo`, which lists one address.
    let loopback = || ip.is_loopback().then(|| "lo".to_owned());
    found.map(|address| address.interface).or_else(loopback)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if Ipv6Addr::is_unicast_link_local(&ip))
}

fn all() -> io::Result<Vec<LocalAddress>> {
    let mut list = ptr::null_mut();
    // SAFETY: the pointer is a place for the list's head.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut entry = list;
    while let Some(current) = {
        // SAFETY: the entries are the system's, linked by valid pointers and ended by a null one,
        // until they are freed below.
        unsafe { entry.as_ref() }
    } {
        // SAFETY: the address of an entry is null or valid.
        if let Some(ip) = unsafe { address(current.ifa_addr) } {
            // SAFETY: the name of an entry is a string.
            let interface = unsafe { CStr::from_ptr(current.ifa_name) };
            let interface = interface.to_string_lossy().into_owned();
            addresses.push(LocalAddress { ip, interface });
        }
        entry = current.ifa_next;
    }
    // SAFETY: the list is the one that `getifaddrs` made, and nothing of it is kept.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// The IP address in a socket address; `None` for a null pointer or another family.
///
/// # Safety
/// `address` is null or points at a socket address of the length that its family has.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_large_mtu() {
        assert!(mtu_of("127.9.9.9".parse().unwrap()).unwrap() > 4096);
        assert_eq!(name_of("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(mtu_of("192.0.2.1".parse().unwrap()), None);
    }

    #[test]
    fn addresses_are_listed_with_their_interfaces() {
        let loopback = LocalAddress { ip: [127, 0, 0, 1].into(), interface: "lo".to_owned() };
        let addresses = local_addresses().unwrap();
        assert!(addresses.contains(&loopback), "{addresses:?}");
        assert!(!addresses.iter().any(|address| is_link_local(address.ip)), "{addresses:?}");
    }

    #[test]
    fn addresses_that_need_an_interface_are_link_local() {
        for (ip, expected) in
            [("fe80::1", true), ("fd00::1", false), ("::1", false), ("10.0.0.1", false)]
        {
            assert_eq!(is_link_local(ip.parse().unwrap()), expected, "{ip}");
        }
    }
}
