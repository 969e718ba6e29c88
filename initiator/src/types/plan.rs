//! Plans: byte ranges to read or write, their places in memory, and their results.

use std::time::Duration;

use nvme_proto::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::types::error::{Error, ErrorKind};
use crate::types::options::{BatchOptions, Class};

/// Byte range of a shard, and its place in a [`Region`](crate::Region): 24 bytes in the machine's
/// byte order. Every bit pattern is valid, so that an array of them can come from another
/// language (numpy: `[("shard","<u4"),("length","<u4"),("offset","<u8"),("dst","<u8")]`).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Entry {
    /// Number of the shard in [`Shards`](crate::Shards), counted from 0.
    pub shard: u32,
    /// Number of bytes; a range of 0 bytes succeeds immediately.
    pub length: u32,
    /// First byte in the shard; any alignment.
    pub offset: u64,
    /// First byte in the region, to read into or to write from; any alignment.
    pub dst: u64,
}

impl Entry {
    /// Returns the place in the region as (first byte, byte after the last one), the latter at most
    /// [`u64::MAX`].
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.dst, self.dst.saturating_add(self.length.into()))
    }
}

/// Result of a range of a plan: 8 bytes in the machine's byte order (numpy:
/// `[("status","<u2"),("path","u1"),("attempts","u1"),("latency_us","<u4")]`).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Outcome {
    /// Zero for success. With bit 15 clear it is the NVMe status of the response: Status Code in
    /// bits 7:0, Status Code Type in 10:8, Command Retry Delay in 12:11, More in 13, Do Not Retry
    /// in 14. With bit 15 set it is one of the constants of [`Outcome`].
    pub status: u16,
    /// [`Outcome::DIRECT`], [`Outcome::BOUNCED`] or both; 0 if nothing was sent.
    pub path: u8,
    /// Times that the range was started, at most 255; 0 if no command was sent. Each replica of its
    /// shard that failed counts once.
    pub attempts: u8,
    /// Microseconds from its first command until it ended; 0 if no command was sent.
    pub latency_us: u32,
}

impl Outcome {
    /// Status of a range that has not ended.
    pub const PENDING: u16 = 0x8000;
    /// Status of a range whose plan was cancelled before the range ended.
    pub const CANCELLED: u16 = 0x8001;
    /// Status of a range that had no result before its deadline.
    pub const TIMED_OUT: u16 = 0x8002;
    /// Status of a range whose target could not be reached.
    pub const LOST: u16 = 0x8003;
    /// Status of a range whose namespace is no longer the one that was opened.
    pub const CHANGED: u16 = 0x8004;
    /// Status of a range whose host or controller was closed.
    pub const CLOSED: u16 = 0x8005;
    /// Status of a pending range in a process that was forked after the plan was submitted.
    pub const FORKED: u16 = 0x8006;
    /// Status of all other errors, which [`Ticket::error`](crate::Ticket::error) returns.
    pub const OTHER: u16 = 0x80FF;

    /// Bit of `path`: at least one command transferred directly to or from the region.
    pub const DIRECT: u8 = 1;
    /// Bit of `path`: at least one command transferred a bounce buffer, from or to which bytes were
    /// copied.
    pub const BOUNCED: u8 = 2;

    /// Returns whether all bytes of the range were read, or written.
    pub const fn is_ok(self) -> bool {
        self.status == 0
    }

    /// Returns whether the range has not ended.
    pub const fn is_pending(self) -> bool {
        self.status == Self::PENDING
    }

    pub(crate) const fn to_bits(self) -> u64 {
        self.status as u64
            | (self.path as u64) << 16
            | (self.attempts as u64) << 24
            | (self.latency_us as u64) << 32
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self {
            status: bits as u16,
            path: (bits >> 16) as u8,
            attempts: (bits >> 24) as u8,
            latency_us: (bits >> 32) as u32,
        }
    }

    pub(crate) const fn of_status(status: u16) -> Self {
        Self { status, path: 0, attempts: 0, latency_us: 0 }
    }

    /// Returns the status of an error; never zero.
    pub(crate) fn status_of(error: &Error) -> u16 {
        match error.kind() {
            ErrorKind::Status(status) => nvme_status(*status),
            ErrorKind::Cancelled => Self::CANCELLED,
            ErrorKind::TimedOut { .. } => Self::TIMED_OUT,
            ErrorKind::Lost { .. } | ErrorKind::ConnectionLost(_) | ErrorKind::Unreachable(_) => {
                Self::LOST
            }
            ErrorKind::Changed(_) => Self::CHANGED,
            ErrorKind::Closed => Self::CLOSED,
            ErrorKind::Forked => Self::FORKED,
            _ => Self::OTHER,
        }
    }
}

fn nvme_status(status: Status) -> u16 {
    match status.to_bits() & 0x7FFF {
        // An error with the status code of success must not be reported as success.
        0 => Outcome::OTHER,
        bits => bits,
    }
}

/// Options of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Submit {
    /// Time after submission at which ranges that have not ended fail with [`Outcome::TIMED_OUT`];
    /// if it is zero, nothing is sent. Without a deadline a range fails when it has made no
    /// progress for [`io_timeout`](crate::ControllerOptions::io_timeout), counted from its first
    /// command.
    pub deadline: Option<Duration>,
    /// Priority of the plan among ranges that wait for the same controller.
    pub class: Class,
}

impl Submit {
    pub(crate) fn batch_options(self) -> BatchOptions {
        BatchOptions { class: self.class, deadline: self.deadline }
    }
}

/// Numbers of ranges of a plan that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanProgress {
    /// Ranges that have ended, with or without an error.
    pub done: usize,
    /// Ranges that have ended with an error.
    pub failed: usize,
    /// All ranges of the plan.
    pub total: usize,
}

impl PlanProgress {
    /// Returns whether all ranges have ended.
    pub fn is_done(&self) -> bool {
        self.done == self.total
    }
}

/// Reason why a plan was not accepted. No command of it was sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An entry names a shard that does not exist.
    #[error("entry {entry}: there is no shard {shard}, only {shards} shards counted from 0")]
    NoShard {
        /// Index of the entry in the plan.
        entry: usize,
        /// Number of the shard in the entry.
        shard: u32,
        /// Number of shards that exist.
        shards: usize,
    },
    /// The shard of an entry has several replicas or paths. A plan writes to one namespace over one
    /// connection.
    #[error(
        "entry {entry}: shard {shard} has several replicas or paths, and is only read by plans"
    )]
    Replicated {
        /// Index of the entry in the plan.
        entry: usize,
        /// Number of the shard in the entry.
        shard: u32,
    },
    /// The plan reads into memory that may only be written from.
    #[error("the region is read-only: it can be the source of writes")]
    ReadOnlyRegion,
    /// The range of an entry extends beyond the end of its shard.
    #[error("entry {entry}: {length} bytes at {offset} are beyond the shard's {size_bytes} bytes")]
    BeyondShard {
        /// Index of the entry in the plan.
        entry: usize,
        /// First byte of the range in the shard.
        offset: u64,
        /// Length of the range in bytes.
        length: u32,
        /// Size of the shard in bytes when it was opened.
        size_bytes: u64,
    },
    /// The place of an entry extends beyond the end of the region.
    #[error("entry {entry}: {length} bytes at {dst} are beyond the region's {region_bytes} bytes")]
    BeyondRegion {
        /// Index of the entry in the plan.
        entry: usize,
        /// First byte of the place in the region.
        dst: u64,
        /// Length of the place in bytes.
        length: u32,
        /// Size of the region in bytes.
        region_bytes: usize,
    },
    /// The destinations of two entries of a plan that reads overlap.
    #[error("entries {first} and {second} have bytes of the region in common")]
    Overlap {
        /// Index of the entry that comes first in the plan.
        first: usize,
        /// Index of the other entry.
        second: usize,
    },
    /// The plan would use bytes of the region that another plan with ranges in progress uses. Only
    /// plans that write may share them.
    #[error(
        "bytes {start} to {end} of the region are used by a plan in flight: wait for it, or cancel \
         it and wait"
    )]
    InFlight {
        /// First byte of the region that is in use.
        start: u64,
        /// The byte after the last one that is in use.
        end: u64,
    },
    /// The plan has more than 4,294,967,295 entries.
    #[error("a plan of {entries} entries is too long: split it")]
    TooLong {
        /// Number of entries of the plan.
        entries: usize,
    },
    /// The host cannot start any range: the process was forked, a shard belongs to another host, or
    /// the memory could not be registered.
    #[error(transparent)]
    Host(#[from] Error),
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_records_are_laid_out_as_documented() {
        assert_eq!((size_of::<Entry>(), size_of::<Outcome>()), (24, 8));
        assert_eq!((offset_of!(Entry, length), offset_of!(Entry, offset)), (4, 8));
        assert_eq!((offset_of!(Entry, shard), offset_of!(Entry, dst)), (0, 16));
        assert_eq!((offset_of!(Outcome, status), offset_of!(Outcome, path)), (0, 2));
        assert_eq!((offset_of!(Outcome, attempts), offset_of!(Outcome, latency_us)), (3, 4));
    }

    #[test]
    fn an_outcome_fits_64_bits() {
        let outcome = Outcome { status: 0x8003, path: 3, attempts: 255, latency_us: u32::MAX - 1 };
        assert_eq!(Outcome::from_bits(outcome.to_bits()), outcome);
    }

    #[test]
    fn no_error_is_told_of_as_success() {
        let statuses = [Status::INVALID_FIELD.with_dnr(), Status::from_bits(0x8000)];
        let statuses = statuses.into_iter().map(ErrorKind::Status);
        for kind in statuses.chain([ErrorKind::Closed, ErrorKind::Cancelled, ErrorKind::Forked]) {
            assert!(!Outcome::of_status(Outcome::status_of(&kind.into())).is_ok());
        }
    }
}
