//! Throughput of plain UDP sockets over loopback: the ceiling of the soft provider.
//!
//! Two threads, each on its core, with a socket that has the options of the soft provider's
//! sockets: large buffers, no fragmentation, errors reported, trains of datagrams split and joined
//! by the kernel (GSO, GRO). They only send and receive.

mod goodput;
mod ping_pong;
mod socket;

pub(crate) use goodput::{DATAGRAM_OVERHEAD_BYTES, measure as measure_goodput};
pub(crate) use ping_pong::measure as measure_ping_pong;
