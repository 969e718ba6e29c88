//! Errors of volumes and of their format.

use uuid::Uuid;

use crate::operation::Failure;
use crate::signature::Signature;

/// Reason why bytes are not a valid superblock or manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeFormatError {
    /// The bytes do not begin with the magic number.
    #[error(
        "the first bytes are not those of a checkpoint volume; format the namespace, or name another"
    )]
    Magic,
    /// The stored CRC-32C is not that of the bytes.
    #[error("the CRC-32C does not match; the bytes are torn or damaged")]
    Crc,
    /// The version, a required feature or a required record is unknown.
    #[error("the volume was written by a newer version of Feedrail; install that version")]
    Newer,
    /// A field, named here, has a value that no writer stores in it.
    #[error("the field {0} has an impossible value; the bytes are damaged")]
    Field(&'static str),
    /// The bytes end within a record.
    #[error("the bytes end within a record; they were cut off")]
    Cut,
    /// A count or length, named here, is above its limit.
    #[error("{0} are above the limit of the format; delete checkpoints or save fewer entries")]
    Limit(&'static str),
    /// A name of a checkpoint or entry breaks the rules of the format.
    #[error(
        "the name {0:?} is not allowed: it must have 1 to 1024 bytes, no control characters, and no \
         empty, `.` or `..` part"
    )]
    Name(String),
    /// Two extents have bytes in common.
    #[error("two extents overlap; the manifest is damaged")]
    Overlap,
}

/// Reason why a procedure on a volume failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No superblock has a valid manifest. The error is that of the newest superblock. Also a
    /// value that the format cannot store, such as too many checkpoints.
    #[error("no checkpoint volume can be opened: {0}")]
    Format(#[from] VolumeFormatError),
    /// An operation failed before the superblock was written: the volume is unchanged.
    #[error("{0}; the volume is as before")]
    Device(#[from] Failure),
    /// The write of the superblock failed, so that the commit may be durable or not.
    #[error("it is unknown whether the change was made: {0}; open the volume again to see")]
    Unknown(Failure),
    /// An earlier commit failed with [`Error::Unknown`]; this [`crate::Volume`] cannot go further.
    #[error("the state of the volume is unknown; open it again")]
    Reopen,
    /// The namespace is smaller than the minimum of a volume, or than the volume on it was.
    #[error("the namespace has {bytes} bytes, and the volume needs {needed}; use a larger one")]
    TooSmall {
        /// Size of the namespace, in bytes.
        bytes: u64,
        /// Smallest size that suffices, in bytes.
        needed: u64,
    },
    /// The namespace holds data with a known signature.
    #[error("the namespace holds {0}; formatting destroys it, and must be forced")]
    Occupied(Signature),
    /// Free space does not suffice for an entry or the manifest. Nothing was written.
    #[error("{needed_bytes} bytes are needed, and {free_bytes} are free; delete checkpoints first")]
    CapacityExceeded {
        /// Bytes of the units that are needed.
        needed_bytes: u64,
        /// Bytes of all free units, which may not be adjacent.
        free_bytes: u64,
    },
    /// Another writer has changed the volume since it was opened.
    #[error("another writer has the volume; open it again, and save again when that one has ended")]
    Fenced,
    /// Another writer has a lease that has not ended, or ended less than the grace time ago. It may
    /// have taken it at the same time as this one, which then has none.
    #[error("the volume is leased by host {host} until {expiry_ms} ms; wait, or end that writer")]
    Leased {
        /// Host of that writer.
        host: Uuid,
        /// End of the lease, in milliseconds since 1970, without the grace time.
        expiry_ms: u64,
    },
    /// This writer has no lease, or its lease has ended.
    #[error("the writer's lease has ended or was never taken; take it again before writing")]
    NoLease,
    /// A checkpoint of the volume, or an entry of the save, has this name already.
    #[error("there is a checkpoint or entry {0:?} already; choose another name or delete it")]
    Exists(String),
    /// An entry would become a checkpoint or folder, or a checkpoint or folder an entry.
    #[error("an entry is renamed to an entry, and a checkpoint or folder to one of these")]
    RenameKind,
    /// No checkpoint of the volume, or no entry of the checkpoint, has this name.
    #[error("there is no checkpoint or entry {0:?}; list the volume to see the names")]
    Missing(String),
    /// A save cannot be committed because units of this entry were not written.
    #[error("the entry {0:?} is not written to its end; write the rest before the commit")]
    Incomplete(String),
    /// A byte range is not inside the entry, or a write does not begin or end at a unit.
    #[error("the range is outside of the entry or does not begin at a unit; correct the range")]
    Range,
    /// The CRC-32C of a unit of data is not the one in the manifest.
    #[error("the bytes from {offset} of the namespace are damaged; read another replica")]
    Damaged {
        /// First byte of the damaged unit in the namespace.
        offset: u64,
    },
}
