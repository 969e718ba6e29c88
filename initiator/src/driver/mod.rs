//! The threads that turn the engines; the only part of the crate that waits or reads a clock.
//!
//! A caller that waits for a result drives: it turns the engines, and sleeps on their descriptors
//! in between. If several wait, one sleeps on the descriptors and wakes the others. A caller that
//! has waited long leaves the descriptors to those with short waits, each of whose results would
//! wake it first. While no caller waits, a thread of the host drives.

mod auth_workers;
mod caller;
mod clock;
mod compute;
pub(crate) mod foreign_code;
pub(crate) mod host_state;
pub(crate) mod numa;
mod parker;
pub(crate) mod process;
pub(crate) mod provider;
mod random;
mod shared;
mod sleepers;
mod state;
mod turn_taking;
pub(crate) mod wake_flag;

pub(crate) use self::clock::system_now;
pub(crate) use self::random::fill_random;
pub(crate) use self::shared::SharedEngines;
pub(crate) use self::state::DriverState;
