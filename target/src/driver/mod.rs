//! What drives poll groups: threads that sleep, or a test that steps them by hand.

pub mod assembly;
pub(crate) mod clock;
pub(crate) mod file_watch;
pub(crate) mod idle_polling;
pub mod stepped;
pub mod threads;
