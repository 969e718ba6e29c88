//! Lookup of the process or kernel module that uses a UDP port.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::roce::ROCE_PORT;
use crate::sysfs;

/// The owner of UDP port 4791 at a local address, as a phrase that includes how to free the port.
pub fn roce_port_owner(address: IpAddr) -> String {
    of(SocketAddr::new(address, ROCE_PORT))
}

/// The owner of the UDP port of `address`, as a phrase that includes how to free the port.
pub(super) fn of(address: SocketAddr) -> String {
    if let Some(process) =
        socket_inode(address).and_then(|inode| process_with_socket(Path::new("/proc"), &inode))
    {
        return process;
    }
    match rxe_devices().as_slice() {
        [] => {
            "another process (a kernel module, or another user's; `ss -ulnp` as root tells)".into()
        }
        devices => format!(
            "the kernel's rdma_rxe ({}): remove it with `rdma link delete`, or use another network \
             namespace",
            devices.join(", ")
        ),
    }
}

/// The names of the kernel's `rdma_rxe` devices: software devices with a network interface.
fn rxe_devices() -> Vec<String> {
    let devices = sysfs::devices(Path::new(sysfs::CLASS)).unwrap_or_default();
    let rxe = devices.into_iter().filter(|device| device.software && device.parent.is_some());
    rxe.map(|device| device.name).collect()
}

/// The inode of the socket bound to `address` or to the wildcard, from `/proc/net/udp` or `udp6`.
fn socket_inode(address: SocketAddr) -> Option<String> {
    let table = if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    let text = fs::read_to_string(table).ok()?;
    text.lines().skip(1).find_map(|line| inode_if_bound(line, address))
}

fn inode_if_bound(line: &str, address: SocketAddr) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (host, port) = fields.get(1)?.split_once(':')?;
    let same_port = u16::from_str_radix(port, 16).ok()? == address.port();
    let wildcard = host.bytes().all(|digit| digit == b'0');
    let inode = fields.get(9)?;
    (same_port && (wildcard || host == hex(address))).then(|| (*inode).to_owned())
}

/// An address as `/proc/net/udp` prints it: each 32-bit word in the machine's byte order.
fn hex(address: SocketAddr) -> String {
    let octets = match address {
        SocketAddr::V4(address) => address.ip().octets().to_vec(),
        SocketAddr::V6(address) => address.ip().octets().to_vec(),
    };
    let words = octets
        .chunks_exact(4)
        .map(|word| u32::from_ne_bytes(word.try_into().expect("chunks of four bytes")));
    words.map(|word| format!("{word:08X}")).collect()
}

/// The process that has the socket with this inode open, found in a folder such as `/proc`; `None`
/// if no process has it or we may not read its descriptors.
pub fn process_with_socket(processes: &Path, inode: &str) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir(processes).ok()?.flatten().filter(is_process) {
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let has_it = descriptors.flatten().any(|descriptor| {
            fs::read_link(descriptor.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str())
        });
        if has_it {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let id = process.file_name().to_string_lossy().into_owned();
            return Some(format!("process {id} ({})", name.trim()));
        }
    }
    None
}

fn is_process(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_look_as_in_proc() {
        let address: SocketAddr = "127.0.0.1:4791".parse().unwrap();
        let line = "  12: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0 0";
        assert_eq!(inode_if_bound(line, address).as_deref(), Some("4711"));
        assert_eq!(inode_if_bound(line, "127.0.0.2:4791".parse().unwrap()), None);
        assert_eq!(inode_if_bound(line, "127.0.0.1:4792".parse().unwrap()), None);
        assert_eq!(inode_if_bound("nonsense", address), None);
    }

    #[test]
    fn the_holder_of_a_socket_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let owner = of(socket.local_addr().unwrap());
        assert!(owner.contains(&std::process::id().to_string()), "{owner}");
    }
}
