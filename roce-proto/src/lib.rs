//! RoCE v2 reliable connections and connection management as sans-IO state machines.
//!
//! [`wire`] has the bytes of packets, [`rc`] the queue pair, and [`cm`] the connection manager.
//! The caller hands over received packets and the time, and sends what the state machines return.
//!
//! Not implemented: other services than reliable connections (UD carries the datagrams of [`cm`]
//! only), shared receive queues, atomics, sending immediate data, end-to-end credits, automatic
//! path migration, service id resolution (SIDR), InfiniBand links and RoCE v1. Memory keys, bounds
//! and access rights are the caller's, who implements [`rc::Memory`].
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
