//! Dispatch of the commands of a queue to the parts of the controller, and their completion.
//!
//! NVM commands are handled here: logical blocks of a namespace become bytes of a medium, and
//! errors of the medium NVMe status.

use std::fmt;

use nvme_proto::log::ErrorLogEntry;
use nvme_proto::nvm::{DsmRange, ReadRanges};
use nvme_proto::{
    Cid, Command as Parsed, CommandStatus, ConnectStatus, DataDirection, DataTransfer, FromBytes,
    LbaRange, NvmCommand, NvmOpcode, Sqe, Status,
};
use rdma::Time;

use super::command::{
    CommandOutcome, CommandWork, ControlCommand, ControlWork, Execution, IoKind, IoWork,
    ParsedCommand, transfer,
};
use super::queue::{Membership, Queue, QueueState};
use super::support::Support;
use super::{admin, error_log, fabrics};
use crate::backend::BackendError;
use crate::deliberate_bugs::{self, Bug};
use crate::inventory::namespace::Namespace;
use crate::inventory::published::Exports;
use crate::limits::turn::{CACHED_READ_BYTES, LISTED_RANGES};
use crate::metrics::io_counters::IoCounters;

impl Queue {
    /// Checks a submission queue entry before the data of the command is moved.
    ///
    /// # Errors
    /// The outcome with which to complete the command immediately.
    pub fn parse(&mut self, now: Time, sqe: &Sqe) -> Result<ParsedCommand, CommandOutcome> {
        let exports = self.associations.inventory().exports();
        self.parse_in(&exports, now, sqe)
    }

    /// Checks a command as [`Queue::parse`] does, with the exports that the core of the connection
    /// uses in this turn.
    ///
    /// # Errors
    /// The outcome with which to complete the command immediately.
    #[inline(always)]
    pub(crate) fn parse_in(
        &mut self,
        exports: &Exports,
        now: Time,
        sqe: &Sqe,
    ) -> Result<ParsedCommand, CommandOutcome> {
        self.link.saw_command(now);
        let parsed = match &mut self.state {
            QueueState::Live(live) if !self.qid.is_admin() && !sqe.is_fabrics() => {
                parse_io(live, exports, sqe)
            }
            _ => self.parse_control(sqe),
        };
        if let Err(outcome) = parsed
            && !outcome.status.is_success()
        {
            return Err(self.refused(now, sqe, outcome));
        }
        parsed
    }

    /// Checks a command that is no I/O command of a queue that accepts these.
    #[cold]
    fn parse_control(&mut self, sqe: &Sqe) -> Result<ParsedCommand, CommandOutcome> {
        let qid = self.qid;
        match (&mut self.state, Parsed::parse(qid, sqe)) {
            (QueueState::Connecting { .. }, parsed) => fabrics::parse_connecting(self, sqe, parsed),
            (QueueState::Live(live), Ok(Parsed::Fabrics(command))) => {
                Ok(fabrics::parse_live(qid, live, command)?)
            }
            (QueueState::Live(live), Ok(Parsed::Admin(command))) => {
                Ok(admin::parse(&live.controller, command)?)
            }
            // I/O commands of a live queue do not come here.
            (QueueState::Live(_), Ok(Parsed::Nvm(_))) => {
                Err(Status::INVALID_OPCODE.with_dnr().into())
            }
            (QueueState::Live(_), Err(status)) => Err(status.into()),
            (QueueState::Authenticating(_), parsed) => {
                Ok(fabrics::parse_authenticating(sqe, parsed)?)
            }
            (QueueState::Ended, _) => Err(Status::ABORTED_SQ_DELETION.into()),
        }
    }

    /// Executes a fabrics or admin command. `data` has the length of the command's transfer: it
    /// holds the data from the host, or is filled completely with the data for the host. May take a
    /// lock, but never waits for I/O.
    pub fn execute(
        &mut self,
        now: Time,
        cid: Cid,
        work: ControlWork,
        data: &mut [u8],
    ) -> Execution {
        let execution = match work.0 {
            ControlCommand::Fabrics(command) => fabrics::execute(self, now, cid, command, data),
            ControlCommand::Admin(command, epoch) => {
                admin::execute(self, cid, &command, epoch, data)
            }
        };
        match execution {
            Execution::Complete(outcome) if !outcome.status.is_success() => {
                let entry = error_log::of_command(self.qid, cid, outcome.status);
                let outcome = self.failed(entry, outcome);
                if matches!(self.state, QueueState::Connecting { .. }) {
                    // The next Connect may name another subsystem.
                    self.count_for(None);
                }
                Execution::Complete(outcome)
            }
            execution => execution,
        }
    }

    /// Returns the outcome of an I/O command after its storage operation: converts an error to a
    /// status, counts the command, and adds a failure to the error log.
    #[inline]
    pub fn finish_io(
        &mut self,
        cid: Cid,
        work: &IoWork,
        result: Result<(), BackendError>,
    ) -> CommandOutcome {
        match result {
            Ok(()) => {
                count(&self.counters.commands, work);
                CommandOutcome::SUCCESS
            }
            Err(error) => self.medium_failed(cid, work, error),
        }
    }

    #[cold]
    fn medium_failed(&mut self, cid: Cid, work: &IoWork, error: BackendError) -> CommandOutcome {
        if error == BackendError::Cancelled {
            return self.io_failed(cid, work, Status::ABORT_REQUESTED);
        }
        let status = status_of(error, work.kind);
        let entry = error_log::of_io(self.qid, cid, work, status);
        // Not the fault of the host, so the failure is not counted against it.
        self.log_failure(entry, status.into())
    }

    /// Returns the outcome of an I/O command that failed, but not because of its medium: the host's
    /// memory could not be accessed, an abort, Compare Failure.
    pub(crate) fn io_failed(&mut self, cid: Cid, work: &IoWork, status: Status) -> CommandOutcome {
        let entry = error_log::of_io(self.qid, cid, work, status);
        self.failed(entry, status.into())
    }

    /// Checks the ranges in the data of a Deallocate command, before the first is started.
    ///
    /// # Errors
    /// LBA Out of Range, if a range is outside the namespace; none may then be deallocated.
    pub fn check_ranges(&self, work: &IoWork, data: &[u8]) -> Result<(), Status> {
        let inside = |range: &DsmRange| {
            let end = range.slba.get().checked_add(range.length_blocks.get().into());
            end.is_some_and(|end| end <= work.size_blocks)
        };
        match ranges(data)?.iter().all(inside) {
            true => Ok(()),
            false => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
        }
    }

    /// Returns start and length in bytes of the first non-empty range after the first `passed`
    /// ones, and sets `passed` to the number of ranges up to it. The caller has checked the ranges.
    pub fn next_range(&self, work: &IoWork, data: &[u8], passed: &mut usize) -> Option<(u64, u64)> {
        let shift = work.lba_shift;
        let rest = ranges(data).ok()?.get(*passed..)?;
        let found = rest.iter().position(|range| range.length_blocks.get() > 0)?;
        *passed += found + 1;
        let range = &rest[found];
        Some((range.slba.get() << shift, u64::from(range.length_blocks.get()) << shift))
    }

    /// Counts and logs a command that was refused because of its submission queue entry.
    #[cold]
    fn refused(&mut self, now: Time, sqe: &Sqe, outcome: CommandOutcome) -> CommandOutcome {
        let (connect, command) = (ConnectStatus(outcome.status), CommandStatus(outcome.status));
        let connects = matches!(self.state, QueueState::Connecting { .. }) && sqe.is_fabrics();
        if connects {
            fabrics::report_refusal(self, now, outcome);
        }
        let status: &dyn fmt::Display = if connects { &connect } else { &command };
        tracing::debug!(peer = %self.peer, qid = %self.qid, ?sqe, %status, "command refused");
        self.failed(error_log::of_sqe(self.qid, sqe, outcome.status), outcome)
    }

    /// Counts a failed command against its host, and adds it to the error log.
    fn failed(&mut self, entry: ErrorLogEntry, outcome: CommandOutcome) -> CommandOutcome {
        self.failed += 1;
        self.log_failure(entry, outcome)
    }

    fn log_failure(&self, entry: ErrorLogEntry, outcome: CommandOutcome) -> CommandOutcome {
        self.counters.commands.failed.add(1);
        let Some(controller) = self.controller() else { return outcome };
        controller.log_error(entry);
        CommandOutcome { status: outcome.status.with_more(), ..outcome }
    }
}

/// Checks an I/O command and converts its range to bytes. `Err` is the outcome with which to
/// complete the command immediately, which is a success if there is nothing to do.
#[inline]
fn parse_io(
    live: &mut Membership,
    exports: &Exports,
    sqe: &Sqe,
) -> Result<ParsedCommand, CommandOutcome> {
    sqe.check_flags()?;
    let command = NvmCommand::parse(sqe)?;
    let controller = &live.controller;
    if !controller.is_ready_in(live.epoch) {
        return Err(controller.refusal().into());
    }
    if !live.terms.opcodes.contains(NvmOpcode(sqe.opcode)) {
        return Err(Status::INVALID_OPCODE.with_dnr().into());
    }
    let namespace = live.namespace(exports, sqe.nsid())?;
    live.terms.ana.access(namespace.ana_group)?;
    let IoPlan { kind, range, data } = IoPlan::new(live.terms.support, namespace, command)?;
    let protected = namespace.write_protected() && !deliberate_bugs::has(Bug::IgnoreWriteProtect);
    if kind.changes_medium() && protected {
        return Err(Status::NAMESPACE_IS_WRITE_PROTECTED.with_dnr().into());
    }
    let (offset_bytes, length_bytes) = match (range, &data) {
        (Some(range), _) => bytes_of(namespace, range)?,
        (None, PlannedData::Other(transfer)) if kind != IoKind::Deallocate => {
            (0, transfer.length_bytes)
        }
        (None, _) => (0, 0),
    };
    let data = match data {
        PlannedData::Range(direction) => DataTransfer { direction, length_bytes },
        PlannedData::Other(transfer) => transfer,
    };
    let transfer = transfer(data, live.terms.max_transfer_bytes)?;
    let work = IoWork {
        namespace: namespace.index,
        nsid: namespace.nsid,
        lba_shift: namespace.lba_shift,
        size_blocks: namespace.size_blocks,
        kind,
        offset_bytes,
        length_bytes,
    };
    Ok(ParsedCommand { transfer, work: CommandWork::Io(work) })
}

/// Operation, range and data of an I/O command.
struct IoPlan {
    kind: IoKind,
    range: Option<LbaRange>,
    data: PlannedData,
}

/// Data that an I/O command moves.
enum PlannedData {
    /// The blocks of its range.
    Range(DataDirection),
    Other(DataTransfer),
}

impl IoPlan {
    /// Returns the plan of a command on a namespace. `Err` is the outcome of a command with nothing
    /// to do.
    #[inline]
    fn new(
        support: Support,
        namespace: &Namespace,
        command: NvmCommand,
    ) -> Result<Self, CommandOutcome> {
        let to_host = PlannedData::Range(DataDirection::ControllerToHost);
        let from_host = PlannedData::Range(DataDirection::HostToController);
        let none = PlannedData::Other(DataTransfer::NONE);
        // A read-only medium has no unwritten data to flush.
        let commits = |fua: bool| fua && namespace.writable;
        let (kind, range, data) = match command {
            NvmCommand::Read(read) if namespace.reads_zeros => {
                (IoKind::ReadZeros, Some(read.range), to_host)
            }
            NvmCommand::Read(read) => {
                (IoKind::Read { fua: commits(read.fua) }, Some(read.range), to_host)
            }
            NvmCommand::Write(write) => {
                (IoKind::Write { fua: write.fua }, Some(write.range), from_host)
            }
            NvmCommand::Compare(compare) => {
                (IoKind::Compare { fua: commits(compare.fua) }, Some(compare.range), from_host)
            }
            NvmCommand::WriteZeroes(zeroes) => {
                let deallocate = zeroes.deallocate && support.deallocates();
                let kind = IoKind::WriteZeroes { fua: zeroes.fua, deallocate };
                (kind, Some(zeroes.range), none)
            }
            NvmCommand::ReadRanges(ReadRanges { ranges, length_bytes, .. }) => {
                let fits =
                    ranges <= LISTED_RANGES && (1..=CACHED_READ_BYTES).contains(&length_bytes);
                if !fits {
                    return Err(Status::INVALID_FIELD.with_dnr().into());
                }
                let data = PlannedData::Other(command.transfer(namespace.lba_bytes()));
                (IoKind::ReadRanges { ranges }, None, data)
            }
            NvmCommand::Flush(_) => (IoKind::Flush, None, none),
            NvmCommand::DatasetManagement(dsm) if dsm.attributes.deallocate() => {
                let list = PlannedData::Other(command.transfer(namespace.lba_bytes()));
                (IoKind::Deallocate, None, list)
            }
            // Dataset Management attributes other than Deallocate are hints, which are ignored.
            NvmCommand::DatasetManagement(_) => return Err(CommandOutcome::SUCCESS),
        };
        Ok(Self { kind, range, data })
    }
}

#[inline]
fn bytes_of(namespace: &Namespace, range: LbaRange) -> Result<(u64, u64), Status> {
    range.check(namespace.size_blocks)?;
    Ok((range.slba << namespace.lba_shift, range.length_bytes(namespace.lba_bytes())))
}

fn ranges(data: &[u8]) -> Result<&[DsmRange], Status> {
    <[DsmRange]>::ref_from_bytes(data).map_err(|_| Status::DATA_SGL_LENGTH_INVALID.with_dnr())
}

/// Converts an error of storage to an NVMe status. No other code does that.
pub(super) fn status_of(error: BackendError, kind: IoKind) -> Status {
    let medium = if kind.changes_medium() || kind == IoKind::Flush {
        Status::WRITE_FAULT
    } else {
        Status::UNRECOVERED_READ_ERROR
    };
    match error {
        BackendError::OutOfSpace(_) => Status::CAPACITY_EXCEEDED.with_dnr(),
        BackendError::Medium(_) | BackendError::Shrunk | BackendError::WriteBackFailed => {
            medium.with_dnr()
        }
        BackendError::ReadOnly(_) => Status::NAMESPACE_IS_WRITE_PROTECTED.with_dnr(),
        BackendError::Unsupported(_) => Status::INVALID_OPCODE.with_dnr(),
        BackendError::Removed => Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr(),
        BackendError::Cancelled => Status::ABORT_REQUESTED,
        BackendError::Gone(_) => Status::INTERNAL_ERROR.with_dnr(),
        BackendError::System(_) => Status::INTERNAL_ERROR,
    }
}

/// Counts an I/O command that succeeded, by its kind, with the bytes of reads and writes.
#[inline]
fn count(counters: &IoCounters, work: &IoWork) {
    match work.kind {
        IoKind::Read { .. } | IoKind::ReadZeros => {
            counters.reads.add(1);
            counters.read_bytes.add(work.length_bytes);
        }
        IoKind::ReadRanges { ranges } => {
            counters.reads.add(ranges.into());
            counters.read_bytes.add(work.length_bytes);
        }
        IoKind::Write { .. } => {
            counters.writes.add(1);
            counters.written_bytes.add(work.length_bytes);
        }
        IoKind::Flush => counters.flushes.add(1),
        IoKind::WriteZeroes { .. } => counters.write_zeroes.add(1),
        IoKind::Compare { .. } => counters.compares.add(1),
        IoKind::Deallocate => counters.deallocates.add(1),
    }
}
