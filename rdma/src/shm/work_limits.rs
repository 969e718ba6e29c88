//! The queue sizes that a queue pair is granted.

use crate::QpConfig;

const MAX_WR: u32 = 16 * 1024;
const MAX_SGE: u32 = 16;
/// Maximum inline data in bytes, as for `soft`, where it is the smallest path MTU.
const MAX_INLINE_BYTES: u32 = 256;

/// Granted queue sizes. Only `inline_bytes` may be zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkLimits {
    pub(super) send_wr: usize,
    pub(super) recv_wr: usize,
    pub(super) send_sge: usize,
    pub(super) recv_sge: usize,
    pub(super) inline_bytes: usize,
}

impl WorkLimits {
    /// The sizes granted for a requested `config`.
    pub(super) fn granted(config: &QpConfig) -> Self {
        Self {
            send_wr: config.send_wr.clamp(1, MAX_WR) as usize,
            recv_wr: config.recv_wr.clamp(1, MAX_WR) as usize,
            send_sge: config.send_sge.clamp(1, MAX_SGE) as usize,
            recv_sge: config.recv_sge.clamp(1, MAX_SGE) as usize,
            inline_bytes: config.inline_bytes.min(MAX_INLINE_BYTES) as usize,
        }
    }

    /// The sizes in the form that callers get.
    pub(super) fn config(self) -> QpConfig {
        let number = |size| u32::try_from(size).expect("limited when it was granted");
        QpConfig {
            send_wr: number(self.send_wr),
            recv_wr: number(self.recv_wr),
            send_sge: number(self.send_sge),
            recv_sge: number(self.recv_sge),
            inline_bytes: number(self.inline_bytes),
        }
    }
}
