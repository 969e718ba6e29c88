//! Errors of the calls of stores, volumes and targets together.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use feedrail_checkpoint::{Error, ReplicaError, VolumeFormatError};
use uuid::Uuid;

/// Why a call of a store failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The volume does not permit it, or is not one.
    #[error("{0}")]
    Volume(Error),
    /// The name of a checkpoint or entry is not allowed.
    #[error("{0}")]
    Name(VolumeFormatError),
    /// An operation on the namespace failed.
    #[error("{error}: {cause}")]
    Device {
        /// State of the volume after it.
        error: Error,
        /// The error of the operation.
        cause: feedrail_initiator::Error,
    },
    /// The target cannot be reached, or an operation outside of a volume failed.
    #[error(transparent)]
    Host(#[from] feedrail_initiator::Error),
    /// The host name of the URL cannot be resolved.
    #[error("cannot resolve {name}: {error}")]
    Resolve {
        /// The host name in the URL.
        name: String,
        /// The error of the resolver.
        error: Arc<io::Error>,
    },
    /// The URL names no namespace, and the subsystem does not have exactly one.
    #[error("the subsystem has {0} namespaces; name one in the URL")]
    WhichNamespace(usize),
    /// The logical blocks of the namespace do not divide a superblock of 4096 bytes.
    #[error(
        "the namespace has blocks of {0} bytes, and a volume needs blocks of 512 to 4096 bytes"
    )]
    BlockBytes(u64),
    /// The namespace is write protected.
    #[error("the namespace is write protected; export it writable, for example with --writable")]
    WriteProtected,
    /// The store was opened for reading, or closed.
    #[error("the store is open for reading only; open it for writing")]
    ReadOnly,
    /// A save of this store has not ended.
    #[error("a save is in progress; commit or abort it first")]
    SaveInProgress,
    /// Another writer has a live lease.
    #[error(
        "host {host} writes to the volume, and its lease ends in {} s; wait, or end that writer",
        rest.as_secs() + 1
    )]
    Leased {
        /// Host identifier of the writer.
        host: Uuid,
        /// Time until the lease and its grace period have ended, unless the lease is renewed.
        rest: Duration,
    },
    /// Bytes do not have the checksum that was stored with them.
    #[error("the bytes {offset} to {end} of {entry:?} in {checkpoint:?} are damaged", end = offset + length - 1)]
    Damaged {
        /// Name of the checkpoint.
        checkpoint: String,
        /// Name of the entry in the checkpoint.
        entry: String,
        /// First byte of the damaged unit in the entry.
        offset: u64,
        /// Number of bytes of the unit.
        length: u64,
    },
    /// The target was lost during a commit, and was reached again: the change did not happen.
    #[error("the change was not made, because the target was lost: {0}; save again")]
    NotMade(Box<StoreError>),
    /// The target was lost during a commit, and could not be reached again.
    #[error("it is unknown whether the change was made: {0}; open the volume again to see")]
    Unknown(Box<StoreError>),
    /// The target lost written bytes with its power, before the Flush of the commit.
    #[error("the target lost bytes of {0:?} that it had taken; save again")]
    LostWrites(String),
    /// The volume was opened again since the save began, and the save lost its space.
    #[error("the save was lost when the volume was opened again; save again")]
    SaveLost,
    /// The process that was to write an entry on this replica did not.
    #[error("another process could not write its entry on this replica")]
    NotWritten,
    /// The writer whose save reserved an entry has no lease any longer, or saves something else.
    #[error("the save that this process writes to has ended; save again")]
    ReservationEnded,
    /// Too few replicas answer, or they are of different volumes.
    #[error("{error}{}", .cause.as_ref().map_or(String::new(), |cause| format!(" ({cause})")))]
    Replicas {
        /// The rule that is not met.
        error: ReplicaError,
        /// Error of a replica that does not answer.
        cause: Option<Box<StoreError>>,
    },
    /// Fewer replicas than the quorum have the newest checkpoints.
    #[error(
        "{current} replicas have the newest checkpoints, and {quorum} are needed; repair the others"
    )]
    NoQuorum {
        /// Replicas that have the newest checkpoints.
        current: usize,
        /// Replicas that must have them for a commit.
        quorum: usize,
    },
    /// The callback of the caller stopped the call.
    #[error("stopped")]
    Stopped,
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        Self::Volume(error)
    }
}

impl From<VolumeFormatError> for StoreError {
    fn from(error: VolumeFormatError) -> Self {
        match error {
            VolumeFormatError::Name(_) => Self::Name(error),
            _ => Self::Volume(error.into()),
        }
    }
}

impl StoreError {
    /// Returns the error of the volume, if there is one.
    pub fn volume(&self) -> Option<&Error> {
        match self {
            Self::Volume(error) | Self::Device { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns whether the volume refused a change, or a part of a save, before it wrote anything.
    pub(crate) fn is_refusal(&self) -> bool {
        use VolumeFormatError::{Limit, Name};
        let is_refusal = |error: &Error| {
            matches!(
                error,
                Error::Exists(_)
                    | Error::Missing(_)
                    | Error::RenameKind
                    | Error::CapacityExceeded { .. }
                    | Error::Incomplete(_)
                    | Error::Range
                    | Error::Format(Limit(_) | Name(_))
            )
        };
        match self {
            Self::Volume(error) => is_refusal(error),
            Self::Name(_) => true,
            _ => false,
        }
    }

    /// Returns whether another writer has changed the volume.
    pub(crate) fn is_fenced(&self) -> bool {
        matches!(self.volume(), Some(Error::Fenced))
    }

    /// Returns whether another writer has the lease or has changed the volume.
    pub(crate) fn is_of_other_writer(&self) -> bool {
        matches!(self, Self::Leased { .. }) || self.is_fenced()
    }

    /// Returns whether a superblock may have been written or not.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.volume(), Some(Error::Unknown(_)))
    }
}
