//! Recording of completed commands into a trace.

use nvme_proto::{Cqe, NvmOpcode, Qid};

use crate::engine::HostEngine;
use crate::engine::arena::ControllerKey;
use crate::engine::range_queues::{BlockStage, RangeCommand};
use crate::types::host_trace::{SentCommand, TraceInProgress};
use crate::types::time::MonotonicTime;

impl HostEngine {
    /// Adds a completed command of a range to the trace.
    #[cold]
    pub(crate) fn trace_piece(
        &self,
        (key, qid): (ControllerKey, Qid),
        piece: &RangeCommand,
        cqe: &Cqe,
        trace: &mut TraceInProgress,
    ) {
        let (op, controller) = (&self.ops[piece.op], &self.controllers[key]);
        let attached = &controller.namespaces[op.namespace];
        let block_bytes = attached.geometry.block_bytes();
        let writes = op.is_write() && piece.stage == BlockStage::Transfer;
        let (opcode, offset_bytes, length_bytes) = match piece.stage {
            BlockStage::List => (NvmOpcode::READ_RANGES, piece.start, piece.step.length_bytes),
            BlockStage::Transfer | BlockStage::Fetch => (
                if writes { NvmOpcode::WRITE } else { NvmOpcode::READ },
                piece.step.slba * block_bytes,
                u64::from(piece.step.blocks) * block_bytes,
            ),
        };
        trace.add(SentCommand {
            subnqn: controller.target.nqn,
            cntlid: controller.session.limits.cntlid,
            qid,
            cid: cqe.cid(),
            nsid: attached.nsid,
            opcode,
            offset_bytes,
            length_bytes,
            submitted: MonotonicTime::of(op.submitted),
            sent: MonotonicTime::of(piece.sent),
            answered: MonotonicTime::of(self.clock),
            status: cqe.status(),
        });
    }
}
