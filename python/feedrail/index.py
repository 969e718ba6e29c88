"""Indexes: where the samples of a data set lie."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import numpy as np

from feedrail._dtypes import PLAN_DTYPE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: A record of `index.npy`: `length` bytes at `offset` of shard number `shard`, and the CRC-32C of
#: these bytes, 0 if it was not computed. 20 bytes.
INDEX_DTYPE = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8"), ("crc32c", "<u4")])


class Samples(Protocol):
    """What tells where samples lie: an `Index`, or a rule such as that of token windows."""

    def __len__(self) -> int:
        """Number of samples."""

    def plan(self, indices: NDArray[np.int64]) -> NDArray[np.void]:
        """A plan that reads samples one after the other into a buffer.

        Args:
            indices: Numbers of samples, shape `(n,)`, each from 0 to `len(self) - 1`.

        Returns:
            Entries of `PLAN_DTYPE`, shape `(n,)`.
        """


class Index:
    """Where each sample lies, as records of `INDEX_DTYPE`.

    Attributes:
        records: The records, shape `(samples,)`; a memory-mapped file where it was loaded.
    """

    records: NDArray[np.void]

    def __init__(self, records: NDArray[np.void]) -> None:
        if records.dtype != INDEX_DTYPE or records.ndim != 1:
            raise TypeError(
                f"an index is one-dimensional, of INDEX_DTYPE: not {records.shape} {records.dtype}"
            )
        self.records = records

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Index:
        """Maps an `index.npy` into memory; processes that load it share its pages.

        Raises:
            TypeError: the file has another dtype or shape.
            ValueError: it is no `.npy` file, or is shorter than its header says.
        """
        return cls(np.load(path, mmap_mode="r", allow_pickle=False))

    @classmethod
    def of(cls, offsets: ArrayLike, lengths: ArrayLike, *, shard: ArrayLike = 0) -> Index:
        """An index of ranges; `lengths` and `shard` may be one number for all.

        Raises:
            ValueError: a number is negative or too large for its field.
        """
        from feedrail._dtypes import make_plan

        plan = make_plan(offsets, lengths, shard=shard, dst=0)
        records = np.zeros(len(plan), INDEX_DTYPE)
        for field in ("shard", "length", "offset"):
            records[field] = plan[field]
        return cls(records)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an `index.npy`."""
        np.save(path, self.records, allow_pickle=False)

    def plan(self, indices: NDArray[np.int64]) -> NDArray[np.void]:
        """A plan that reads samples one after the other: see `Samples.plan`."""
        found = self.records[indices]
        return packed_plan(found["shard"], found["offset"], found["length"])

    def __len__(self) -> int:
        return len(self.records)

    def __reduce__(self) -> tuple[object, ...]:
        mapped = self.records
        if isinstance(mapped, np.memmap) and mapped.filename and mapped.base is not None:
            return Index.load, (os.fspath(mapped.filename),)
        return Index, (np.asarray(mapped),)

    def __repr__(self) -> str:
        return f"<feedrail.index.Index: {len(self)} samples>"


class Windows:
    """Windows of equal length at equal distances in each shard, without a table.

    Args:
        shard_bytes: Bytes of each shard, shape `(shards,)`.
        window_bytes: Bytes of a window.
        stride_bytes: Distance of the beginnings of two windows of a shard.
        header_bytes: Bytes before the first window of a shard.
    """

    def __init__(
        self, shard_bytes: ArrayLike, window_bytes: int, stride_bytes: int, header_bytes: int = 0
    ) -> None:
        self._window, self._stride, self._header = window_bytes, stride_bytes, header_bytes
        room = np.asarray(shard_bytes, np.int64) - header_bytes - window_bytes
        counts = np.where(room >= 0, room // stride_bytes + 1, 0)
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts

    def plan(self, indices: NDArray[np.int64]) -> NDArray[np.void]:
        """A plan that reads windows one after the other: see `Samples.plan`."""
        shards = np.searchsorted(self._ends, indices, side="right")
        offsets = (indices - self._begins[shards]) * self._stride + self._header
        return packed_plan(shards, offsets, self._window)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0


def packed_plan(shard: ArrayLike, offset: NDArray[np.integer], length: ArrayLike) -> NDArray[np.void]:
    """A plan of ranges that follow each other in the buffer."""
    plan = np.empty(len(offset), PLAN_DTYPE)
    plan["shard"], plan["offset"], plan["length"] = shard, offset, length
    ends = np.cumsum(plan["length"], dtype=np.uint64)
    plan["dst"] = ends - plan["length"]
    return plan
