//! Dispatch of the commands of a queue to the parts of the controller, and their completion.

use std::fmt;

use nvme_proto::log::ErrorLogEntry;
use nvme_proto::{Cid, Command as Parsed, CommandStatus, ConnectStatus, Sqe, Status};
use rdma::Time;

use super::command::{
    CommandOutcome, ControlCommand, ControlWork, Execution, IoWork, ParsedCommand,
};
use super::queue::{Queue, QueueState};
use super::{admin, error_log, fabrics, io};
use crate::backend::BackendError;
use crate::inventory::published::Exports;

impl Queue {
    /// Checks a submission queue entry before the data of the command is moved.
    ///
    /// # Errors
    /// The outcome with which to complete the command immediately.
    pub fn parse(&mut self, now: Time, sqe: &Sqe) -> Result<ParsedCommand, CommandOutcome> {
        let exports = self.associations.registry().exports();
        self.parse_in(&exports, now, sqe)
    }

    /// Checks a command as [`Queue::parse`] does, with the exports that the core of the connection
    /// uses in this turn.
    ///
    /// # Errors
    /// The outcome with which to complete the command immediately.
    pub(crate) fn parse_in(
        &mut self,
        exports: &Exports,
        now: Time,
        sqe: &Sqe,
    ) -> Result<ParsedCommand, CommandOutcome> {
        self.link.saw_command(now);
        self.parse_in_state(exports, sqe).map_err(|outcome| match outcome.status.is_success() {
            true => outcome,
            false => self.refused(now, sqe, outcome),
        })
    }

    fn parse_in_state(
        &mut self,
        exports: &Exports,
        sqe: &Sqe,
    ) -> Result<ParsedCommand, CommandOutcome> {
        let qid = self.qid;
        match (&mut self.state, Parsed::parse(qid, sqe)) {
            (QueueState::Connecting { .. }, parsed) => fabrics::parse_connecting(self, sqe, parsed),
            (QueueState::Live(live), Ok(Parsed::Nvm(command))) => {
                io::parse(live, exports, &command)
            }
            (QueueState::Live(_), Ok(Parsed::Fabrics(command))) => {
                Ok(fabrics::parse_live(qid, command)?)
            }
            (QueueState::Live(live), Ok(Parsed::Admin(command))) => {
                Ok(admin::parse(&live.controller, command)?)
            }
            (QueueState::Live(_), Err(status)) => Err(status.into()),
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
                if !self.is_live() {
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
    pub fn finish_io(
        &mut self,
        cid: Cid,
        work: &IoWork,
        result: Result<(), BackendError>,
    ) -> CommandOutcome {
        match result {
            Ok(()) => {
                io::count(&self.counters.commands, work);
                CommandOutcome::SUCCESS
            }
            Err(BackendError::Cancelled) => self.io_failed(cid, work, Status::ABORT_REQUESTED),
            Err(error) => {
                let status = io::status_of(error, work.kind);
                let entry = error_log::of_io(self.qid, cid, work, status);
                // Not the fault of the host, so the failure is not counted against it.
                self.log_failure(entry, status.into())
            }
        }
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
        io::check_ranges(work, data)
    }

    /// Returns start and length in bytes of the first non-empty range after the first `passed`
    /// ones, and sets `passed` to the number of ranges up to it. The caller has checked the ranges.
    pub fn next_range(&self, work: &IoWork, data: &[u8], passed: &mut usize) -> Option<(u64, u64)> {
        io::next_range(work, data, passed)
    }

    /// Counts and logs a command that was refused because of its submission queue entry.
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
