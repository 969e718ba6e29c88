//! A trace of the commands of a host.

use nvme_proto::{Cid, Cntlid, Nqn, Nsid, NvmOpcode, Qid, Status};

use crate::types::time::MonotonicTime;

/// The commands of ranges that were answered while a trace was taken:
/// [`Host::start_trace`](crate::Host::start_trace).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HostTrace {
    /// Commands in the order of their answers.
    pub commands: Vec<SentCommand>,
    /// Commands that were answered when there were as many as were asked for.
    pub dropped: u64,
}

/// A command of a range that was answered. Controller, queue and command identifier say which it
/// is, to a target as well.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SentCommand {
    /// The subsystem that it was sent to.
    pub subnqn: Nqn,
    /// The controller id that Connect was answered with.
    pub cntlid: Cntlid,
    /// The queue that it was sent on.
    pub qid: Qid,
    /// The command identifier, which is used again once it is answered.
    pub cid: Cid,
    /// The namespace that it reads or writes.
    pub nsid: Nsid,
    /// Read or Write, as it was sent.
    pub opcode: NvmOpcode,
    /// First byte in the namespace.
    pub offset_bytes: u64,
    /// Bytes of the blocks that it covers.
    pub length_bytes: u64,
    /// When its range came to the host.
    pub submitted: MonotonicTime,
    /// When it was handed to its queue.
    pub sent: MonotonicTime,
    /// When its answer was there.
    pub answered: MonotonicTime,
    /// Status that the target answered with.
    pub status: Status,
}

/// A trace that is being taken.
#[derive(Debug)]
pub(crate) struct TraceInProgress {
    trace: HostTrace,
    limit: usize,
}

impl TraceInProgress {
    /// The most commands of a trace: their room is allocated before the first.
    pub(crate) const MAX_COMMANDS: usize = 1 << 20;

    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.min(Self::MAX_COMMANDS);
        let commands = Vec::with_capacity(limit);
        Self { trace: HostTrace { commands, dropped: 0 }, limit }
    }

    /// Takes down a command, if there is room. Allocates nothing.
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
