"""Byte ranges of remote NVMe namespaces, read over RDMA into arrays and tensors, and written from them.

    import feedrail
    source = feedrail.open("nvmf://192.0.2.10/nqn.2026-01.org.example:shards")
    rows = source.rows(0, offsets, 2050).as_numpy("u2", (len(offsets), 1025))

One call reads a batch: no Python code runs for each range, other threads keep running, and bytes
land where the array is.
"""

from feedrail._checkpoint_errors import (
    CapacityExceeded,
    CheckpointError,
    CheckpointExists,
    CommitUnknown,
    Damaged,
    Leased,
    LeaseLost,
    NoQuorum,
    NotAVolume,
    SaveFailed,
    SaveInProgress,
    VolumeOccupied,
)
from feedrail._checkpoint_stats import CheckpointStats, SaveStats, StoreReplicaStats
from feedrail._checkpoints import (
    Checkpoint,
    CheckpointReplica,
    CheckpointSave,
    CheckpointStore,
    DamagedUnit,
    RepairReport,
    VerifyReport,
)
from feedrail._core import Buffer, Pool
from feedrail._dtypes import CHECKSUM_STATUS, PLAN_DTYPE, RESULT_DTYPE, make_plan
from feedrail._errors import (
    AccessDenied,
    AuthenticationError,
    BatchError,
    BufferInUse,
    ChecksumError,
    DatasetChanged,
    FeedrailError,
    ForkedHandleError,
    FormatError,
    NotFound,
    PoolFull,
    RangeError,
    ReadOnly,
    ReadTimeout,
    ReplicaWarning,
    TargetLost,
)
from feedrail._file import File
from feedrail._manifest import Manifest, ManifestIndex, ManifestShard, ManifestTarget
from feedrail._open import open
from feedrail._shards import Replica, Shard, Shards
from feedrail._source import Source
from feedrail._stats import Histogram, Stats
from feedrail._ticket import Ticket

__all__ = [
    "CHECKSUM_STATUS",
    "PLAN_DTYPE",
    "RESULT_DTYPE",
    "AccessDenied",
    "AuthenticationError",
    "BatchError",
    "Buffer",
    "BufferInUse",
    "CapacityExceeded",
    "Checkpoint",
    "CheckpointError",
    "CheckpointExists",
    "CheckpointReplica",
    "CheckpointSave",
    "CheckpointStats",
    "CheckpointStore",
    "ChecksumError",
    "CommitUnknown",
    "Damaged",
    "DamagedUnit",
    "DatasetChanged",
    "FeedrailError",
    "File",
    "ForkedHandleError",
    "FormatError",
    "Histogram",
    "LeaseLost",
    "Leased",
    "Manifest",
    "ManifestIndex",
    "ManifestShard",
    "ManifestTarget",
    "NoQuorum",
    "NotAVolume",
    "NotFound",
    "Pool",
    "PoolFull",
    "RangeError",
    "ReadOnly",
    "ReadTimeout",
    "RepairReport",
    "Replica",
    "ReplicaWarning",
    "SaveFailed",
    "SaveInProgress",
    "SaveStats",
    "Shard",
    "Shards",
    "Source",
    "Stats",
    "StoreReplicaStats",
    "TargetLost",
    "Ticket",
    "VerifyReport",
    "VolumeOccupied",
    "make_plan",
    "open",
]
