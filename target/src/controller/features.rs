//! Current values of the features that a host may set.

use nvme_proto::feature::{Arbitration, AsyncEventConfig};

/// Feature values of one controller. A controller reset restores the defaults.
#[derive(Debug)]
pub(super) struct Features {
    pub(super) arbitration: Arbitration,
    pub(super) async_events: AsyncEventConfig,
    /// Number of I/O queues granted to the host.
    pub(super) io_queues: u16,
}

impl Features {
    /// Creates the defaults. All I/O queues are granted until the host requests fewer.
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
