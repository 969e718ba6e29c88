"""Shards as files of fsspec's, for pyarrow, Ray, pandas, datasets and others.

    fsspec.filesystem("nvmf").cat_file("nvmf://192.0.2.10/nqn.2026-01.org.example:shards/a.bin")

Paths are `nvmf://host[:port]/<nqn>/<name>`. A subsystem is a directory, and so are the parts of
names before a slash. Names are percent-encoded as in `feedrail.open`. Nothing can be written.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile

import feedrail
from feedrail._dtypes import make_plan
from feedrail._errors import IsDirectory, NotFound, ReadOnly
from feedrail._url import DEFAULT_PORT, SCHEME, NvmfUrl, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedrail import Source

#: Bytes of the longest range that an entry of a plan has here.
_ENTRY_BYTES = 1 << 30
#: Bytes that are read at a time where a file is copied.
_COPY_BYTES = 16 << 20


class NvmfFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """A file system that reads. It takes the options of `feedrail.open`, except the source.

    One connection per subsystem is kept, with what its shards were when it was first used;
    `invalidate_cache` forgets it. It can be pickled, and used after a fork.
    """

    protocol = SCHEME
    root_marker = ""

    def __init__(
        self,
        *,
        provider: Literal["auto", "verbs", "soft", "shm"] = "auto",
        local_address: str | None = None,
        io_queues: int = 1,
        queue_entries: int = 128,
        io_timeout: float = 30.0,
        loss_timeout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._options: dict[str, Any] = {
            "provider": provider,
            "local_address": local_address,
            "io_queues": io_queues,
            "queue_entries": queue_entries,
            "io_timeout": io_timeout,
            "loss_timeout": loss_timeout,
        }
        self._trees: dict[tuple[str, int, str], _Tree] = {}
        self._lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        host, slash, rest = os.fspath(path).removeprefix(f"{SCHEME}://").rstrip("/").partition("/")
        # A path has one spelling, or what `glob` finds would not begin with what it was given.
        return host.removesuffix(f":{DEFAULT_PORT}") + slash + escaped(rest)

    def unstrip_protocol(self, name: str) -> str:
        """The path with its protocol."""
        return f"{SCHEME}://{self._strip_protocol(name)}"

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets the shards of the subsystem that a path is in, or all."""
        with self._lock:
            if path is None:
                self._trees.clear()
            else:
                self._trees.pop(_Place.of(self._strip_protocol(path)).subsystem, None)
        super().invalidate_cache(path)

    def created(self, path: str) -> Any:
        """Always fails: targets do not tell."""
        raise NotImplementedError("targets do not tell when a shard was created")

    modified = created

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        place, tree = await self._locate(path)
        return tree.info(place)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        place, tree = await self._locate(path)
        listed = tree.list(place)
        return listed if detail else [info["name"] for info in listed]

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        found: list[bytes] = await self._cat_ranges([path], [start], [end], on_error="raise")
        return found[0]

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | None | Iterable[int | None],
        ends: int | None | Iterable[int | None],
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Byte ranges of files, in one plan for each subsystem; `max_gap` has no meaning here."""
        found = await asyncio.gather(
            *(self._locate(path) for path in paths), return_exceptions=on_error == "return"
        )
        ranges = _Ranges(found, _each(starts, len(paths)), _each(ends, len(paths)))
        for batch in ranges.batches():
            ticket = batch.tree.source.submit(batch.plan, batch.buffer)
            await ticket.over()
            ranges.collect(batch, ticket)
        return ranges.outcome(on_error)

    async def _refuse_to_write(self, path: str, *_: Any, **__: Any) -> None:
        raise _only_read(path)

    _pipe_file = _put_file = _cp_file = _rm_file = _mkdir = _makedirs = _refuse_to_write

    async def _get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any
    ) -> None:
        place, tree = await self._locate(rpath)
        if place.name in tree.directories:
            os.makedirs(lpath, exist_ok=True)
            return
        size = tree.info(place)["size"]
        callback.set_size(size)
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as local:
            for start in range(0, size, _COPY_BYTES):
                data = await self._cat_file(rpath, start, start + _COPY_BYTES)
                local.write(data)
                callback.relative_update(len(data))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> NvmfFile:
        if mode != "rb":
            raise _only_read(path)
        place = _Place.of(path)
        options |= {"block_size": block_size or "default", "cache_options": cache_options}
        return NvmfFile(self, path, tree=self._tree(place), place=place, **options)

    async def _locate(self, path: str) -> tuple[_Place, _Tree]:
        place = _Place.of(self._strip_protocol(path))
        tree = self._trees.get(place.subsystem)
        if tree is None:
            tree = await asyncio.get_running_loop().run_in_executor(None, self._tree, place)
        tree.check(place)
        return place, tree

    def _tree(self, place: _Place) -> _Tree:
        with self._lock:
            tree = self._trees.get(place.subsystem)
            if tree is None:
                tree = _Tree.of(feedrail.open(str(place.url), **self._options))
                self._trees[place.subsystem] = tree
            return tree


class NvmfFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read, with fsspec's caches. Made by `NvmfFileSystem.open`."""

    def __init__(
        self, fs: NvmfFileSystem, path: str, *, tree: _Tree, place: _Place, **options: Any
    ) -> None:
        self._shard = tree.source.open(tree.number(place))
        options = {**options, "size": self._shard.size}
        super().__init__(fs, path, "rb", **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._shard.pread(end - start, start)


@dataclass(frozen=True)
class _Place:
    """A path, taken apart: a subsystem, and the name of a shard or of a directory in it."""

    url: NvmfUrl
    name: str

    @classmethod
    def of(cls, path: str) -> _Place:
        try:
            url = NvmfUrl.parse(f"{SCHEME}://{path}")
        except ValueError as error:
            raise NotFound(f"{path}: {error}") from error
        if url.nsid is not None:
            raise NotFound(f"{path}: a path has names, and no nsid:")
        return cls(url.of_subsystem(), url.name or "")

    @property
    def subsystem(self) -> tuple[str, int, str]:
        return self.url.host, self.url.port, self.url.nqn

    @property
    def path(self) -> str:
        return str(replace(self.url, name=self.name or None)).removeprefix(f"{SCHEME}://")

    def beside(self, name: str) -> _Place:
        """Another name in the same subsystem."""
        return _Place(self.url, name)


@dataclass(frozen=True)
class _Tree:
    """The shards of a subsystem as files in directories."""

    source: Source
    #: What is in each directory: names of files and directories.
    directories: dict[str, list[str]]

    @classmethod
    def of(cls, source: Source) -> _Tree:
        directories: dict[str, list[str]] = {"": []}
        for shard in source.shards:
            name = shard.name
            while name:
                parent = name.rpartition("/")[0]
                siblings = directories.setdefault(parent, [])
                if name in siblings:
                    break
                siblings.append(name)
                name = parent
        return cls(source, directories)

    def check(self, place: _Place) -> None:
        if place.name not in self.directories:
            self.number(place)

    def number(self, place: _Place) -> int:
        try:
            return self.source.shards.number(place.name)
        except NotFound:
            if place.name in self.directories:
                raise IsDirectory(f"{place.path} is a directory") from None
            raise NotFound(f"{place.path}: there is no such shard") from None

    def info(self, place: _Place) -> dict[str, Any]:
        if place.name in self.directories:
            return {"name": place.path, "size": 0, "type": "directory"}
        shard = self.source.shards[self.number(place)]
        return {
            "name": place.path,
            "size": shard.nbytes,
            "type": "file",
            "uuid": shard.uuid,
            "generation": shard.generation,
        }

    def list(self, place: _Place) -> list[dict[str, Any]]:
        names = self.directories.get(place.name, [place.name])
        return [self.info(place.beside(name)) for name in names]


@dataclass
class _Batch:
    """The ranges of one call that are in one subsystem."""

    tree: _Tree
    #: Which range of the call each entry is part of.
    ranges: list[int] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, number: int, shard: int, start: int, end: int) -> None:
        for offset in range(start, end, _ENTRY_BYTES):
            self.ranges.append(number)
            self.shards.append(shard)
            self.offsets.append(offset)
            self.lengths.append(min(_ENTRY_BYTES, end - offset))

    def seal(self) -> None:
        """Makes the plan, and memory for it."""
        self.plan: NDArray[np.void] = make_plan(self.offsets, self.lengths, shard=self.shards)
        self.buffer = feedrail.Buffer.allocate(sum(self.lengths))


class _Ranges:
    """The ranges of one call of `cat_ranges`, and what became of them."""

    def __init__(
        self,
        found: Sequence[tuple[_Place, _Tree] | BaseException],
        starts: Sequence[int | None],
        ends: Sequence[int | None],
    ) -> None:
        self._results: list[bytearray | Exception] = [bytearray() for _ in found]
        self._batches: dict[int, _Batch] = {}
        for number, (where, start, end) in enumerate(zip(found, starts, ends, strict=True)):
            try:
                if isinstance(where, BaseException):
                    raise where
                self._add(number, *where, start, end)
            except OSError as error:
                self._results[number] = error

    def _add(
        self, number: int, place: _Place, tree: _Tree, start: int | None, end: int | None
    ) -> None:
        shard = tree.number(place)
        first, last, _ = slice(start, end).indices(tree.source.shards[shard].nbytes)
        self._batches.setdefault(id(tree), _Batch(tree)).add(number, shard, first, last)

    def batches(self) -> Iterator[_Batch]:
        for batch in self._batches.values():
            batch.seal()
            yield batch

    def collect(self, batch: _Batch, ticket: feedrail.Ticket) -> None:
        """Takes the results of a batch that has ended."""
        failed = ticket.exceptions()
        with memoryview(batch.buffer) as data:
            for entry, number in enumerate(batch.ranges):
                result, first = self._results[number], int(batch.plan["dst"][entry])
                if entry in failed:
                    self._results[number] = failed[entry]
                elif isinstance(result, bytearray):
                    result += data[first : first + batch.lengths[entry]]

    def outcome(self, on_error: str) -> list[bytes | Exception]:
        errors = [result for result in self._results if isinstance(result, Exception)]
        if errors and on_error == "raise":
            raise errors[0]
        return [r if isinstance(r, Exception) else bytes(r) for r in self._results]


def _only_read(path: str) -> ReadOnly:
    return ReadOnly(f"{path}: shards are read, in mode 'rb', and nothing is written")


def _each(values: int | None | Iterable[int | None], count: int) -> list[int | None]:
    if values is None or isinstance(values, int):
        return [values] * count
    listed = list(values)
    if len(listed) != count:
        raise ValueError(f"{count} paths, but {len(listed)} starts or ends")
    return listed
