"""Exceptions of checkpoint volumes. The native module looks up those of other modules here too."""

from __future__ import annotations

import errno as errno_numbers

from feedrail._errors import (
    AccessDenied,
    ChecksumError,
    FeedrailError,
    NotFound,
    RangeError,
    TargetLost,
)

__all__ = [
    "AccessDenied",
    "CapacityExceeded",
    "CheckpointError",
    "CheckpointExists",
    "CommitUnknown",
    "Damaged",
    "LeaseLost",
    "Leased",
    "NoQuorum",
    "NotAVolume",
    "NotFound",
    "RangeError",
    "SaveFailed",
    "SaveInProgress",
    "TargetLost",
    "VolumeOccupied",
]


class CheckpointError(FeedrailError):
    """A call of a checkpoint store that failed. The checkpoints are as they were before, unless it
    is a `CommitUnknown`.
    """


class NotAVolume(CheckpointError, ValueError):
    """A namespace that is not formatted as a checkpoint volume, is too small for one, or has one of
    a newer version or with both superblocks damaged.
    """


class VolumeOccupied(CheckpointError, FileExistsError):
    """A namespace that holds data, which formatting without `force=True` does not destroy."""

    _ERRNO = errno_numbers.EEXIST


class Leased(CheckpointError):
    """A volume that another writer has the lease of.

    Attributes:
        host: Identifier of the writer's host.
        rest: Seconds until another writer can begin, unless the lease is renewed.
    """

    host: str | None = None
    rest: float | None = None


class LeaseLost(CheckpointError):
    """A change that was refused since another writer has changed the volume."""


class CapacityExceeded(CheckpointError):
    """A volume without enough free space, or a target without any. Delete checkpoints first.

    Attributes:
        needed_bytes: Bytes of the units that are needed, if that is known.
        free_bytes: Bytes of the units that are free, if that is known.
    """

    needed_bytes: int | None = None
    free_bytes: int | None = None

    _ERRNO = errno_numbers.ENOSPC


class CheckpointExists(CheckpointError, FileExistsError):
    """A checkpoint or entry whose name is in use."""

    _ERRNO = errno_numbers.EEXIST


class SaveInProgress(CheckpointError):
    """A store with a save that was neither committed nor aborted."""


class SaveFailed(CheckpointError):
    """A save that was not committed: an entry is incomplete, the target lost bytes that were not
    durable, or was lost during the commit. Save again.
    """


class CommitUnknown(CheckpointError):
    """A commit or deletion that may have happened or not, since the target was lost during it and
    did not come back. Open the volume again and list its checkpoints.
    """


class NoQuorum(CheckpointError):
    """Too few replicas that answer or have the newest checkpoints, or replicas of different volumes.
    """


class Damaged(CheckpointError, ChecksumError):
    """Bytes of a checkpoint that do not have their checksum, on any replica.

    `offset` and `length` are those of the damaged unit in the entry.

    Attributes:
        checkpoint: Name of the checkpoint.
        entry: Name of the entry.
    """

    checkpoint: str | None = None
    entry: str | None = None
