//! RoCE v2 reliable connections and connection management as sans-IO state machines.
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
