//! Devices of the soft provider: an endpoint and its sockets.

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

/// Bytes of a packet besides the payload: IP, UDP, the longest RoCE headers, pad and ICRC.
const OVERHEAD_BYTES: usize = 40 + 8 + 12 + 16 + 8 + 4 + 4;
/// Minimum number of the largest packets that the receive buffer should hold.
const PACKETS_IN_BUFFER: usize = 32;

/// The soft fabric of one device: its endpoint and sockets.
pub struct Soft {
    endpoint: SocketAddr,
    wires: Vec<Mutex<Option<SoftWire>>>,
    /// The UDP source ports of each wire.
    source_ports: Vec<Box<[u16]>>,
    spread_locally: bool,
    receive_buffer_bytes: usize,
    max_path_mtu: u32,
}

/// A userspace RoCE v2 device over UDP sockets.
pub type SoftDevice = RoceDevice<Soft>;

impl SoftDevice {
    /// Opens a device with all its sockets.
    ///
    /// # Errors
    /// The address or the port is not available; the text of the error has the fix.
    pub fn open(options: &SoftOptions) -> Result<Self, EndpointError> {
        let soft = Soft::open(options)?;
        let mut caps = Caps::software(format!("soft {}", soft.endpoint));
        caps.max_path_mtu = soft.max_path_mtu;
        Self::new(soft, options.groups, caps, SystemEntropy)
            .map_err(|source| EndpointError::System { what: "cannot make a device", source })
    }
}

/// The faults in the options, else those in the environment.
fn faults(options: &SoftOptions) -> Result<Option<Faults>, EndpointError> {
    if options.faults.is_some() {
        return Ok(options.faults);
    }
    let Some(text) = std::env::var_os(FAULTS_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    Ok(Some(text.to_string_lossy().parse()?))
}

/// The largest path MTU that the options, the interface MTU and the receive buffer allow.
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

impl Soft {
    fn open(options: &SoftOptions) -> Result<Self, EndpointError> {
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
        let source_ports =
            |sockets: &Sockets| sockets.senders.iter().map(|sender| sender.source.port()).collect();
        Ok(Self {
            endpoint: address,
            source_ports: endpoint.sockets.iter().map(source_ports).collect(),
            spread_locally: options.spread_locally,
            wires: (0..).zip(endpoint.sockets).map(wire).collect(),
            receive_buffer_bytes: endpoint.receive_buffer_bytes,
            max_path_mtu: largest_mtu(options, endpoint.receive_buffer_bytes),
        })
    }

    /// Whether connections to `peer` are spread over several source ports.
    fn spreads_to(&self, peer: IpAddr) -> bool {
        self.spread_locally || interface::name_of(peer).is_none()
    }
}

impl Fabric for Soft {
    const NAME: &'static str = "soft";
    type Wire = SoftWire;
    type Entropy = SystemEntropy;

    fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    fn source_ports(&self, index: usize, peer: IpAddr) -> &[u16] {
        match self.source_ports.get(index).map(AsRef::as_ref) {
            None => &[],
            Some([first, _, ..]) if !self.spreads_to(peer) => std::slice::from_ref(first),
            Some(ports) => ports,
        }
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::options::PortChoice;
    use super::super::wire::SoftWire;
    use super::*;
    use crate::roce::{SenderIndex, Wire};

    fn open(change: impl FnOnce(&mut SoftOptions)) -> Result<Soft, EndpointError> {
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::from([127, high | 1, low, 31]);
        let mut options = SoftOptions::new(address.into(), PortChoice::Roce);
        change(&mut options);
        Soft::open(&options)
    }

    fn descriptors(wire: &SoftWire) -> usize {
        SenderIndex::all().filter(|&sender| wire.sender(sender).is_some()).count()
    }

    #[test]
    fn connections_spread_over_source_ports_where_a_network_is_between() {
        let [elsewhere, here]: [IpAddr; 2] =
            ["192.0.2.1", "127.0.0.7"].map(|ip| ip.parse().unwrap());
        for (groups, asked, locally, expected, to_here) in [
            (1, None, false, 4, 1),
            (2, None, false, 4, 1),
            (4, None, false, 2, 1),
            (100, None, false, 1, 1),
            (1, Some(1), false, 1, 1),
            (16, Some(8), false, 8, 1),
            (1, None, true, 4, 4),
        ] {
            let soft = open(|options| {
                options.groups = groups;
                options.source_ports = asked;
                options.spread_locally = locally;
            });
            let soft = soft.unwrap();
            for index in 1..=groups {
                let ports = soft.source_ports(index, elsewhere);
                assert_eq!(ports.len(), expected, "{groups} groups, {asked:?} asked for");
                assert_eq!(soft.source_ports(index, here), &ports[..to_here]);
                assert_eq!(descriptors(&soft.take_wire(index).unwrap()), expected);
            }
            assert_eq!(soft.source_ports(0, elsewhere).len(), 1, "management has one");
        }
    }

    #[test]
    fn an_endpoint_at_another_port_sends_from_there() {
        let soft = open(|options| {
            options.port = PortChoice::Ephemeral;
            options.spread_locally = true;
        });
        let soft = soft.unwrap();
        let port = soft.endpoint().port();
        assert_eq!(soft.source_ports(1, soft.endpoint().ip()), &[port]);
        assert_eq!(descriptors(&soft.take_wire(1).unwrap()), 0);
    }

    #[test]
    fn a_group_has_one_to_eight_source_ports() {
        for count in [0, 9] {
            let error = open(|options| options.source_ports = Some(count)).err();
            assert!(matches!(error, Some(EndpointError::SourcePorts(refused)) if refused == count));
        }
    }
}
