//! Parts that the providers without a device share: registered memory, queue pair numbers, and
//! messages between their threads.

pub(crate) mod mailbox;
pub(crate) mod numbers;
pub(crate) mod place;
pub(crate) mod qp_table;
pub(crate) mod random;
pub(crate) mod regions;
pub(crate) mod section;
pub(crate) mod sync;
