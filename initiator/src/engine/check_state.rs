//! State of the checks whether namespaces are still those that were opened.

use std::collections::VecDeque;
use std::time::Duration;

use nvme_proto::feature::AsyncEventConfig;
use rdma::Time;

use crate::engine::arena::NamespaceKey;
use crate::engine::change_count::ChangeCount;
use crate::engine::earliest;
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::path_access::AnaTable;
use crate::engine::results::Outbox;
use crate::memory::bounce::BounceChunk;

/// State of the check that a namespace still has its identity and format.
#[derive(Debug, Default)]
pub(crate) enum Check {
    /// No check is necessary.
    #[default]
    Passed,
    /// The namespace waits for its check.
    Due,
    /// Identify Namespace is in flight. `stale`: another change was reported since it was sent.
    Namespace { stale: bool },
    /// Identify Namespace succeeded, and Identify for the Namespace Identification Descriptors is
    /// in flight.
    Descriptors { stale: bool, identity: Box<NamespaceIdentity> },
}

impl Check {
    pub(crate) fn is_passed(&self) -> bool {
        matches!(self, Self::Passed)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self, Self::Namespace { .. } | Self::Descriptors { .. })
    }
}

/// State of the checks of a controller's namespaces.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Asynchronous Events that the host enables: those that it uses and the controller supports.
    pub(crate) notices: AsyncEventConfig,
    /// States of the ANA groups; `None` if the controller does not report them.
    pub(crate) ana: Option<AnaTable>,
    /// Count of changes of the Discovery Log Page.
    pub(crate) log_changes: ChangeCount,
    /// Count of changes of the namespaces.
    pub(crate) namespace_changes: ChangeCount,
    /// Namespaces that wait for their check; they may have been removed since.
    pub(crate) due: VecDeque<NamespaceKey>,
    /// Number of commands in flight.
    pub(crate) under_way: usize,
    /// Whether the Changed Namespace List must be read.
    pub(crate) reads_list: bool,
    /// Whether the ANA log page must be read.
    pub(crate) reads_ana: bool,
    /// Time of the next read of the ANA log page, while ranges wait for another state.
    pub(crate) ana_again: Option<Time>,
    /// Time at which the last command was sent or completed.
    pub(crate) progress: Time,
    /// Whether a change must be counted when the checks are done.
    pub(crate) has_news: bool,
}

impl Checks {
    /// Returns whether commands of checks are in flight.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Counts a change of the namespaces when all checks are done.
    pub(crate) fn tell_of_changes(&mut self, outbox: &mut Outbox) {
        if self.has_news && self.under_way == 0 && self.due.is_empty() {
            self.has_news = false;
            self.namespace_changes.note(outbox);
        }
    }

    /// Schedules another read of the ANA log page while ranges wait for another state: an event may
    /// be lost.
    pub(crate) fn ask_again_for_access(&mut self, now: Time) {
        if self.ana_again.is_some_and(|time| time <= now) {
            self.ana_again = None;
            self.reads_ana = true;
        }
    }

    /// Returns when the next action for checks is due. A response may take as long as `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Option<Time> {
        earliest(self.deadline(timeout), self.ana_again)
    }

    /// Returns when the response to a command of a check is overdue.
    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Time> {
        self.are_under_way().then(|| self.progress + timeout)
    }

    /// Discards what must be read, after the connection was lost.
    pub(crate) fn forget(&mut self) {
        self.due.clear();
        self.reads_list = false;
        self.reads_ana = false;
        self.ana_again = None;
    }
}

/// A command of the checks, in flight.
#[derive(Debug)]
pub(crate) struct CheckTask {
    pub(crate) question: CheckQuestion,
    /// Bounce chunk for the data of the response.
    pub(crate) chunk: BounceChunk,
}

/// Data that a command of the checks reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckQuestion {
    /// Identity of this namespace.
    Identify { namespace: NamespaceKey },
    /// Log page with the Changed Namespace List.
    ChangedList,
    /// ANA log page, with the states of groups.
    AnaLog,
}
