//! Trace of the commands that a host sends for ranges.

use nvme_proto::{Cid, Cntlid, Nqn, Nsid, NvmOpcode, Qid, Status};

use crate::types::time::MonotonicTime;

/// Commands of ranges that were completed during a trace:
/// [`Host::start_trace`](crate::Host::start_trace).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HostTrace {
    /// Commands in the order of their responses.
    pub commands: Vec<SentCommand>,
    /// Number of commands that were completed after the trace had reached its limit.
    pub dropped: u64,
}

/// A completed command of a range. Controller, queue and command identifier are those that the
/// target knows it by as well.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SentCommand {
    /// The subsystem that it was sent to.
    pub subnqn: Nqn,
    /// Controller identifier (CNTLID) of the Connect response.
    pub cntlid: Cntlid,
    /// Identifier of the I/O queue (QID) that it was sent on.
    pub qid: Qid,
    /// Command identifier (CID), which is reused after the response.
    pub cid: Cid,
    /// The namespace that it reads or writes.
    pub nsid: Nsid,
    /// Opcode of the command: Read or Write.
    pub opcode: NvmOpcode,
    /// First byte of its blocks in the namespace.
    pub offset_bytes: u64,
    /// Length of its blocks in bytes.
    pub length_bytes: u64,
    /// Time at which its range was submitted to the host.
    pub submitted: MonotonicTime,
    /// Time at which the command was posted to its queue.
    pub sent: MonotonicTime,
    /// Time at which the host processed the response.
    pub answered: MonotonicTime,
    /// Status of the response.
    pub status: Status,
}

/// A trace that is being recorded.
#[derive(Debug)]
pub(crate) struct TraceInProgress {
    trace: HostTrace,
    limit: usize,
}

impl TraceInProgress {
    /// The most commands in a trace, since memory for all is allocated when it starts.
    pub(crate) const MAX_COMMANDS: usize = 1 << 20;

    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.min(Self::MAX_COMMANDS);
        let commands = Vec::with_capacity(limit);
        Self { trace: HostTrace { commands, dropped: 0 }, limit }
    }

    /// Records a command, or counts it as dropped if the trace is full. Does not allocate.
    pub(crate) fn add(&mut self, command: SentCommand) {
        match self.trace.commands.len() < self.limit {
            true => self.trace.commands.push(command),
            false => self.trace.dropped += 1,
        }
    }

    pub(crate) fn into_trace(self) -> HostTrace {
        self.trace
    }
}
