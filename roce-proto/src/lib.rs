//! RoCE v2 reliable connections and connection management as sans-IO state machines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod path_mtu;
mod time;

pub use path_mtu::PathMtu;
pub use time::Time;
