//! Harness of the end-to-end tests.
//!
//! [`process`] runs the real binaries as processes on loopback addresses of their own.

pub mod process;
