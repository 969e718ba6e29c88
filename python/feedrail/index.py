"""Indexes: where the samples of a data set lie."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from feedrail._dtypes import PLAN_DTYPE
from feedrail._keys import Keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import TypeIs

    from feedrail._source import Source
    from feedrail._typing import Progress

__all__ = ["INDEX_DTYPE", "Index", "Keys", "Samples", "Windows", "build", "has_checksums"]

#: A record of `index.npy`: `length` bytes at `offset` of shard number `shard`, and the CRC-32C of
#: these bytes, 0 if it was not computed. 20 bytes.
INDEX_DTYPE = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8"), ("crc32c", "<u4")])


#: What is said where samples cannot be verified.
NO_CHECKSUMS = "verify=True, but the index has no checksums: build it with crc=True"


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


@runtime_checkable
class CheckedSamples(Samples, Protocol):
    """Samples whose bytes are known by their checksums."""

    def checksums(self, indices: NDArray[np.int64]) -> NDArray[np.uint32]:
        """CRC-32C of samples, shape `(n,)`; 0 where it was not computed."""


def has_checksums(samples: Samples) -> TypeIs[CheckedSamples]:
    """Whether samples have checksums: `build` computed them, or `feedrail index --crc`."""
    return isinstance(samples, CheckedSamples) and (
        not isinstance(samples, Index) or samples.has_checksums
    )


class Index:
    """Where each sample lies, as records of `INDEX_DTYPE`.

    Attributes:
        records: The records, shape `(samples,)`; a memory-mapped file where it was loaded.
        keys: Keys and members of the samples, if they were built or loaded.
    """

    records: NDArray[np.void]
    keys: Keys | None

    def __init__(self, records: NDArray[np.void], keys: Keys | None = None) -> None:
        if records.dtype != INDEX_DTYPE or records.ndim != 1:
            raise TypeError(
                f"an index is one-dimensional, of INDEX_DTYPE: not {records.shape} {records.dtype}"
            )
        if keys is not None and len(keys) != len(records):
            raise ValueError(f"keys of {len(keys)} samples, for an index of {len(records)}")
        self.records, self.keys = records, keys

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], keys: str | os.PathLike[str] | None = None
    ) -> Index:
        """Maps an `index.npy` into memory; processes that load it share its pages.

        Args:
            path: The file that `save` or `feedrail index` wrote.
            keys: The file that `Keys.save` or `feedrail index --keys` wrote.

        Raises:
            TypeError: the file has another dtype or shape.
            ValueError: it is no `.npy` file, or is shorter than its header says; or the keys are
                not those of as many samples.
        """
        records = np.load(path, mmap_mode="r", allow_pickle=False)
        return cls(records, None if keys is None else Keys.load(keys))

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
        """Writes an `index.npy`. `keys.save` writes the keys, if there are any."""
        np.save(path, self.records, allow_pickle=False)

    def plan(self, indices: NDArray[np.int64]) -> NDArray[np.void]:
        """A plan that reads samples one after the other: see `Samples.plan`."""
        found = self.records[indices]
        return packed_plan(found["shard"], found["offset"], found["length"])

    def checksums(self, indices: NDArray[np.int64]) -> NDArray[np.uint32]:
        """CRC-32C of samples, shape `(n,)`; 0 where it was not computed."""
        return np.asarray(self.records["crc32c"][indices], np.uint32)

    @property
    def has_checksums(self) -> bool:
        """Whether CRC-32C were computed; looks at 1,024 samples."""
        some = self.records["crc32c"][:: max(1, len(self) // 1024)]
        return len(self) == 0 or bool(some.any())

    def __len__(self) -> int:
        return len(self.records)

    def __reduce__(self) -> tuple[object, ...]:
        mapped = self.records
        if isinstance(mapped, np.memmap) and mapped.filename and mapped.base is not None:
            if self.keys is None:
                return Index.load, (os.fspath(mapped.filename),)
            return _with_keys, (os.fspath(mapped.filename), self.keys)
        return Index, (np.asarray(mapped), self.keys)

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


def build(
    source: Source | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    crc: bool = False,
    keys: bool = False,
    dtype: DTypeLike | None = None,
    block_size: int = 1024,
    stride: int | None = None,
    array: str | None = None,
    progress: Progress | None = None,
) -> Index:
    """Finds the samples of shards, as `feedrail index` does.

    Only headers, footers and tables are read, unless `crc` is set.

    Args:
        source: A `Source` or its URL: shards have the numbers that they have in `source.shards`.
            Or a file, a folder, or a list of them: shards are numbered in the order of the list,
            those of a folder in the order of their names. The `index.json` of MDS, where there is
            one, tells the order of samples, and for files that of the shards. `manifest.json`,
            `index.npy`, `keys.npz`, hidden files and the `.idx` beside a `.bin` are no shards.
        format: `"tokens"`, `"megatron"`, `"webdataset"`, `"mds"`, `"tfrecord"`, `"safetensors"`,
            `"npy"`, `"npz"` or `"parquet"`; found by first bytes and name if `None`.
        crc: Whether all bytes are read and the CRC-32C of samples computed.
        keys: Whether `Index.keys` has the keys and members of samples. They take 16 bytes
            of memory a sample and 20 a member, besides the text of keys.
        dtype: Type of tokens without a header; `uint16` if `None`.
        block_size: Tokens that a sample predicts; it has one more.
        stride: Tokens between the beginnings of two samples; `block_size` if `None`.
        array: Array of an npz whose rows are the samples; each array is one if `None`.
        progress: Called with the bytes of shards that are done and of all.

    Raises:
        FormatError: a shard is damaged, or no range of its bytes is a sample. It has `shard` and
            `offset`.
        FileNotFoundError: there is no such file, or there are no shards at all.
        ValueError: an option is not known, or out of its bounds.
        FeedrailError: a shard of a target could not be read.
    """
    from feedrail._build import build_index

    options = {
        "format": format,
        "crc": crc,
        "dtype": None if dtype is None else np.dtype(dtype).name,
        "block_size": block_size,
        "stride": stride,
        "array": array,
    }
    return build_index(source, options, with_keys=keys, progress=progress)


def _with_keys(path: str, keys: Keys) -> Index:
    return Index(Index.load(path).records, keys)


def packed_plan(shard: ArrayLike, offset: NDArray[np.integer], length: ArrayLike) -> NDArray[np.void]:
    """A plan of ranges that follow each other in the buffer."""
    plan = np.empty(len(offset), PLAN_DTYPE)
    plan["shard"], plan["offset"], plan["length"] = shard, offset, length
    ends = np.cumsum(plan["length"], dtype=np.uint64)
    plan["dst"] = ends - plan["length"]
    return plan
