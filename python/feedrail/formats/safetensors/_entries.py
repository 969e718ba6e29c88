"""The entries of a checkpoint, read as the shards of a source are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail._errors import FeedrailError
from feedrail._shards import Shard, Shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from numpy.typing import NDArray

    from feedrail import _core
    from feedrail._checkpoints import Checkpoint
    from feedrail._typing import Progress

#: Ranges with fewer bytes between them are read together: all of a unit is read for its checksum.
_GAP_BYTES = 1 << 20
#: Bytes that are read together for several ranges, at most.
_TOGETHER_BYTES = 16 << 20


class EntrySource:
    """A checkpoint as a source, whose shards are its entries.

    Attributes:
        shards: The entries, by number and by name.
        url: What it is called.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.url = f"checkpoint {checkpoint.name}"
        entries = checkpoint.entries.items()
        self.shards = Shards([Shard(name, nbytes, 0, None, None) for name, nbytes in entries])

    def open(self, number: int) -> EntryFile:
        """An entry as a file."""
        return EntryFile(self._checkpoint, self.shards[number])

    def submit(self, plan: NDArray[np.void], out: _core.Buffer) -> EntryTicket:
        """A plan that is read when it is waited for."""
        return EntryTicket(self._checkpoint, self.shards, plan, out)

    def close(self) -> None:
        """Nothing: the store belongs to the caller."""


class EntryFile:
    """An entry as a file, with the methods that headers are read by."""

    def __init__(self, checkpoint: Checkpoint, entry: Shard) -> None:
        self._checkpoint, self._entry = checkpoint, entry

    def pread(self, n: int, offset: int) -> bytes:
        """Reads `n` bytes at `offset`, fewer at the end."""
        count = max(0, min(n, self._entry.nbytes - offset))
        return bytes(self._checkpoint.read(self._entry.name, offset, count)) if count else b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""


class EntryTicket:
    """A plan that `wait` reads, with the checksums of all units that its ranges lie in."""

    def __init__(
        self, checkpoint: Checkpoint, shards: Shards, plan: NDArray[np.void], out: _core.Buffer
    ) -> None:
        self._checkpoint, self._shards = checkpoint, shards
        self._plan, self._out = plan, out
        self._is_cancelled = False

    def wait(self, timeout: float | None = None, *, progress: Progress | None = None) -> None:
        """Reads it.

        Raises:
            Damaged: bytes do not have their checksum, on any replica.
            FeedrailError: bytes could not be read, or it was cancelled.
        """
        done, nbytes = 0, int(self._plan["length"].sum(dtype=np.uint64))
        with memoryview(self._out) as memory:
            for entries in _together(self._plan):
                if self._is_cancelled:
                    raise FeedrailError("the read was cancelled")
                self._read(entries, memory)
                done += int(entries["length"].sum(dtype=np.uint64))
                if progress is not None:
                    progress(done, nbytes)

    def cancel(self) -> int:
        """Ends it before its next range; nothing ends immediately."""
        self._is_cancelled = True
        return 0

    def _read(self, entries: NDArray[np.void], memory: memoryview) -> None:
        """Reads ranges of one entry of the checkpoint, with what is between them."""
        name = self._shards[int(entries["shard"][0])].name
        begin, end = _begin(entries[0]), _end(entries[-1])
        if len(entries) == 1:
            at = int(entries["dst"][0])
            self._checkpoint.read(name, begin, into=memory[at : at + end - begin])
            return
        around = np.empty(end - begin, np.uint8).data
        self._checkpoint.read(name, begin, into=around)
        for _, length, offset, dst in entries.tolist():
            memory[dst : dst + length] = around[offset - begin : offset - begin + length]


def _together(plan: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    """The ranges of a plan, in groups that are read together: those of a tensor are in order."""
    first = 0
    for last in range(1, len(plan) + 1):
        if last == len(plan) or not _is_near(plan[first], plan[last - 1], plan[last]):
            yield plan[first:last]
            first = last


def _is_near(first: Any, one: Any, other: Any) -> bool:
    """Whether a range is read together with the one before it, in a group that begins at `first`."""
    if one["shard"] != other["shard"] or _end(other) - _begin(first) > _TOGETHER_BYTES:
        return False
    return bool(0 <= _begin(other) - _end(one) < _GAP_BYTES)


def _begin(entry: Any) -> int:
    return int(entry["offset"])


def _end(entry: Any) -> int:
    return int(entry["offset"]) + int(entry["length"])
