//! Error Information log: failed commands, newest first (Base, 5.1.12.1.2).

use std::collections::VecDeque;
use std::sync::Arc;

use nvme_proto::log::{ErrorLogEntry, TransportType};
use nvme_proto::{Cid, FromZeros, Qid, Sqe, Status, U16, U32, U64};

use super::command::IoWork;
use crate::limits::ERROR_LOG_ENTRIES;
use crate::metrics::error_counts::ErrorCounts;

/// Error Information log of one controller.
#[derive(Debug)]
pub(super) struct ErrorLog {
    /// Newest first, at most [`ERROR_LOG_ENTRIES`].
    entries: VecDeque<ErrorLogEntry>,
    counts: Arc<ErrorCounts>,
}

impl ErrorLog {
    /// An empty log of a controller whose errors are counted in `counts`.
    pub(super) fn new(counts: Arc<ErrorCounts>) -> Self {
        Self { entries: VecDeque::new(), counts }
    }

    pub(super) fn push(&mut self, mut entry: ErrorLogEntry) {
        entry.error_count = U64::new(self.counts.add(entry.status()));
        self.entries.truncate(ERROR_LOG_ENTRIES - 1);
        self.entries.push_front(entry);
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &ErrorLogEntry> {
        self.entries.iter()
    }
}

/// Returns the entry for a command refused because of its submission queue entry.
pub(super) fn of_sqe(qid: Qid, sqe: &Sqe, status: Status) -> ErrorLogEntry {
    let mut entry = of_command(qid, sqe.cid(), status);
    entry.opcode = sqe.opcode;
    entry.parameter_location = location(status);
    if !sqe.is_fabrics() {
        entry.nsid = sqe.nsid;
    }
    if !qid.is_admin() {
        entry.lba = U64::new(u64::from(sqe.cdw10.get()) | u64::from(sqe.cdw11.get()) << 32);
    }
    entry
}

/// Returns the entry for a command that failed during execution.
pub(super) fn of_command(qid: Qid, cid: Cid, status: Status) -> ErrorLogEntry {
    let mut entry = ErrorLogEntry::new_zeroed();
    entry.sqid = U16::new(qid.0);
    entry.cid = U16::new(cid.0);
    entry.set_status(status);
    entry.parameter_location = ErrorLogEntry::NO_LOCATION;
    entry.trtype = TransportType::RDMA.0;
    entry
}

/// Returns the entry for an I/O command that failed during execution.
pub(super) fn of_io(qid: Qid, cid: Cid, work: &IoWork, status: Status) -> ErrorLogEntry {
    let mut entry = of_command(qid, cid, status);
    entry.nsid = U32::new(work.nsid.0);
    entry.lba = U64::new(work.offset_bytes >> work.lba_shift);
    entry
}

/// Returns the Parameter Error Location: the byte of the submission queue entry that caused a
/// status, if the status implies one.
fn location(status: Status) -> U16 {
    let about = |codes: &[Status]| codes.iter().any(|code| code.is(status));
    if about(&[Status::INVALID_OPCODE]) {
        U16::new(0)
    } else if about(&[Status::INVALID_NAMESPACE_OR_FORMAT, Status::NAMESPACE_IS_WRITE_PROTECTED]) {
        U16::new(4)
    } else if about(&[Status::LBA_OUT_OF_RANGE]) {
        U16::new(40)
    } else {
        ErrorLogEntry::NO_LOCATION
    }
}
