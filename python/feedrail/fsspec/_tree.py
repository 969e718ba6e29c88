"""The namespaces of a subsystem as files in directories."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import feedrail
from feedrail._dtypes import make_plan
from feedrail._errors import FeedrailError, IsDirectory, NotFound
from feedrail._url import SCHEME, NvmfUrl
from feedrail.fsspec._folders import Folders
from feedrail.fsspec._volume import Volume, VolumeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from feedrail import Source

#: First bytes of a superblock of a checkpoint volume.
_MAGIC = b"FRCKPTV\0"
#: First bytes of superblocks A and B in the namespace, and their length.
_SUPERBLOCKS, _SUPERBLOCK_BYTES = (0, 65536), 4096


@dataclass(frozen=True)
class Place:
    """A path, taken apart: a subsystem, and what is behind it."""

    url: NvmfUrl
    name: str

    @classmethod
    def of(cls, path: str) -> Place:
        """The place of a path without a protocol."""
        try:
            url = NvmfUrl.parse(f"{SCHEME}://{path}")
        except ValueError as error:
            raise NotFound(f"{path}: {error}") from error
        if url.nsid is not None:
            raise NotFound(f"{path}: a path has names, and no nsid:")
        return cls(url.of_subsystem(), url.name or "")

    @property
    def subsystem(self) -> tuple[str, int, str]:
        """Host, port and NQN."""
        return self.url.host, self.url.port, self.url.nqn

    @property
    def path(self) -> str:
        """The path, as `of` takes it."""
        return str(replace(self.url, name=self.name or None)).removeprefix(f"{SCHEME}://")

    def beside(self, name: str) -> Place:
        """Another name in the same subsystem."""
        return Place(self.url, name)


class Tree:
    """The namespaces of a subsystem. Those that are checkpoint volumes are directories.

    Whether a namespace is one is read when it matters, once.
    """

    def __init__(self, source: Source, url: NvmfUrl, options: VolumeOptions) -> None:
        self.source = source
        self._url, self._options = url, options
        self._folders = Folders(shard.name for shard in source.shards)
        self._volumes: dict[int, Volume] = {}
        #: Numbers of the namespaces that are none.
        self._others: set[int] = set()
        self._lock = threading.Lock()

    def number(self, place: Place) -> int:
        """The number of the shard that is a file at a place."""
        try:
            number = self.source.shards.number(place.name)
        except NotFound:
            if place.name in self._folders:
                raise IsDirectory(f"{place.path} is a directory") from None
            raise NotFound(f"{place.path}: there is no such shard") from None
        if number in self._volumes:
            raise IsDirectory(f"{place.path} is a checkpoint volume")
        return number

    def is_outside(self, place: Place) -> bool:
        """Whether a place is a namespace that is not known to be a volume, or a directory of some."""
        number = self._number(place.name)
        return place.name in self._folders or (number is not None and number not in self._volumes)

    def volume(self, place: Place) -> tuple[Volume, str] | None:
        """The volume that a place is or is in, and the rest of its name."""
        for prefix, rest in _prefixes(place.name):
            number = self._number(prefix)
            if number is None or prefix in self._folders:
                continue
            if rest:
                # A namespace may have been formatted since.
                self._probe([number])
            elif number not in self._others:
                self._try_probe([number])
            if number in self._volumes:
                return self._volumes[number], rest
        return None

    def info(self, place: Place) -> dict[str, Any]:
        """What `info` tells of a place that is in no volume."""
        if place.name in self._folders:
            return {"name": place.path, "size": 0, "type": "directory"}
        shard = self.source.shards[self.number(place)]
        return {
            "name": place.path,
            "size": shard.nbytes,
            "type": "file",
            "uuid": shard.uuid,
            "generation": shard.generation,
        }

    def list(self, place: Place) -> list[dict[str, Any]]:
        """What `ls` tells of a place that is in no volume."""
        if place.name not in self._folders:
            return [self.info(place)]
        names = self._folders.names_in(place.name)
        numbers = [self._number(name) for name in names if name not in self._folders]
        self._try_probe([it for it in numbers if it is not None and it not in self._others])
        return [self._listed(place.beside(name)) for name in names]

    def _listed(self, place: Place) -> dict[str, Any]:
        if self._number(place.name) in self._volumes and place.name not in self._folders:
            return {"name": place.path, "size": 0, "type": "directory"}
        return self.info(place)

    def _number(self, name: str) -> int | None:
        try:
            return self.source.shards.number(name)
        except NotFound:
            return None

    def _try_probe(self, numbers: Sequence[int]) -> None:
        """As `_probe`; a namespace whose target does not answer is a file for now."""
        with contextlib.suppress(FeedrailError):
            self._probe(numbers)

    def _probe(self, numbers: Sequence[int]) -> None:
        """Reads the superblocks of namespaces that are not known to be volumes."""
        smallest = _SUPERBLOCKS[-1] + _SUPERBLOCK_BYTES
        shards = self.source.shards
        numbers = [
            it for it in numbers if it not in self._volumes and shards[it].nbytes >= smallest
        ]
        if not numbers:
            return
        plan = make_plan(
            [offset for _ in numbers for offset in _SUPERBLOCKS],
            len(_MAGIC),
            shard=[number for number in numbers for _ in _SUPERBLOCKS],
        )
        found = feedrail.Buffer.allocate(len(plan) * len(_MAGIC))
        self.source.read_many(plan, found)
        with memoryview(found) as data, self._lock:
            magics = bytes(data)
            for at, number in enumerate(numbers):
                first = at * len(_SUPERBLOCKS) * len(_MAGIC)
                if _MAGIC in (magics[first : first + 8], magics[first + 8 : first + 16]):
                    url = replace(self._url, nsid=shards[number].nsid)
                    self._volumes.setdefault(number, Volume(str(url), self._options))
                    self._others.discard(number)
                else:
                    self._others.add(number)


def _prefixes(name: str) -> Iterator[tuple[str, str]]:
    """A name and each part of it before a slash, longest first, with what is behind the slash."""
    prefix, rest = name, ""
    while prefix:
        yield prefix, rest
        prefix, _, last = prefix.rpartition("/")
        rest = f"{last}/{rest}" if rest else last
