//! Network namespaces: machines of a network within this one.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use feedrail_tests::process::pause;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::clock::now;

/// The MTU of Ethernet.
pub(super) const MTU_BYTES: u16 = 1500;

/// Packets that the kernel holds until the router takes them. The router's own queue is the
/// bottleneck, so the kernel must not drop before.
const KERNEL_QUEUE_PACKETS: u32 = 20_000;

/// A namespace with one interface, which leads to the router.
pub(super) struct NetworkNamespace {
    handle: File,
    addresses: Vec<Ipv4Addr>,
    /// It keeps the namespace alive until the bench has a handle, and does nothing.
    holder: Child,
}

impl NetworkNamespace {
    /// Makes a namespace, and its interface with addresses of one /24 network. What is sent to
    /// others of that network comes out of the device.
    pub(super) fn new(addresses: &[Ipv4Addr]) -> Result<(Self, SyncDevice)> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .context("cannot run unshare, of util-linux")?;
        let handle = other_namespace(&mut holder);
        let namespace = match handle {
            Ok(handle) => Self { handle, addresses: addresses.to_vec(), holder },
            Err(error) => {
                let _ = holder.kill();
                let _ = holder.wait();
                return Err(error);
            }
        };
        let device = namespace.run(|| {
            let device = DeviceBuilder::new()
                .name("feedrail0")
                .mtu(MTU_BYTES)
                .tx_queue_len(KERNEL_QUEUE_PACKETS)
                .build_sync()
                .context("cannot make a TUN device")?;
            for &address in addresses {
                device.add_address_v4(address, 24).context("cannot add an address")?;
            }
            device.set_nonblocking(true)?;
            Ok(device)
        })?;
        Ok((namespace, device))
    }

    pub(super) fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }

    /// Runs something in the namespace: sockets that it opens and programs that it starts are
    /// there.
    pub(super) fn run<R: Send>(&self, action: impl FnOnce() -> Result<R> + Send) -> Result<R> {
        let within = || {
            move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter a network namespace")?;
            action()
        };
        let outcome = thread::scope(|scope| scope.spawn(within).join());
        outcome.unwrap_or_else(|_| Err(anyhow!("a thread in a network namespace panicked")))
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The namespace of a child, as soon as it is not the bench's own.
fn other_namespace(child: &mut Child) -> Result<File> {
    let path = format!("/proc/{}/ns/net", child.id());
    let own = std::fs::read_link("/proc/self/ns/net")?;
    let start = now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Err(anyhow!(
                "`unshare --net` ended ({status}): run the bench as root, or within \
                 `unshare --user --map-root-user`"
            ));
        }
        if std::fs::read_link(&path).is_ok_and(|link| link != own) {
            return Ok(File::open(&path)?);
        }
        if start.elapsed().as_secs() >= 10 {
            return Err(anyhow!("`unshare --net` made no namespace within 10 s"));
        }
        pause(Duration::from_millis(5));
    }
}
