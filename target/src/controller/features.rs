//! Values of the features that a host may set.

use nvme_proto::feature::{Arbitration, AsyncEventConfig};

/// Features of one controller. A reset restores the defaults.
#[derive(Debug)]
pub(super) struct Features {
    pub(super) arbitration: Arbitration,
    pub(super) async_events: AsyncEventConfig,
    pub(super) io_queues: u16,
}

impl Features {
    /// Defaults; all I/O queues are granted until the host asks for fewer.
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
