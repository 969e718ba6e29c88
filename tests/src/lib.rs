//! Harness of the end-to-end tests.
//!
//! [`checkpoint_content`] has the bytes of checkpoints that are saved and compared.
//! [`hostile`] has peers that break the rules, for either side.
//! [`process`] runs the real binaries as processes on loopback addresses of their own.
//! [`world`] runs targets and hosts on a simulated network in one thread.

pub mod checkpoint_content;
pub mod hostile;
pub mod process;
pub mod world;
