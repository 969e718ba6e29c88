//! The `shm` provider: peers on one machine that communicate through shared memory.
//!
//! A listener is a Unix socket that is named after its address. Over it the ends of a connection
//! check each other's credentials, and the active end passes the passive one a sealed memfd with
//! two rings per direction: one for requests and one for answers. The side that owns a region does
//! all copying from and to it, when it processes a record, and checks key, bounds and access as any
//! responder does. So the shared memory holds only messages, and a peer that writes invalid ones
//! loses its own connection.

mod agreement;
mod cm;
mod copies;
mod device;
mod group;
mod link;
mod link_watch;
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

/// Checks, without blocking, whether a process of our user or of root listens at an address.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if no process listens, [`io::ErrorKind::PermissionDenied`]
/// if the listener runs as another user, [`io::ErrorKind::WouldBlock`] if its backlog is full, else
/// the error of the system call.
pub fn probe(address: SocketAddr) -> io::Result<()> {
    socket::probe(address)
}
