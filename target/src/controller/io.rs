//! NVM commands: converts logical blocks of a namespace to bytes of a medium, and errors of the
//! medium to NVMe status.

use nvme_proto::nvm::DsmRange;
use nvme_proto::{FromBytes, LbaRange, NvmCommand, Status};

use super::command::{CommandOutcome, CommandWork, IoKind, IoWork, ParsedCommand, transfer};
use super::queue::Live;
use super::support::Support;
use crate::backend::BackendError;
use crate::deliberate_bugs::{self, Bug};
use crate::inventory::namespace::Namespace;
use crate::inventory::published::Exports;
use crate::metrics::io_counters::IoCounters;

/// Checks an I/O command and converts its range to bytes. `Err` is the outcome with which to
/// complete the command immediately, which is a success if there is nothing to do.
pub(super) fn parse(
    live: &mut Live,
    exports: &Exports,
    command: &NvmCommand,
) -> Result<ParsedCommand, CommandOutcome> {
    let controller = &live.controller;
    if !controller.is_ready_in(live.epoch) {
        return Err(controller.refusal().into());
    }
    if !controller.io_opcodes.contains(command.opcode()) {
        return Err(Status::INVALID_OPCODE.with_dnr().into());
    }
    let subsystem = controller.subsystem();
    let namespace =
        subsystem.and_then(|subsystem| exports.list(subsystem.index).get(command.nsid()));
    let namespace = namespace.filter(|namespace| namespace.is_visible_to(&controller.host));
    let namespace = namespace.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr())?;
    if namespace.takes_over && !live.knows(namespace) {
        return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr().into());
    }
    let controller = &live.controller;
    controller.ana.access(namespace.ana_group)?;
    let (kind, range) = kind_and_range(controller.support, namespace, command)?;
    let protected = namespace.write_protected() && !deliberate_bugs::has(Bug::IgnoreWriteProtect);
    if kind.changes_medium() && protected {
        return Err(Status::NAMESPACE_IS_WRITE_PROTECTED.with_dnr().into());
    }
    let (offset_bytes, length_bytes) = match range {
        Some(range) => bytes_of(namespace, range)?,
        None => (0, 0),
    };
    let transfer =
        transfer(command.transfer(namespace.lba_bytes()), controller.limits.max_transfer_bytes)?;
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

fn kind_and_range(
    support: Support,
    namespace: &Namespace,
    command: &NvmCommand,
) -> Result<(IoKind, Option<LbaRange>), CommandOutcome> {
    // A read-only medium has no unwritten data to flush.
    let commits = |fua: bool| fua && namespace.writable;
    Ok(match command {
        NvmCommand::Read(read) if namespace.reads_zeros => (IoKind::ReadZeros, Some(read.range)),
        NvmCommand::Read(read) => (IoKind::Read { fua: commits(read.fua) }, Some(read.range)),
        NvmCommand::Write(write) => (IoKind::Write { fua: write.fua }, Some(write.range)),
        NvmCommand::Compare(compare) => {
            (IoKind::Compare { fua: commits(compare.fua) }, Some(compare.range))
        }
        NvmCommand::WriteZeroes(zeroes) => {
            let deallocate = zeroes.deallocate && support.deallocates();
            let kind = IoKind::WriteZeroes { fua: zeroes.fua, deallocate };
            (kind, Some(zeroes.range))
        }
        NvmCommand::Flush(_) => (IoKind::Flush, None),
        NvmCommand::DatasetManagement(dsm) if dsm.attributes.deallocate() => {
            (IoKind::Deallocate, None)
        }
        // Dataset Management attributes other than Deallocate are hints, which are ignored.
        NvmCommand::DatasetManagement(_) => return Err(CommandOutcome::SUCCESS),
    })
}

fn bytes_of(namespace: &Namespace, range: LbaRange) -> Result<(u64, u64), Status> {
    range.check(namespace.size_blocks)?;
    Ok((range.slba << namespace.lba_shift, range.length_bytes(namespace.lba_bytes())))
}

/// Checks that every range lies in the namespace; see [`super::Queue::check_ranges`].
pub(super) fn check_ranges(work: &IoWork, data: &[u8]) -> Result<(), Status> {
    let inside = |range: &DsmRange| {
        let end = range.slba.get().checked_add(range.length_blocks.get().into());
        end.is_some_and(|end| end <= work.size_blocks)
    };
    match ranges(data)?.iter().all(inside) {
        true => Ok(()),
        false => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
    }
}

/// Returns offset and length in bytes of the next range; see [`super::Queue::next_range`].
pub(super) fn next_range(work: &IoWork, data: &[u8], passed: &mut usize) -> Option<(u64, u64)> {
    let shift = work.lba_shift;
    let rest = ranges(data).ok()?.get(*passed..)?;
    let found = rest.iter().position(|range| range.length_blocks.get() > 0)?;
    *passed += found + 1;
    let range = &rest[found];
    Some((range.slba.get() << shift, u64::from(range.length_blocks.get()) << shift))
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
pub(super) fn count(counters: &IoCounters, work: &IoWork) {
    match work.kind {
        IoKind::Read { .. } | IoKind::ReadZeros => {
            counters.reads.add(1);
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
