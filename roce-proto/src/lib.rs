//! RoCE v2 reliable connections and connection management as sans-IO state machines.
//!
//! [`wire`] parses and encodes packets, [`rc`] is the queue pair, and [`cm`] the connection
//! manager. The caller passes in received packets and the time, and sends the packets that are
//! returned.
//!
//! Not implemented: transport services other than reliable connection (UD carries only the
//! datagrams of [`cm`]), shared receive queues, atomics, sending immediate data, end-to-end
//! credits, automatic path migration, service id resolution (SIDR), InfiniBand links and RoCE v1.
//! The caller checks memory keys, bounds and access rights, by its implementation of
//! [`rc::Memory`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod cm;
#[doc(hidden)]
pub mod deliberate_bugs;
mod path_mtu;
mod psn;
mod qpn;
pub mod rc;
mod time;
pub mod wire;

pub use path_mtu::PathMtu;
pub use psn::Psn;
pub use qpn::Qpn;
pub use time::Time;
