//! Devices on a simulated network.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::{SimNetwork, SimWire};
use crate::roce::wire::ROCE_PORT;
use crate::roce::{Fabric, RoceDevice, SeededEntropy};
use crate::{Caps, DeviceEvent};

/// The `sim` fabric of one device: its network and its address.
pub struct Sim {
    network: SimNetwork,
    ip: IpAddr,
}

/// A device on a simulated network.
pub type SimDevice = RoceDevice<Sim>;

impl SimNetwork {
    /// Adds a device with room for `groups` groups at `ip`.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when the address is taken.
    pub fn device(&self, ip: IpAddr, groups: usize) -> io::Result<SimDevice> {
        let mut network = self.lock();
        if !network.add(ip, groups + 1) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let entropy = SeededEntropy::new(network.random_seed());
        let mut caps = Caps::software("sim");
        caps.max_path_mtu = network.config.path_mtu;
        drop(network);
        RoceDevice::new(Sim { network: self.clone(), ip }, groups, caps, entropy)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.network.lock().remove(self.ip);
    }
}

impl Fabric for Sim {
    const NAME: &'static str = "sim";
    type Wire = SimWire;
    type Entropy = SeededEntropy;

    fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.ip, ROCE_PORT)
    }

    fn source_ports(&self, _index: usize, _peer: IpAddr) -> &[u16] {
        &[ROCE_PORT]
    }

    fn path_mtu(&self, _peer: IpAddr) -> io::Result<u32> {
        Ok(self.network.config().path_mtu)
    }

    fn receive_buffer_bytes(&self) -> usize {
        self.network.config().receive_buffer_bytes
    }

    fn take_wire(&self, index: usize) -> Option<SimWire> {
        SimWire::open(self.network.clone(), self.ip, index)
    }

    fn give_back(&self, _index: usize, wire: SimWire) {
        drop(wire);
    }

    fn next_async(&self) -> Option<DeviceEvent> {
        self.network.lock().next_async(self.ip)
    }

    fn has_doorbells(&self) -> bool {
        false
    }
}
