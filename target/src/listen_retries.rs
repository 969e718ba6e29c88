//! Retries of listening on addresses after failures, with increasing intervals.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rdma::LocalAddress;

use crate::driver::devices::Devices;
use crate::inventory::Inventory;
use crate::inventory::port::Port;
use crate::listen_error::AddressError;

/// Number of failed attempts to listen on an address, and the wait until the next.
#[derive(Debug, Default)]
struct FailedTries {
    count: u32,
    /// Number of checks (one per second) until the next attempt.
    wait: u32,
    /// Error of the last attempt, which has been logged.
    error: String,
}

/// Failed attempts by address, and the state of the network at the last check.
#[derive(Debug, Default)]
pub(crate) struct MissingAddresses {
    failures: BTreeMap<SocketAddr, FailedTries>,
    last: NetworkState,
}

/// Failed attempts to listen in shared memory, by address: another process may have the name.
#[derive(Debug, Default)]
pub(crate) struct UnsharedPorts(BTreeMap<SocketAddr, FailedTries>);

/// Addresses and RDMA devices of this machine. A change means that an attempt may succeed now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkState {
    addresses: Vec<LocalAddress>,
    /// Names of the devices, sorted.
    devices: Vec<OsString>,
}

/// Most checks between two attempts while the network does not change. It limits the delay until
/// the target listens on an address that another process has released.
const LOOKS_BETWEEN_TRIES: u32 = 32;

/// Returns the names of this machine's RDMA devices, sorted.
pub(crate) fn rdma_devices() -> Vec<OsString> {
    let devices = fs::read_dir(rdma::sysfs::CLASS).into_iter().flatten().flatten();
    let mut devices: Vec<_> = devices.map(|entry| entry.file_name()).collect();
    devices.sort();
    devices
}

impl NetworkState {
    pub(crate) fn look() -> Self {
        let addresses = rdma::local_addresses().unwrap_or_default();
        Self { addresses, devices: rdma_devices() }
    }

    pub(crate) fn have(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.addresses.iter().any(|local| local.ip == ip)
    }
}

impl MissingAddresses {
    /// Makes all addresses due in this check if the network has changed.
    pub(crate) fn note_network(&mut self, now: NetworkState) {
        if self.last != now {
            self.last = now;
            self.failures.values_mut().for_each(|failures| failures.wait = 0);
        }
    }

    /// Whether to try an address in this check. Counts down its wait.
    pub(crate) fn is_due(&mut self, address: SocketAddr) -> bool {
        self.failures.get_mut(&address).is_none_or(FailedTries::is_due)
    }

    /// Removes an address on which the target listens now.
    pub(crate) fn forget(&mut self, address: SocketAddr) {
        self.failures.remove(&address);
    }

    /// Records a failed attempt; logs the error unless it is the same as before.
    pub(crate) fn note(&mut self, address: SocketAddr, error: String) {
        if self.failures.entry(address).or_default().note(&error) {
            tracing::warn!(%address, "still not listening: {error}");
        }
    }
}

impl UnsharedPorts {
    /// Creates the list after the start, which has logged the failures of these ports.
    pub(crate) fn at_start(devices: &Devices, inventory: &Inventory) -> Self {
        let ports = inventory.ports().into_iter().filter(|port| !devices.listen_beside(port));
        let tried = |port: Arc<Port>| {
            (port.configured_address(), FailedTries { count: 1, wait: 2, error: String::new() })
        };
        Self(ports.map(tried).collect())
    }

    pub(crate) fn is_due(&mut self, address: SocketAddr) -> bool {
        self.0.get_mut(&address).is_none_or(FailedTries::is_due)
    }

    pub(crate) fn note(&mut self, address: SocketAddr, error: &AddressError) {
        let is_known = self.0.contains_key(&address);
        self.0.entry(address).or_default().note(&error.to_string());
        if !is_known {
            tracing::warn!(%address, "hosts on this machine use the network: {error}");
        }
    }

    pub(crate) fn shared(&mut self, address: SocketAddr) {
        if self.0.remove(&address).is_some() {
            tracing::info!(%address, "hosts on this machine may share memory again");
        }
    }
}

impl FailedTries {
    /// Whether to try the address in this check. Counts down its wait.
    fn is_due(&mut self) -> bool {
        self.wait = self.wait.saturating_sub(1);
        self.wait == 0
    }

    /// Counts a failed attempt. Returns whether the error differs from the last one.
    fn note(&mut self, error: &str) -> bool {
        self.count = self.count.saturating_add(1);
        self.wait = 1_u32.checked_shl(self.count).unwrap_or(LOOKS_BETWEEN_TRIES);
        self.wait = self.wait.min(LOOKS_BETWEEN_TRIES);
        let is_new = self.error != error;
        self.error = error.to_owned();
        is_new
    }
}
