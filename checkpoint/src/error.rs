//! Errors of volumes and of their format.

use uuid::Uuid;

use crate::operation::Failure;
use crate::signature::Signature;

/// Why bytes are not a superblock or manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeFormatError {
    /// The first bytes are others.
    #[error(
        "the first bytes are not those of a checkpoint volume; format the namespace, or name another"
    )]
    Magic,
    /// The checksum does not belong to the bytes.
    #[error("the CRC-32C does not match; the bytes are torn or damaged")]
    Crc,
    /// A required feature or record is unknown.
    #[error("the volume was written by a newer version of Feedrail; install that version")]
    Newer,
    /// A field has a value that no writer gives it.
    #[error("the field {0} has an impossible value; the bytes are damaged")]
    Field(&'static str),
    /// The bytes end within a record.
    #[error("the bytes end within a record; they were cut off")]
    Cut,
    /// A count or length is above its limit.
    #[error("{0} are above the limit of the format; delete checkpoints or save fewer entries")]
    Limit(&'static str),
    /// A name is not allowed.
    #[error(
        "the name {0:?} is not allowed: it must have 1 to 1024 bytes, no control characters, and no \
         empty, `.` or `..` part"
    )]
    Name(String),
    /// Two extents have bytes in common.
    #[error("two extents overlap; the manifest is damaged")]
    Overlap,
}

/// Why something did not happen to a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Neither superblock leads to a manifest. The error is that of the newest superblock.
    #[error("no checkpoint volume can be opened: {0}")]
    Format(#[from] VolumeFormatError),
    /// An operation failed, and the volume is as before.
    #[error("{0}; the volume is as before")]
    Device(#[from] Failure),
    /// The superblock may have been written or not.
    #[error(
        "the commit was not acknowledged: {0}; open the volume again to see whether it happened"
    )]
    Unknown(Failure),
    /// A commit failed in an unknown state earlier.
    #[error("the state of the volume is unknown; open it again")]
    Reopen,
    /// The namespace is smaller than a volume needs, or than this volume was.
    #[error("the namespace has {bytes} bytes, and the volume needs {needed}; use a larger one")]
    TooSmall {
        /// Size of the namespace.
        bytes: u64,
        /// What is needed.
        needed: u64,
    },
    /// The namespace holds something else.
    #[error("the namespace holds {0}; formatting destroys it, and must be forced")]
    Occupied(Signature),
    /// No space for entries or the manifest.
    #[error("{needed_bytes} bytes are needed, and {free_bytes} are free; delete checkpoints first")]
    CapacityExceeded {
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Another writer has changed the volume.
    #[error("another writer has the volume; open it again, and save again when that one has ended")]
    Fenced,
    /// Another writer has a live lease.
    #[error("the volume is leased by host {host} until {expiry_ms} ms; wait, or end that writer")]
    Leased {
        /// The writer's host.
        host: Uuid,
        /// When the lease ends, in milliseconds since 1970.
        expiry_ms: u64,
    },
    /// The writer has no live lease.
    #[error("the writer's lease has ended or was never taken; take it again before writing")]
    NoLease,
    /// A checkpoint has this name already.
    #[error("there is a checkpoint or entry {0:?} already; choose another name or delete it")]
    Exists(String),
    /// No checkpoint or entry has this name.
    #[error("there is no checkpoint or entry {0:?}; list the volume to see the names")]
    Missing(String),
    /// A save is committed before all bytes of an entry were written.
    #[error("the entry {0:?} is not written to its end; write the rest before the commit")]
    Incomplete(String),
    /// A range is outside an entry, or does not begin at a unit.
    #[error("the range is outside of the entry or does not begin at a unit; correct the range")]
    Range,
    /// Data does not have the checksum that the manifest names.
    #[error("the bytes from {offset} of the namespace are damaged; read another replica")]
    Damaged {
        /// First byte of the damaged unit.
        offset: u64,
    },
}
