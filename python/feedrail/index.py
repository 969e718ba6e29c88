"""Indexes: where the samples of a data set lie."""

from __future__ import annotations

import io
import os
import warnings
from dataclasses import astuple, dataclass
from typing import IO, TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from feedrail import _core
from feedrail._dtypes import PLAN_DTYPE
from feedrail._errors import DatasetChanged
from feedrail._keys import Keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import TypeIs

    from feedrail._source import Source
    from feedrail._typing import Progress

__all__ = [
    "INDEX_DTYPE",
    "Index",
    "IndexShard",
    "Keys",
    "Samples",
    "Windows",
    "build",
    "has_checksums",
    "samples_in",
]

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


@dataclass(frozen=True)
class IndexShard:
    """A shard as an index knows it.

    Attributes:
        name: Name of the file or namespace, with its folders.
        nbytes: Number of bytes.
        samples: Number of samples of the index that it has.
        uuid: UUID of the namespace in hexadecimal digits, if it has one.
        generation: The generation that its target reported, compared with that of the same UUID.
        crc32c: CRC-32C of all its bytes, if the manifest had it.
    """

    name: str
    nbytes: int
    samples: int = 0
    uuid: str | None = None
    generation: int | None = None
    crc32c: int | None = None


class Index:
    """Where each sample lies, as records of `INDEX_DTYPE`.

    Readers find the shards by their names in the source that they read from: see `on`.

    Attributes:
        records: The records, shape `(samples,)`; a memory-mapped file where it was loaded. Their
            `shard` is a number in `shards`.
        keys: Keys and members of the samples, if they were built or loaded.
        shards: The shards that the records count; `None` if it was made of arrays, or loaded from a
            file without them: then numbers are those of the shards of a source.
    """

    records: NDArray[np.void]
    keys: Keys | None
    shards: tuple[IndexShard, ...] | None

    def __init__(
        self,
        records: NDArray[np.void],
        keys: Keys | None = None,
        shards: Sequence[IndexShard] | None = None,
    ) -> None:
        if records.dtype != INDEX_DTYPE or records.ndim != 1:
            raise TypeError(
                f"an index is one-dimensional, of INDEX_DTYPE: not {records.shape} {records.dtype}"
            )
        if keys is not None and len(keys) != len(records):
            raise ValueError(f"keys of {len(keys)} samples, for an index of {len(records)}")
        self.records, self.keys = records, keys
        self.shards = None if shards is None else tuple(shards)
        #: Of each shard its number in the source that is read from, where the two differ.
        self._numbers: NDArray[np.uint32] | None = None
        #: What `on` returned last, and the shards for which it did.
        self._last: tuple[object, Index] | None = None

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
            ValueError: it is no `.npy` file, or is shorter than its header says, or what follows
                the records is no table of shards; or the keys are not those of as many samples.

        Warns:
            UserWarning: the file has no names of shards, so that nothing can tell whether a source
                has them in its order.
        """
        records = np.load(path, mmap_mode="r", allow_pickle=False)
        with open(path, "rb") as file:
            shards = _shards_in(file)
        if shards is None:
            _warn_of_no_names(os.fspath(path))
        return cls(records, None if keys is None else Keys.load(keys), shards)

    @classmethod
    def parse(cls, data: bytes, name: str = "the index") -> Index:
        """Takes the bytes of an `index.npy` apart; `name` is for the warning.

        Raises:
            TypeError: it has another dtype or shape.
            ValueError: as `load`.
        """
        file = io.BytesIO(data)
        records = np.load(file, allow_pickle=False)
        shards = _shards_in(file)
        if shards is None:
            _warn_of_no_names(name)
        return cls(records, None, shards)

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
        text = os.fspath(path)
        with open(text if text.endswith(".npy") else f"{text}.npy", "wb") as file:
            np.save(file, self.records, allow_pickle=False)
            if self.shards is not None:
                file.write(_table(self.shards).to_bytes())

    def on(self, source: Source) -> Index:
        """The same samples, for plans that read them from a source: shards are found by name.

        Shards without samples need not be there, and others may be. Without names it is the index
        itself.

        Raises:
            DatasetChanged: a shard that has samples is not there, or has another size, checksum or
                generation. The message names the first.
        """
        if self.shards is None or self._numbers is not None:
            return self
        last = self._last
        if last is not None and last[0] is source.shards:
            return last[1]
        try:
            found = _table(self.shards).numbers_in(described(source))
        except ValueError as error:
            raise DatasetChanged(f"{source.url}: {error}") from None
        matched = self
        if any(number not in (None, own) for own, number in enumerate(found)):
            matched = Index(self.records, self.keys, self.shards)
            none = np.iinfo(np.uint32).max
            matched._numbers = np.array([none if it is None else it for it in found], np.uint32)
        self._last = source.shards, matched
        return matched

    def plan(self, indices: NDArray[np.int64]) -> NDArray[np.void]:
        """A plan that reads samples one after the other: see `Samples.plan`."""
        found = self.records[indices]
        shards = found["shard"] if self._numbers is None else self._numbers[found["shard"]]
        return packed_plan(shards, found["offset"], found["length"])

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
            place: object = os.fspath(mapped.filename)
        else:
            place = np.asarray(mapped)
        return _unpickled, (place, self.keys, self.shards, self._numbers)

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
    ignore_zeros: bool = False,
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
        ignore_zeros: Whether a tar archive is read on behind its end mark, for archives that were
            joined by `cat`. Else another archive there is a `FormatError`.
        progress: Called with the bytes of shards that are done and of all.

    Raises:
        FormatError: a shard is damaged, or no range of its bytes is a sample. It has `shard` and
            `offset`.
        NotFound: there are no shards at all.
        OSError: a file cannot be read.
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
        "ignore_zeros": ignore_zeros,
    }
    return build_index(source, options, with_keys=keys, progress=progress)


def samples_in(source: Source, samples: Samples) -> Samples:
    """Samples as a source has them: an index whose shards were found there by name.

    Raises:
        DatasetChanged: as `Index.on`.
    """
    return samples.on(source) if isinstance(samples, Index) else samples


def _unpickled(
    place: str | NDArray[np.void],
    keys: Keys | None,
    shards: tuple[IndexShard, ...] | None,
    numbers: NDArray[np.uint32] | None,
) -> Index:
    records = np.load(place, mmap_mode="r", allow_pickle=False) if isinstance(place, str) else place
    index = Index(records, keys, shards)
    index._numbers = numbers
    return index


def _table(shards: Sequence[IndexShard]) -> _core.ShardTable:
    return _core.ShardTable([astuple(shard) for shard in shards])


def described(source: Source) -> list[_core.DescribedShard]:
    """The shards of a source, as `IndexShard` has them."""
    checksums: list[int | None] = [None] * len(source.shards)
    if source.manifest is not None:
        checksums = [shard.crc32c for shard in source.manifest.shards]
    return [
        (shard.name, shard.nbytes, 0, shard.uuid, shard.generation, crc32c)
        for shard, crc32c in zip(source.shards, checksums, strict=True)
    ]


def _shards_in(file: IO[bytes]) -> tuple[IndexShard, ...] | None:
    """The table behind the records; `None` in a file of the old form."""
    file.seek(0)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    (samples,), _, dtype = read(file)
    file.seek(samples * dtype.itemsize, os.SEEK_CUR)
    table = _core.ShardTable.parse(file.read())
    return None if table is None else tuple(IndexShard(*shard) for shard in table.shards())


def _warn_of_no_names(name: str) -> None:
    warnings.warn(
        f"{name} has no names of its shards, so their order must be that of the source: write it "
        "again with `feedrail index` or feedrail.index.build",
        stacklevel=3,
    )


def packed_plan(shard: ArrayLike, offset: NDArray[np.integer], length: ArrayLike) -> NDArray[np.void]:
    """A plan of ranges that follow each other in the buffer."""
    plan = np.empty(len(offset), PLAN_DTYPE)
    plan["shard"], plan["offset"], plan["length"] = shard, offset, length
    ends = np.cumsum(plan["length"], dtype=np.uint64)
    plan["dst"] = ends - plan["length"]
    return plan
