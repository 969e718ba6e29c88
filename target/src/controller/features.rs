//! The values of the features that a host may tune.

use nvme_proto::feature::{Arbitration, AsyncEventConfig};

/// The features of one controller. None survives a reset.
#[derive(Debug)]
pub(super) struct Features {
    pub(super) arbitration: Arbitration,
    pub(super) async_events: AsyncEventConfig,
    pub(super) io_queues: u16,
}

impl Features {
    /// Defaults; every queue is granted until the host asks for fewer.
    pub(super) fn new(io_queues: u16) -> Self {
        Self {
            arbitration: Arbitration::new().with_burst(7),
            async_events: AsyncEventConfig::new(),
            io_queues,
        }
    }

    pub(super) fn io_queues(&self) -> u16 {
        self.io_queues
    }
}
