//! Commands of callers other than reads and writes of ranges, and those that wait.

use std::collections::VecDeque;
use std::mem;

use nvme_proto::{NvmOpcode, Sqe};
use rdma::Time;

use crate::engine::arena::NamespaceKey;
use crate::engine::earliest;
use crate::engine::reply::Promise;

/// A command that does not belong to a range, with at most a bounce chunk of data.
pub(crate) struct Raw {
    pub(crate) sqe: Sqe,
    pub(crate) data: RawData,
    pub(crate) queue: QueueKind,
    /// Open namespace that it is for; it fails once that namespace was replaced.
    pub(crate) namespace: Option<NamespaceKey>,
    /// Set when the engine takes it.
    pub(crate) deadline: Time,
    /// Whether it has no side effects, so that it is sent again if its connection is lost.
    pub(crate) repeatable: bool,
    /// Whether it may change state that others can see, so that a lost one is fenced.
    pub(crate) alters: bool,
    pub(crate) promise: Promise<RawReply>,
}

impl Raw {
    /// Returns a command that is sent once, and is not for an open namespace.
    pub(crate) fn new(
        sqe: Sqe,
        data: RawData,
        queue: QueueKind,
        promise: Promise<RawReply>,
    ) -> Self {
        let (namespace, deadline) = (None, Time::ZERO);
        let alters = queue == QueueKind::Admin || !only_asks(NvmOpcode(sqe.opcode));
        Self { sqe, data, queue, namespace, deadline, repeatable: false, alters, promise }
    }
}

/// Data of a [`Raw`] command; `length` is in bytes.
#[derive(Clone)]
pub(crate) enum RawData {
    None,
    ToController(Vec<u8>),
    ToHost { length: u32 },
}

impl RawData {
    pub(crate) fn length(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::ToController(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::ToHost { length } => *length,
        }
    }
}

/// Kind of queue on which a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Admin,
    Io,
}

/// Response to a successful [`Raw`] command.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

/// Commands of a controller that were not sent yet.
#[derive(Default)]
pub(crate) struct RawQueue {
    /// Commands in the order in which they are sent.
    pub(crate) waiting: VecDeque<Raw>,
    /// Commands that wait for the check of their namespace, or for a fence.
    unchecked: VecDeque<Raw>,
    /// Time before which no command expires, sent or not.
    pub(crate) expiry: Option<Time>,
}

impl RawQueue {
    /// Adds a command whose deadline is set, as the last in line.
    pub(crate) fn push(&mut self, raw: Raw) {
        self.expiry = earliest(self.expiry, Some(raw.deadline));
        self.waiting.push_back(raw);
    }

    /// Adds a command that was lost with its connection, as the first in line.
    pub(crate) fn push_again(&mut self, raw: Raw) {
        self.expiry = earliest(self.expiry, Some(raw.deadline));
        self.waiting.push_front(raw);
    }

    /// Sets the first command aside until [`RawQueue::resume`] or [`RawQueue::resume_of`].
    pub(crate) fn set_aside(&mut self) {
        self.unchecked.extend(self.waiting.pop_front());
    }

    /// Queues the commands that were set aside; false if there were none.
    pub(crate) fn resume(&mut self) -> bool {
        let has_unchecked = !self.unchecked.is_empty();
        self.waiting.extend(self.unchecked.drain(..));
        has_unchecked
    }

    /// Queues the commands for a namespace that were set aside.
    pub(crate) fn resume_of(&mut self, namespace: NamespaceKey) {
        let (ready, unchecked): (VecDeque<Raw>, VecDeque<Raw>) = mem::take(&mut self.unchecked)
            .into_iter()
            .partition(|raw| raw.namespace == Some(namespace));
        self.waiting.extend(ready);
        self.unchecked = unchecked;
    }

    /// Returns the commands that wait, whether set aside or not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Raw> {
        self.waiting.iter().chain(&self.unchecked)
    }

    /// Removes and returns the commands that wait, whether set aside or not.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Raw> + use<> {
        let Self { waiting, unchecked, .. } = mem::take(self);
        waiting.into_iter().chain(unchecked)
    }

    /// Removes and returns the commands whose deadline has passed.
    pub(crate) fn take_expired(&mut self, now: Time) -> Vec<Raw> {
        let mut expired = Vec::new();
        for list in [&mut self.waiting, &mut self.unchecked] {
            let (over, waiting): (VecDeque<Raw>, VecDeque<Raw>) =
                mem::take(list).into_iter().partition(|raw| raw.deadline <= now);
            *list = waiting;
            expired.extend(over);
        }
        expired
    }
}

/// Returns whether a command changes no data, so that it needs no fence.
fn only_asks(opcode: NvmOpcode) -> bool {
    matches!(opcode, NvmOpcode::FLUSH | NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY)
}
