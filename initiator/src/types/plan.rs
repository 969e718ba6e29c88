//! Plans: what to read, where to, and how each of it went.

use std::time::Duration;

use nvme_proto::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::types::error::{Error, ErrorKind};
use crate::types::options::{BatchOptions, Class};

/// A byte range of a shard, and its destination in a [`Region`](crate::Region): 24 bytes in the
/// machine's byte order, of any bit pattern, so that an array of them can come from another
/// language (numpy: `[("shard","<u4"),("length","<u4"),("offset","<u8"),("dst","<u8")]`).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Entry {
    /// Number of the shard, as [`Shards`](crate::Shards) counts from 0.
    pub shard: u32,
    /// Number of bytes; a range of 0 bytes ends well immediately.
    pub length: u32,
    /// First byte in the shard; any alignment.
    pub offset: u64,
    /// First byte in the region; any alignment.
    pub dst: u64,
}

impl Entry {
    /// The bytes of the region that it is read into. [`u64::MAX`] stands for an end beyond that.
    pub(crate) fn destination(&self) -> (u64, u64) {
        (self.dst, self.dst.saturating_add(self.length.into()))
    }
}

/// How a range of a plan ended: 8 bytes in the machine's byte order (numpy:
/// `[("status","<u2"),("path","u1"),("attempts","u1"),("latency_us","<u4")]`).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Outcome {
    /// Zero for success. With bit 15 clear it is the NVMe status field that the controller
    /// answered: status code in bits 7:0, type in 10:8, retry delay in 12:11, More in 13, Do Not
    /// Retry in 14. With bit 15 set it is one of the constants of [`Outcome`].
    pub status: u16,
    /// How the bytes came: [`Outcome::DIRECT`], [`Outcome::BOUNCED`], both or, where nothing was
    /// sent, neither.
    pub path: u8,
    /// Times that it was begun, at most 255; 0 if no command was sent. Each replica of its shard
    /// that failed counts once.
    pub attempts: u8,
    /// Microseconds from its first command until it ended; 0 if no command was sent.
    pub latency_us: u32,
}

impl Outcome {
    /// Status of a range that has not ended.
    pub const PENDING: u16 = 0x8000;
    /// Status of a range whose plan was cancelled before it ended.
    pub const CANCELLED: u16 = 0x8001;
    /// Status of a range that had no result before a deadline.
    pub const TIMED_OUT: u16 = 0x8002;
    /// Status of a range whose target is gone.
    pub const LOST: u16 = 0x8003;
    /// Status of a range whose namespace is not what it was when it was opened.
    pub const CHANGED: u16 = 0x8004;
    /// Status of a range whose host or controller was closed.
    pub const CLOSED: u16 = 0x8005;
    /// Status of a pending range, as a process sees it that was forked since.
    pub const FORKED: u16 = 0x8006;
    /// Status of all other errors: [`Ticket::error`](crate::Ticket::error) has them.
    pub const OTHER: u16 = 0x80FF;

    /// Path bit: at least one command read straight into the region.
    pub const DIRECT: u8 = 1;
    /// Path bit: at least one command read into a bounce buffer, and a part of it was copied.
    pub const BOUNCED: u8 = 2;

    /// Whether all bytes are in the region.
    pub const fn is_ok(self) -> bool {
        self.status == 0
    }

    /// Whether the range has not ended.
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

    /// The status that stands for an error; never zero.
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
        // An error is never told of as a success.
        0 => Outcome::OTHER,
        bits => bits,
    }
}

/// How a plan is treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Submit {
    /// Ranges that have not ended this long after the plan was submitted fail with
    /// [`Outcome::TIMED_OUT`], whether they were sent or not; when it is zero none is. Without it a
    /// range fails when it is without progress for
    /// [`io_timeout`](crate::ControllerOptions::io_timeout), counted from its first command.
    pub deadline: Option<Duration>,
    /// Which plans go first.
    pub class: Class,
}

impl Submit {
    pub(crate) fn batch_options(self) -> BatchOptions {
        BatchOptions { class: self.class, deadline: self.deadline }
    }
}

/// How far a plan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanProgress {
    /// Ranges that have ended, well or not.
    pub done: usize,
    /// Ranges that have ended with an error.
    pub failed: usize,
    /// Ranges of the plan.
    pub total: usize,
}

impl PlanProgress {
    /// Whether all ranges have ended.
    pub fn is_done(&self) -> bool {
        self.done == self.total
    }
}

/// Why a plan was not accepted: none of its ranges was begun.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An entry names a shard that does not exist.
    #[error("entry {entry}: there is no shard {shard}, only {shards} shards counted from 0")]
    NoShard {
        /// Number of the entry in the plan.
        entry: usize,
        /// Number of the shard.
        shard: u32,
        /// How many shards there are.
        shards: usize,
    },
    /// An entry reads beyond the end of its shard.
    #[error("entry {entry}: {length} bytes at {offset} are beyond the shard's {size_bytes} bytes")]
    BeyondShard {
        /// Number of the entry in the plan.
        entry: usize,
        /// First byte of it.
        offset: u64,
        /// Number of bytes from there.
        length: u32,
        /// Bytes of the shard when it was opened.
        size_bytes: u64,
    },
    /// The destination of an entry is beyond the end of the region.
    #[error("entry {entry}: {length} bytes at {dst} are beyond the region's {region_bytes} bytes")]
    BeyondRegion {
        /// Number of the entry in the plan.
        entry: usize,
        /// First byte of the destination.
        dst: u64,
        /// Number of bytes from there.
        length: u32,
        /// Bytes of the region.
        region_bytes: usize,
    },
    /// The destinations of two entries share bytes.
    #[error("entries {first} and {second} have bytes of the region in common")]
    Overlap {
        /// Number of the one that comes first in the plan.
        first: usize,
        /// Number of the other one.
        second: usize,
    },
    /// Bytes of the region are the destination of another plan, of which not all ranges have
    /// ended.
    #[error(
        "bytes {start} to {end} of the region are the destination of a plan in flight: wait for \
         it, or cancel it and wait"
    )]
    InFlight {
        /// First byte that is in use.
        start: u64,
        /// The byte behind the last one.
        end: u64,
    },
    /// A plan has at most 4,294,967,295 entries.
    #[error("a plan of {entries} entries is too long: split it")]
    TooLong {
        /// Entries of the plan.
        entries: usize,
    },
    /// The host cannot begin anything: the process was forked, a shard belongs to another host, or
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
