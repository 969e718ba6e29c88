"""The native module."""

from collections.abc import Callable
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer as ReadableBytes

from feedrail._errors import FeedrailError
from feedrail._typing import Progress, Readable, Writable

@final
class Buffer:
    """Registered memory that batches read into or write from.

    It exports its bytes by the buffer protocol and DLPack, without copies. The memory lives as long
    as the buffer, its arrays and tensors, and the batches that use it. Memory that came from an
    array keeps that array until every device has forgotten it.
    """

    @property
    def nbytes(self) -> int:
        """Number of bytes in it."""

    @property
    def device(self) -> str:
        """Where the memory is: `"cpu"`."""

    @property
    def path(self) -> str:
        """How bytes get there: `"host"` is registered memory of the host, without a copy."""

    @property
    def address(self) -> int:
        """The address of the first byte."""

    @staticmethod
    def allocate(nbytes: int) -> Buffer:
        """Allocates zeroed memory, which begins a page."""

    @staticmethod
    def of(object: Readable) -> Buffer:
        """Registers the memory of an array or a tensor: see `Source.register`."""

    @staticmethod
    def of_source(object: Writable) -> Buffer:
        """Registers memory, read-only or not, that is only written from."""

    @staticmethod
    def of_address(address: int, length: int, owner: object) -> Buffer:
        """Registers memory at an address: see `Source.register_ptr`."""

    def as_numpy(
        self, dtype: DTypeLike | None = None, shape: tuple[int, ...] | int | None = None
    ) -> NDArray[Any]:
        """An array of numpy's in the memory, of its first bytes if there are more.

        Args:
            dtype: Type of the elements; `uint8` if `None`.
            shape: Without it, as many elements as there is room for, in one dimension.

        Raises:
            ValueError: the shape does not fit.
        """

    def as_tensor(
        self,
        dtype: DTypeLike | torch.dtype | None = None,
        shape: tuple[int, ...] | int | None = None,
    ) -> torch.Tensor:
        """A tensor of torch's in the memory, of its first bytes if there are more.

        Args:
            dtype: A type of torch's or of numpy's; `uint8` if `None`.
            shape: Without it, as many elements as there is room for, in one dimension.

        Raises:
            ImportError: torch is not installed.
            ValueError: the shape does not fit.
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Pool:
    """Registered memory of the host, lent in parts that are multiples of 4,096 bytes.

    A part comes back by itself when its buffer, the arrays made of it and the batches that read
    into it are gone.
    """

    def __new__(cls, nbytes: int) -> Pool: ...
    @property
    def nbytes(self) -> int:
        """Number of bytes, lent or not."""

    @property
    def free(self) -> int:
        """Number of bytes that are not lent, in parts of any length."""

    def take(self, nbytes: int, *, timeout: float | None = None) -> Buffer:
        """Lends `nbytes` bytes.

        Args:
            nbytes: Length of the buffer.
            timeout: Seconds to wait for memory to come back; 0 if `None`.

        Raises:
            PoolFull: there are not that many bytes in one piece.
            ForkedHandleError: the pool belongs to the process that this was forked from.
        """

@final
class Ticket:
    """A batch under way: `feedrail.Ticket` wraps it."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None, progress: Progress | None = None) -> bool: ...
    def mismatches(self, crc32c: bytes) -> list[tuple[int, FeedrailError]]: ...
    def cancel(self) -> int: ...
    def fileno(self) -> int: ...
    def results(self) -> bytes: ...
    def failures(self, at_most: int) -> list[tuple[int, FeedrailError]]: ...

@final
class Manifest:
    """The parts of a manifest: `feedrail.Manifest` wraps it."""

    def __new__(cls, text: bytes) -> Manifest: ...
    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def content_hash(self) -> str: ...
    def targets(self) -> list[tuple[str, str, str]]: ...
    def shards(self) -> list[dict[str, Any]]: ...
    def index(self) -> tuple[str, str, int] | None: ...
    def ranked(self, shard: int) -> list[int]: ...
    def check_index(self, index: Readable) -> None: ...

@final
class Session:
    """Connections, and the namespaces that are open: `feedrail.Source` wraps it."""

    def __new__(
        cls,
        *,
        provider: str,
        local_address: str | None,
        io_queues: int,
        queue_entries: int,
        io_timeout: float,
        loss_timeout: float | None,
        host_nqn: str | None,
        secrets: dict[str, str | None],
    ) -> Session: ...
    def open(
        self,
        address: str,
        port: int,
        nqn: str,
        *,
        nsid: int | None = None,
        name: str | None = None,
    ) -> list[dict[str, Any]]: ...
    def open_manifest(
        self, manifest: Manifest, spread: bool, known: list[list[tuple[int, int]]]
    ) -> None: ...
    def replicas(
        self, shard: int
    ) -> list[tuple[str, Literal["used", "away", "out"], str | None, int | None]]: ...
    def checksum(self, shard: int, replica: int) -> int | None: ...
    def take_out(self, shard: int, replica: int, reason: str) -> None: ...
    def targets_away(self) -> list[str]: ...
    def submit(
        self, plan: NDArray[np.void], out: Buffer, timeout: float | None, background: bool
    ) -> Ticket: ...
    def read(
        self,
        plan: NDArray[np.void],
        out: Buffer,
        timeout: float | None,
        background: bool,
        progress: Progress | None = None,
    ) -> Ticket: ...
    def submit_write(
        self,
        plan: NDArray[np.void],
        data: Buffer,
        timeout: float | None,
        background: bool,
        durable: bool,
    ) -> Ticket: ...
    def write(
        self,
        plan: NDArray[np.void],
        data: Buffer,
        timeout: float | None,
        durable: bool,
        progress: Progress | None = None,
    ) -> Ticket: ...
    def flush(self, shards: list[int], timeout: float | None) -> None: ...
    def providers(self) -> list[str]: ...
    def counters(self) -> dict[str, Any]: ...

@final
class CheckpointVolume:
    """A volume with its replicas: `feedrail.CheckpointStore` wraps it."""

    def __new__(cls, urls: list[str], mode: str, options: dict[str, Any]) -> CheckpointVolume: ...
    @staticmethod
    def format(urls: list[str], force: bool, unit_shift: int, options: dict[str, Any]) -> str: ...
    def begin(
        self, name: str, step: int, metadata: bytes, keep: int | None
    ) -> CheckpointSave: ...
    def begin_file(self, checkpoint: str, entry: str) -> EntryFile: ...
    def rename(
        self,
        checkpoint: str,
        entry: str | None,
        to_checkpoint: str,
        to_entry: str | None,
        replace: bool,
    ) -> None: ...
    def remove(self, checkpoint: str, entry: str | None) -> None: ...
    def list(self) -> _CheckpointParts: ...
    def entries(self, checkpoint: str) -> _EntryParts: ...
    def read(self, checkpoint: str, entry: str, offset: int, into: Readable) -> None: ...
    def delete(self, checkpoint: str) -> None: ...
    def keep(self, count: int) -> None: ...
    def renew(self) -> None: ...
    def verify(self, checkpoint: str | None) -> _VerifyParts: ...
    def repair(self, missed_only: bool) -> _RepairParts: ...
    def replicas(self) -> _ReplicaParts: ...
    def summary(self) -> dict[str, Any]: ...
    def stats(self) -> _StoreStatsParts: ...
    def close(self) -> None: ...

# In the class, `list` is its method.
_CheckpointParts = list[tuple[str, int, int, bytes, int, int]]
_EntryParts = list[tuple[str, int]]
_DamagedParts = list[tuple[int, tuple[str, str, int, int, int]]]
_VerifyParts = tuple[int, _DamagedParts, list[int]]
_RepairParts = list[tuple[int, list[str], list[str], int, int, _DamagedParts]]
_StoreStatsParts = list[tuple[int, int, float, int, int, float, int]]
_ReplicaParts = list[tuple[Literal["current", "stale", "away"], Exception | None]]

@final
class CheckpointSave:
    """A save: `feedrail.CheckpointSave` wraps it."""

    @property
    def has_ended(self) -> bool: ...
    def write(self, name: str, data: Readable) -> None: ...
    def reserve(self, name: str, length: int) -> str: ...
    def accept(self, name: str, written: str) -> None: ...
    def withdraw(self, name: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

@final
class EntryFile:
    """A file in a checkpoint before its commit. One thread at a time writes to it."""

    @property
    def length(self) -> int: ...
    def append(self, data: Readable) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

@final
class RankWriter:
    """Writer of an entry that a save of another process has reserved."""

    def __new__(
        cls, urls: list[str], reservation: str, options: dict[str, Any]
    ) -> RankWriter: ...
    def append(self, data: Readable) -> None: ...
    def finish(self) -> str: ...
    def close(self) -> None: ...

#: Host, port, NQN, name and identifier of a namespace.
UrlParts = tuple[str, int, str, str | None, int | None]

def parse_url(url: str) -> UrlParts: ...
def format_url(parts: UrlParts) -> str: ...
def after_fork_in_child() -> None: ...
def release_forgotten() -> None:
    """Lets go of the arrays whose memory every device has forgotten, as other calls do first."""

def crc32c(data: ReadableBytes, crc: int = 0) -> int:
    """CRC-32C of bytes, with those before them if `crc` is theirs."""

def safetensors_tensors(
    shard: int, length: int, read: Callable[[int, int], ReadableBytes]
) -> list[tuple[str, str, list[int], int, int]]:
    """Name, type, shape, first byte and length of each tensor, in the order of their bytes."""

def webdataset_members(
    data: ReadableBytes, begin: int, end: int
) -> tuple[str, list[tuple[str, int, int]]]:
    """Key and members of the sample in a part of a buffer; of each the name, first byte, length."""

#: Name, bytes, samples, UUID in hexadecimal digits, generation and CRC-32C of a shard.
DescribedShard = tuple[str, int, int, str | None, int | None, int | None]

@final
class ShardTable:
    """The shards of an index: `feedrail.index.Index.shards` has them as objects."""

    def __new__(cls, shards: list[DescribedShard]) -> ShardTable: ...
    @staticmethod
    def parse(behind_records: bytes) -> ShardTable | None: ...
    def to_bytes(self) -> bytes: ...
    def shards(self) -> list[DescribedShard]: ...
    def numbers_in(self, source: list[DescribedShard]) -> list[int | None]: ...

@final
class Keys:
    """Keys and members of samples: `feedrail.index.Keys` has them as arrays."""

    def __new__(cls) -> Keys: ...
    def arrays(self) -> dict[str, tuple[str, bytes]]: ...

def index_shard(
    number: int,
    name: str,
    data: str | tuple[int, Callable[[int, int], ReadableBytes]],
    idx: str | tuple[int, Callable[[int, int], ReadableBytes]] | None,
    options: dict[str, Any],
    keys: Keys | None,
    sink: Callable[[bytes, int], object],
) -> str:
    """Gives the samples of a shard to `sink`, and returns the name of its format."""

@final
class Order:
    """Which sample is at which position of one epoch."""

    def __init__(self, order: str, samples: int, seed: int, epoch: int) -> None:
        """An order `sequential`, `global`, `torch` or `block:BLOCK:WINDOW`."""

    def rank_len(self, rank: int, world: int, leftover: str) -> int:
        """How many samples a rank has; `leftover` is `keep`, `pad` or `drop`."""

    def of_rank(self, split: tuple[int, int, str], first: int, count: int) -> bytes:
        """Samples of a rank from its number `first` on, as bytes of `int64`."""

    def of_batch(self, batch: tuple[int, int], rank: int, world: int) -> bytes:
        """Samples of a rank among the positions of a global batch, as bytes of `int64`."""

@final
class Sequence:
    """What the batches of a training run follow from."""

    def __init__(
        self,
        dataset: str,
        samples: int,
        order: str,
        seed: int,
        global_batch: int,
        drop_last: bool,
    ) -> None:
        """A sequence; `dataset` is a text that differs for different data."""

    @property
    def epoch_samples(self) -> int:
        """How many samples an epoch reads."""

    def state(self, epoch: int, consumed: int) -> str:
        """The state of a loader, as JSON."""

    def resume(self, state: str) -> tuple[int, int]:
        """Epoch and consumed samples of a state in JSON."""

    def batches(self, consumed: int, skip: int, step: int) -> Batches:
        """The batches after `consumed` samples: number `skip`, and every `step`-th from there."""

@final
class Batches:
    """Iterates over the positions of batches."""

    def __iter__(self) -> Batches: ...
    def __next__(self) -> tuple[int, int]: ...
