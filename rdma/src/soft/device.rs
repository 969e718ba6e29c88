//! Devices of the soft provider: one endpoint and its sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use roce_proto::PathMtu;

use super::faults::{FAULTS_VARIABLE, Faults, Filter};
use super::options::{EndpointError, SoftOptions};
use super::socket::{self, Sockets};
use super::wire::SoftWire;
use crate::Caps;
use crate::interface;
use crate::roce::{Entropy, Fabric, RoceDevice, SystemEntropy};

/// IP, UDP and the longest RoCE headers with pad and CRC: what a path MTU comes on top of.
const OVERHEAD_BYTES: usize = 40 + 8 + 12 + 16 + 8 + 4 + 4;
/// A receive buffer should hold this many of the largest packets.
const PACKETS_IN_BUFFER: usize = 32;

/// The soft provider, as seen by one device: an endpoint and its sockets.
pub struct Soft {
    endpoint: SocketAddr,
    wires: Vec<Mutex<Option<SoftWire>>>,
    /// The UDP source port of each wire, by wire index.
    source_ports: Vec<u16>,
    receive_buffer_bytes: usize,
    max_path_mtu: u32,
}

/// A userspace RoCE v2 device on UDP sockets.
pub type SoftDevice = RoceDevice<Soft>;

impl SoftDevice {
    /// Opens an endpoint: all its sockets, at once.
    ///
    /// # Errors
    /// The address or the port can not be had; the text says what to do.
    pub fn open(options: &SoftOptions) -> Result<Self, EndpointError> {
        let mut ports = SystemEntropy
            .stream()
            .map_err(|source| EndpointError::System { what: "no random numbers", source })?;
        let faults = faults(options)?;
        let endpoint = socket::open(options, &mut ports)?;
        let address = endpoint.address;
        if let Some(faults) = faults {
            tracing::warn!(endpoint = %address, %faults, "packets are mistreated on purpose");
        }
        let wire = |(index, sockets)| {
            let filter = faults.map(|faults| Filter::new(faults, index));
            Mutex::new(Some(SoftWire::new(sockets, address, filter)))
        };
        let source_port = |sockets: &Sockets| sockets.source(address).port();
        let soft = Soft {
            endpoint: address,
            source_ports: endpoint.sockets.iter().map(source_port).collect(),
            wires: (0..).zip(endpoint.sockets).map(wire).collect(),
            receive_buffer_bytes: endpoint.receive_buffer_bytes,
            max_path_mtu: largest_mtu(options, endpoint.receive_buffer_bytes),
        };
        let mut caps = Caps::software(format!("soft {address}"));
        caps.max_path_mtu = soft.max_path_mtu;
        Self::new(soft, options.groups, caps, SystemEntropy)
            .map_err(|source| EndpointError::System { what: "cannot make a device", source })
    }
}

/// The faults that the options ask for, else the environment.
fn faults(options: &SoftOptions) -> Result<Option<Faults>, EndpointError> {
    if options.faults.is_some() {
        return Ok(options.faults);
    }
    let Some(text) = std::env::var_os(FAULTS_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    Ok(Some(text.to_string_lossy().parse()?))
}

/// The largest path MTU that the options, the interface and the receive buffer allow.
fn largest_mtu(options: &SoftOptions, receive_buffer_bytes: usize) -> u32 {
    let limit = options.max_path_mtu.map_or(usize::MAX, |limit| limit as usize);
    let interface = interface::mtu_of(options.address).unwrap_or(usize::MAX);
    let fits = |mtu: &PathMtu| {
        let packet = mtu.bytes() + OVERHEAD_BYTES;
        mtu.bytes() <= limit
            && packet <= interface
            && packet * PACKETS_IN_BUFFER <= receive_buffer_bytes
    };
    length_of(PathMtu::ALL.into_iter().rev().find(fits).unwrap_or(PathMtu::Bytes256))
}

fn length_of(mtu: PathMtu) -> u32 {
    u32::try_from(mtu.bytes()).expect("at most 4,096")
}

impl Fabric for Soft {
    const NAME: &'static str = "soft";
    type Wire = SoftWire;
    type Entropy = SystemEntropy;

    fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    fn source_port(&self, index: usize) -> Option<u16> {
        self.source_ports.get(index).copied()
    }

    fn path_mtu(&self, peer: IpAddr) -> io::Result<u32> {
        let route = socket::route_mtu(self.endpoint.ip(), peer)?;
        let room = route.saturating_sub(OVERHEAD_BYTES).min(self.max_path_mtu as usize);
        PathMtu::largest_within(room).map(length_of).ok_or_else(|| {
            io::Error::other(format!("the route to {peer} takes only {route} bytes per packet"))
        })
    }

    fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    fn take_wire(&self, index: usize) -> Option<SoftWire> {
        self.wires.get(index)?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn give_back(&self, index: usize, wire: SoftWire) {
        *self.wires[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(wire);
    }

    fn has_doorbells(&self) -> bool {
        true
    }
}
