"""Files that are read, with fsspec's caches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile

from feedrail._errors import DatasetChanged

if TYPE_CHECKING:
    from feedrail.fsspec._system import NvmfFileSystem
    from feedrail.fsspec._tree import Place, Tree
    from feedrail.fsspec._volume import Volume


class NvmfFile(AbstractBufferedFile):  # type: ignore[misc]
    """A shard that is read. Made by `NvmfFileSystem.open`."""

    def __init__(
        self, fs: NvmfFileSystem, path: str, *, tree: Tree, place: Place, **options: Any
    ) -> None:
        self._shard = tree.source.open(tree.number(place))
        super().__init__(fs, path, "rb", **{**options, "size": self._shard.size})

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._shard.pread(end - start, start)


class EntryFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of a checkpoint that is read. Made by `NvmfFileSystem.open`.

    It has the bytes of the time at which it was opened: where the file is replaced and its space is
    used again, reads fail with `Damaged`.
    """

    def __init__(
        self, fs: NvmfFileSystem, path: str, *, volume: Volume, name: str, **options: Any
    ) -> None:
        self._volume, self._name = volume, name
        self._entry, self._home = volume.entry(name), os.getpid()
        super().__init__(fs, path, "rb", **{**options, "size": self._entry.size})

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._home != os.getpid():
            self._open_in_child()
        end = min(end, self.size)
        return bytes(self._entry.read(start, end - start)) if start < end else b""

    def _open_in_child(self) -> None:
        found = self._volume.entry(self._name)
        if (found.size, found.generation) != (self._entry.size, self._entry.generation):
            raise DatasetChanged(f"{self.path}: the volume was changed since it was opened")
        self._entry, self._home = found, os.getpid()
