//! Code shared by the software providers (soft, sim, shm): registered memory, queue pair numbers,
//! and messages between threads.

pub(crate) mod mailbox;
pub(crate) mod numbers;
pub(crate) mod place;
pub(crate) mod qp_table;
pub(crate) mod random;
pub(crate) mod regions;
pub(crate) mod section;
pub(crate) mod sync;
