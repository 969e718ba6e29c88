//! Networks that carry RoCE v2 packets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::random::Entropy;
use super::wire::Wire;
use crate::DeviceEvent;

/// A network that carries RoCE v2 packets, as seen by one device.
pub trait Fabric: Send + Sync + Sized + 'static {
    /// Name of the provider, for [`crate::Provider::NAME`].
    const NAME: &'static str;
    /// The sockets of one group or of the connection manager.
    type Wire: Wire;
    /// Source of the random numbers of its devices.
    type Entropy: Entropy + Send;

    /// Local IP address and UDP port of the device.
    fn endpoint(&self) -> SocketAddr;

    /// UDP source ports of the wire `index` for connections to `peer`, in the order of the wire's
    /// senders. Connections are spread over them.
    fn source_ports(&self, index: usize, peer: IpAddr) -> &[u16];

    /// The largest path MTU to `peer`, in bytes of RoCE payload.
    ///
    /// # Errors
    /// There is no route, or its MTU is too small for any RoCE packet.
    fn path_mtu(&self, peer: IpAddr) -> io::Result<u32>;

    /// Size of one wire's receive buffer in bytes, as the kernel accounts it.
    fn receive_buffer_bytes(&self) -> usize;

    /// Takes the wire with this index; `None` while it is taken, or if it does not exist.
    fn take_wire(&self, index: usize) -> Option<Self::Wire>;

    /// Returns a wire, so that it can be taken again.
    fn give_back(&self, index: usize, wire: Self::Wire);

    /// Returns the next asynchronous event of the device.
    fn next_async(&self) -> Option<DeviceEvent> {
        None
    }

    /// Whether threads sleep on file descriptors, so that mailboxes need doorbells.
    fn has_doorbells(&self) -> bool;
}
