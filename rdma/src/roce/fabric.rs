//! Networks that carry RoCE v2 packets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::random::Entropy;
use super::wire::Wire;
use crate::DeviceEvent;

/// A network that carries RoCE v2 packets, as seen by one device.
pub trait Fabric: Send + Sync + Sized + 'static {
    /// The provider's name, as [`crate::Provider::NAME`].
    const NAME: &'static str;
    /// A way in and out.
    type Wire: Wire;
    /// Where the random numbers of its devices come from.
    type Entropy: Entropy + Send;

    /// Our address and RoCE port.
    fn endpoint(&self) -> SocketAddr;

    /// The UDP source ports of the senders of the wire with this index over which connections to
    /// `peer` are to be spread, from the first sender on.
    fn source_ports(&self, index: usize, peer: IpAddr) -> &[u16];

    /// The largest path MTU to `peer`, in bytes of payload.
    ///
    /// # Errors
    /// No route leads there, or it takes no RoCE packet.
    fn path_mtu(&self, peer: IpAddr) -> io::Result<u32>;

    /// The capacity of one wire's receive buffer, in bytes, overhead included.
    fn receive_buffer_bytes(&self) -> usize;

    /// The wire with this index; `None` while it is taken, or if it does not exist.
    fn take_wire(&self, index: usize) -> Option<Self::Wire>;

    /// Takes a wire back.
    fn give_back(&self, index: usize, wire: Self::Wire);

    /// The next event of the device as a whole.
    fn next_async(&self) -> Option<DeviceEvent> {
        None
    }

    /// Whether threads sleep on file descriptors, so that messages between them must wake.
    fn has_doorbells(&self) -> bool;
}
