//! Harness of the end-to-end tests.
//!
//! [`process`] runs the real binaries as processes on loopback addresses of their own.
//! [`world`] runs targets and hosts on a simulated network in one thread.

pub mod process;
pub mod world;
