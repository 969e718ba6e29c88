//! The throughput of plain UDP sockets over loopback: the ceiling of the soft provider.
//!
//! Two threads, each on its core and with one socket that has the options of the soft provider's:
//! large buffers, no fragments, errors reported, trains of datagrams cut and joined by the kernel.
//! They do nothing but send and receive.

mod goodput;
mod ping_pong;
mod socket;

pub(crate) use goodput::{DATAGRAM_OVERHEAD_BYTES, measure as measure_goodput};
pub(crate) use ping_pong::measure as measure_ping_pong;
