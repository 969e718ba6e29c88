//! Drivers of poll groups (threads, or a test that calls each turn), and other threads.

mod acceptor_thread;
pub(crate) mod assembly;
pub(crate) mod clock;
pub(crate) mod devices;
pub(crate) mod directory_watch;
pub(crate) mod file_watch;
pub(crate) mod idle_polling;
pub(crate) mod periodic;
pub(crate) mod stepped;
pub(crate) mod threads;
pub(crate) mod turn_mark;
mod worker;
