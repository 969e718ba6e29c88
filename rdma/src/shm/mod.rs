//! The `shm` provider: peers on one machine, by memory that they share.
//!
//! A listener is a Unix socket that is named after its address. Over it the ends of a connection
//! learn each other's user, and the active end passes the passive one a sealed memfd with two rings
//! for each direction: one for requests and one for what answers them. The side that owns a region
//! does all copying to and from it, when it takes up a record, and checks keys, bounds and rights
//! as any responder does. So the memory that peers share holds nothing but messages, and a peer
//! that writes nonsense into it costs itself its connection.

mod agreement;
mod cm;
mod copies;
mod device;
mod group;
mod link;
mod mapping;
mod message;
mod news_count;
mod queue_pair;
mod receive_queue;
mod record;
mod requester;
mod responder;
mod ring;
mod send_queue;
mod shared;
mod shared_word;
mod sleep_word;
mod socket;
mod trust;
mod turn;
mod work_limits;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;

pub use cm::ShmCm;
pub use group::{ShmGroup, ShmGroupHandle, ShmNewQp};
pub use shared::{Shm, ShmDevice, ShmOptions};
pub use trust::{SharingGroup, SharingGroupError};

/// Looks whether a process of our user or of root listens at an address, without waiting.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] when none does, [`io::ErrorKind::PermissionDenied`] when
/// the listener is somebody else's, [`io::ErrorKind::WouldBlock`] when it accepts nothing at
/// present, else the error of the system call.
pub fn probe(address: SocketAddr) -> io::Result<()> {
    socket::probe(address)
}
