"""Building indexes: which shards there are, and how they are read."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail import _core
from feedrail._dtypes import make_plan
from feedrail._errors import FormatError, NotFound
from feedrail._keys import Keys
from feedrail._local import files_of
from feedrail._open import open as open_source
from feedrail._source import Source
from feedrail.index import INDEX_DTYPE, Index, IndexShard, described

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
    if isinstance(source, str) and source.startswith(("nvmf:", "file:")):
        source = open_source(source)
    if isinstance(source, Source):
        listed = _arrange(_of_source(source))
        numbered = [(shard.shard.number, shard) for shard in listed]
        table = [IndexShard(*shard) for shard in described(source)]
    else:
        paths = [source] if isinstance(source, (str, os.PathLike)) else source
        numbered = list(enumerate(shard for path in paths for shard in _of_path(Path(path))))
        table = [IndexShard(it.shard.name, it.shard.nbytes) for _, it in numbered]
    if not numbered:
        raise NotFound("there are no shards")
    keys = _core.Keys() if with_keys else None
    total = sum(listed.shard.nbytes for _, listed in numbered)
    records: list[NDArray[np.void]] = [np.zeros(0, INDEX_DTYPE)]
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
        table[number] = replace(table[number], samples=sink.samples)
    return Index(np.concatenate(records), None if keys is None else _keys(keys), table)


@dataclass
class _Sink:
    """Takes samples of a shard, and tells of progress."""

    records: list[NDArray[np.void]]
    before: int
    total: int
    progress: Progress | None
    samples: int = field(default=0, init=False)

    def __call__(self, records: bytes, done: int) -> None:
        found = np.frombuffer(records, INDEX_DTYPE)
        self.records.append(found)
        self.samples += len(found)
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
    """The shards of a folder and those in it, or the file, which is a shard whatever its name is."""
    if path.is_dir():
        return _arrange(_of_folder(path))
    idx = path.with_suffix(".idx")
    has_idx = path.suffix == ".bin" and idx.is_file()
    return [_Listed(_of_file(path), _of_file(idx) if has_idx else None)]


def _of_file(path: Path, name: str | None = None) -> _Candidate:
    return _Candidate(name or path.name, path.stat().st_size, str(path))


def _of_folder(path: Path) -> list[_Candidate]:
    """What a target exports of a folder, in its order: no hidden files, and no empty ones."""
    found = [_of_file(path / name, name) for name in files_of(path)]
    if empty := [file.name for file in found if not file.nbytes]:
        warnings.warn(f"{path}: empty files are no shards: {', '.join(empty[:8])}", stacklevel=5)
    return [file for file in found if file.nbytes]


def _arrange(candidates: Iterable[_Candidate]) -> list[_Listed]:
    """Which are shards, in their order; in that of an `index.json` of MDS in its folder and below."""
    all_of_them = list(candidates)
    by_name: dict[str, _Candidate] = {}
    for candidate in all_of_them:
        by_name.setdefault(candidate.name, candidate)
    listed = []
    done: set[str] = set()
    for candidate in all_of_them:
        folder = _mds_folder(candidate.name, by_name)
        if folder is not None:
            if folder not in done:
                done.add(folder)
                listed += [_Listed(shard) for shard in _in_mds_order(folder, by_name)]
        elif _is_shard(candidate.name, by_name):
            stem, dot, ending = candidate.name.rpartition(".")
            idx = by_name.get(f"{stem}.idx") if dot and ending == "bin" else None
            listed.append(_Listed(candidate, idx))
    return listed


def _is_shard(name: str, by_name: dict[str, _Candidate]) -> bool:
    stem, dot, ending = name.rpartition(".")
    is_idx = dot and ending == "idx" and f"{stem}.bin" in by_name
    parts = name.split("/")
    return not (is_idx or parts[-1] in _NO_SHARDS or any(part.startswith(".") for part in parts))


def _mds_folder(name: str, by_name: dict[str, _Candidate]) -> str | None:
    """The outermost folder around a name that has an `index.json`, with a slash at its end."""
    parts = name.split("/")[:-1]
    folders = ("".join(f"{part}/" for part in parts[:depth]) for depth in range(len(parts) + 1))
    return next((folder for folder in folders if folder + _MDS_INDEX in by_name), None)


def _in_mds_order(folder: str, by_name: dict[str, _Candidate]) -> list[_Candidate]:
    from feedrail.formats.mds import MdsIndex

    index = by_name[folder + _MDS_INDEX]
    if index.nbytes > _MDS_INDEX_MAX:
        raise FormatError(f"{index.name} has {index.nbytes} bytes", shard=index.number, offset=0)
    ordered = []
    named: set[str] = set()
    for shard in MdsIndex.parse(index.read()).shards:
        name = folder + shard.basename
        found = None if name in named else by_name.get(name)
        if found is None:
            raise FormatError(f"{index.name} names {name}, which is not there, or twice")
        if found.nbytes != shard.nbytes:
            raise FormatError(
                f"{name} has {found.nbytes} bytes, but {index.name} says {shard.nbytes}",
                shard=found.number,
            )
        named.add(name)
        ordered.append(found)
    return ordered
