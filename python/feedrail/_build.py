"""Building indexes: which shards there are, and how they are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail import _core
from feedrail._dtypes import make_plan
from feedrail._errors import FormatError
from feedrail._keys import Keys
from feedrail._source import Source
from feedrail._source import open as open_source
from feedrail.index import INDEX_DTYPE, Index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from feedrail._typing import Progress

#: What is known of a data set besides its shards.
_NO_SHARDS = {"manifest.json", "index.npy", "keys.npz"}
_MDS_INDEX = "index.json"
#: Bytes of the longest `index.json` that is read.
_MDS_INDEX_MAX = 256 << 20

#: A path, or the length of a shard and a function that reads bytes of it.
_Place = str | tuple[int, "Callable[[int, int], memoryview]"]


@dataclass(frozen=True)
class _Candidate:
    """What may be a shard: a file, or a shard of a source with its number there."""

    name: str
    nbytes: int
    place: _Place
    number: int = 0

    def read(self) -> bytes:
        """All bytes."""
        if isinstance(self.place, str):
            return Path(self.place).read_bytes()
        return bytes(self.place[1](0, self.nbytes))


@dataclass(frozen=True)
class _Listed:
    """A shard, and the `.idx` of Megatron beside it."""

    shard: _Candidate
    idx: _Candidate | None = None


def build_index(
    source: Source | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: dict[str, Any],
    *,
    with_keys: bool,
    progress: Progress | None,
) -> Index:
    """See `feedrail.index.build`."""
    if isinstance(source, str) and source.startswith("nvmf://"):
        source = open_source(source)
    if isinstance(source, Source):
        listed = _arrange(_of_source(source))
        numbered = [(shard.shard.number, shard) for shard in listed]
    else:
        paths = [source] if isinstance(source, (str, os.PathLike)) else source
        numbered = list(enumerate(shard for path in paths for shard in _of_path(Path(path))))
    if not numbered:
        raise FileNotFoundError("there are no shards")
    keys = _core.Keys() if with_keys else None
    total = sum(listed.shard.nbytes for _, listed in numbered)
    records: list[NDArray[np.void]] = []
    before = 0
    for number, listed_shard in numbered:
        sink = _Sink(records, before, total, progress)
        shard, idx = listed_shard.shard, listed_shard.idx
        try:
            _core.index_shard(
                number, shard.name, shard.place, idx.place if idx else None, options, keys, sink
            )
        except FormatError as error:
            error.args = (f"{shard.name}, offset {error.offset}: {error}",)
            raise
        before += shard.nbytes
    made = np.concatenate(records) if records else np.zeros(0, INDEX_DTYPE)
    return Index(made, None if keys is None else _keys(keys))


@dataclass
class _Sink:
    """Takes samples of a shard, and tells of progress."""

    records: list[NDArray[np.void]]
    before: int
    total: int
    progress: Progress | None

    def __call__(self, records: bytes, done: int) -> None:
        self.records.append(np.frombuffer(records, INDEX_DTYPE))
        if self.progress is not None:
            self.progress(self.before + done, self.total)


def _keys(keys: _core.Keys) -> Keys:
    arrays = keys.arrays()
    return Keys({name: np.frombuffer(data, dtype) for name, (dtype, data) in arrays.items()})


def _of_source(source: Source) -> list[_Candidate]:
    return [
        _Candidate(shard.name, shard.nbytes, (shard.nbytes, _Reader(source, number).read), number)
        for number, shard in enumerate(source.shards)
    ]


class _Reader:
    """Reads a shard of a source into one buffer, again and again."""

    def __init__(self, source: Source, shard: int) -> None:
        self._source, self._shard = source, shard
        self._buffer: _core.Buffer | None = None

    def read(self, offset: int, length: int) -> memoryview:
        """Bytes of the shard, which are there until the next call."""
        buffer = self._buffer
        if buffer is None or buffer.nbytes < length:
            buffer = self._buffer = _core.Buffer.allocate(max(length, 64 << 10))
        self._source.read_many(make_plan([offset], [length], shard=self._shard), buffer)
        return memoryview(buffer)[:length]


def _of_path(path: Path) -> list[_Listed]:
    """The shards of a folder, or the file, which is a shard whatever its name is."""
    if path.is_dir():
        return _arrange(_of_file(file) for file in sorted(path.iterdir()) if file.is_file())
    idx = path.with_suffix(".idx")
    has_idx = path.suffix == ".bin" and idx.is_file()
    return [_Listed(_of_file(path), _of_file(idx) if has_idx else None)]


def _of_file(path: Path) -> _Candidate:
    return _Candidate(path.name, path.stat().st_size, str(path))


def _arrange(candidates: Iterable[_Candidate]) -> list[_Listed]:
    """Which are shards, in their order; in that of the `index.json` of MDS where there is one."""
    all_of_them = list(candidates)
    by_name: dict[str, _Candidate] = {}
    for candidate in all_of_them:
        by_name.setdefault(candidate.name, candidate)
    if _MDS_INDEX in by_name:
        return [_Listed(shard) for shard in _in_mds_order(by_name)]
    listed = []
    for candidate in all_of_them:
        stem, dot, ending = candidate.name.rpartition(".")
        is_idx = dot and ending == "idx" and f"{stem}.bin" in by_name
        if not (candidate.name.startswith(".") or candidate.name in _NO_SHARDS or is_idx):
            idx = by_name.get(f"{stem}.idx") if dot and ending == "bin" else None
            listed.append(_Listed(candidate, idx))
    return listed


def _in_mds_order(by_name: dict[str, _Candidate]) -> list[_Candidate]:
    from feedrail.formats.mds import MdsIndex

    index = by_name[_MDS_INDEX]
    if index.nbytes > _MDS_INDEX_MAX:
        raise FormatError(f"{_MDS_INDEX} has {index.nbytes} bytes", shard=index.number, offset=0)
    ordered = []
    for shard in MdsIndex.parse(index.read()).shards:
        found = by_name.pop(shard.basename, None)
        if found is None:
            raise FormatError(f"{_MDS_INDEX} names {shard.basename}, which is not there, or twice")
        if found.nbytes != shard.nbytes:
            raise FormatError(
                f"{shard.basename} has {found.nbytes} bytes, but {_MDS_INDEX} says {shard.nbytes}",
                shard=found.number,
            )
        ordered.append(found)
    return ordered


