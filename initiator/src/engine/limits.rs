//! Limits of a controller.

use nvme_proto::Cntlid;

/// Limits of a controller on its current connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ControllerLimits {
    /// Controller identifier (CNTLID), assigned in the Connect response.
    pub cntlid: Cntlid,
    /// Number of connected I/O queues.
    pub io_queues: u16,
    /// Commands that may be in flight on an I/O queue.
    pub queue_depth: u16,
    /// Most bytes that a command transfers.
    pub max_transfer_bytes: u64,
    /// Most bytes of data in an I/O command capsule.
    pub in_capsule_bytes: u32,
    /// Whether the controller has a volatile write cache, without which Flush has no effect.
    pub volatile_write_cache: bool,
    /// Command Quiesce Time (CQT) in milliseconds, 0 if it is not reported: how long writes may
    /// still be executed after the target has detected the loss of this host.
    pub command_quiesce_ms: u16,
    /// Maximum Outstanding Commands (MAXCMD) of a queue.
    pub(crate) max_commands: u16,
}

impl ControllerLimits {
    /// Limits of a controller before it is identified.
    pub(crate) const NONE: Self = Self {
        cntlid: Cntlid::DYNAMIC,
        io_queues: 0,
        queue_depth: 0,
        max_transfer_bytes: 4096,
        in_capsule_bytes: 0,
        volatile_write_cache: false,
        command_quiesce_ms: 0,
        max_commands: u16::MAX,
    };
}
