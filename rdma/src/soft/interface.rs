//! The network interface that has an address.
#![expect(unsafe_code, reason = "walks the system's list of addresses")]

use std::ffi::CStr;
use std::fs;
use std::net::IpAddr;
use std::ptr;

/// The MTU of the interface that has `ip`, in bytes of IP packet; `None` when it cannot be told.
pub(super) fn mtu_of(ip: IpAddr) -> Option<usize> {
    if ip.is_loopback() {
        // All of 127.0.0.0/8 belongs to `lo`, which lists one address.
        return mtu("lo");
    }
    mtu(&name_of(ip)?)
}

fn mtu(name: &str) -> Option<usize> {
    fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()
}

/// The name of the interface that has `ip`.
fn name_of(ip: IpAddr) -> Option<String> {
    let mut list = ptr::null_mut();
    // SAFETY: the pointer is a place for the list's head.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let mut name = None;
    let mut entry = list;
    while let Some(current) = {
        // SAFETY: the entries are the system's, linked by valid pointers and ended by a null one, until they
        // are freed below.
        unsafe { entry.as_ref() }
    } {
        // SAFETY: the address of an entry is null or valid.
        if unsafe { address(current.ifa_addr) } == Some(ip) {
            // SAFETY: the name of an entry is a string.
            let found = unsafe { CStr::from_ptr(current.ifa_name) };
            name = found.to_str().ok().map(str::to_owned);
        }
        entry = current.ifa_next;
    }
    // SAFETY: the list is the one that `getifaddrs` made, and nothing of it is kept.
    unsafe { libc::freeifaddrs(list) };
    name
}

/// The IP address in a socket address, if it is one.
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
}
