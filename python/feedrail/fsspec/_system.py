"""The file system."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import isfilelike

import feedrail
from feedrail._errors import ReadOnly
from feedrail._url import DEFAULT_PORT, SCHEME, escaped
from feedrail.fsspec._ranges import EntryAt, Ranges, ShardAt
from feedrail.fsspec._read import EntryFile, NvmfFile
from feedrail.fsspec._tree import Place, Tree
from feedrail.fsspec._volume import Volume, VolumeOptions
from feedrail.fsspec._write import EntryText, EntryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    T = TypeVar("T")

#: Bytes that are read at a time where a file is copied.
_COPY_BYTES = 16 << 20
#: As many where files are copied side by side.
_PUT_BYTES = 4 << 20


class NvmfFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """A file system that reads shards, and reads and writes files of checkpoints.

    One connection per subsystem is kept, with what its shards were when it was first used, and for
    a checkpoint volume what its files were. `invalidate_cache` forgets them; a file of a checkpoint
    that is not found is looked for again. It can be pickled, and used after a fork.

    Files are written in checkpoint volumes, in modes `"wb"` and `"xb"`. A file appears when it is
    closed, whole and durable. Directories are there as long as something is in them. The first file
    that is written takes the lease of the volume for the process, which gives it back a second
    after the last was closed.
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
        host_nqn: str | None = None,
        dhchap_secret_file: str | os.PathLike[str] | None = None,
        dhchap_ctrl_secret_file: str | os.PathLike[str] | None = None,
        lease: float = 60.0,
        lease_wait: float = 120.0,
        **options: Any,
    ) -> None:
        """Makes a file system, which connects when it is used.

        Args:
            provider: As for `feedrail.open`, and so are the other options. Keys are given as files
                only: fsspec shows and stores the options of file systems.
            lease: Seconds that the lease of a volume is taken for, as for `CheckpointStore`.
            lease_wait: Seconds to wait for another writer's.
        """
        super().__init__(**options)
        connection: dict[str, Any] = {
            "provider": provider,
            "local_address": local_address,
            "io_timeout": io_timeout,
            "loss_timeout": loss_timeout,
            "host_nqn": host_nqn,
            "dhchap_secret_file": dhchap_secret_file,
            "dhchap_ctrl_secret_file": dhchap_ctrl_secret_file,
        }
        queues = {"io_queues": io_queues, "queue_entries": queue_entries}
        self._options: dict[str, Any] = {**connection, **queues}
        of_writer = {**connection, "lease": lease, "wait": lease_wait}
        self._volume_options = VolumeOptions(connection, of_writer)
        self._trees: dict[tuple[str, int, str], Tree] = {}
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
        """Forgets the shards and files of the subsystem that a path is in, or all."""
        with self._lock:
            if path is None:
                self._trees.clear()
            else:
                self._trees.pop(Place.of(self._strip_protocol(path)).subsystem, None)
        super().invalidate_cache(path)

    def created(self, path: str) -> Any:
        """When the save of the checkpoint of a file began.

        Raises:
            NotImplementedError: it is no file or directory of a checkpoint.
        """
        created = self.info(path).get("created")
        if created is None:
            raise NotImplementedError("targets do not tell when a shard was created")
        return created

    def modified(self, path: str) -> Any:
        """Always fails: it is not recorded."""
        raise NotImplementedError("neither targets nor volumes tell when a file was modified")

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        place, tree = await self._locate(path)
        return await _in_thread(_info, place, tree)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        place, tree = await self._locate(path)
        listed = await _in_thread(_list, place, tree)
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
        """Byte ranges of files: those of shards in one plan for each subsystem, those of checkpoints
        several at a time. `max_gap` has no meaning here.
        """
        found = await asyncio.gather(
            *(self._find_file(path) for path in paths), return_exceptions=on_error == "return"
        )
        ranges = Ranges(found, _each(starts, len(paths)), _each(ends, len(paths)))
        await ranges.read()
        return ranges.outcome(on_error)

    async def _get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any
    ) -> None:
        if isfilelike(lpath):
            await _in_thread(self._copy_out, rpath, lpath, callback)
            return
        if (await self._info(rpath))["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as local:
            await _in_thread(self._copy_out, rpath, local, callback)

    def _copy_out(self, path: str, local: Any, callback: Any) -> None:
        with self._open_to_copy(path) as file:
            callback.set_size(file.size)
            while data := file.read(_COPY_BYTES):
                local.write(data)
                callback.relative_update(len(data))

    async def _pipe_file(
        self, path: str, value: Any, mode: str = "overwrite", **_: Any
    ) -> None:
        def write() -> None:
            with self._open_new(path, mode) as file:
                file.write(value)

        await _in_thread(write)

    async def _put_file(
        self,
        lpath: Any,
        rpath: str,
        mode: str = "overwrite",
        callback: Any = DEFAULT_CALLBACK,
        **_: Any,
    ) -> None:
        if os.path.isdir(lpath):
            await self._makedirs(rpath, exist_ok=True)
            return

        def put() -> None:
            with open(lpath, "rb") as local, self._open_new(rpath, mode) as file:
                callback.set_size(os.fstat(local.fileno()).st_size)
                while data := local.read(_PUT_BYTES):
                    file.write(data)
                    callback.relative_update(len(data))

        await _in_thread(put)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if (await self._info(path1))["type"] == "directory":
            await self._makedirs(path2, exist_ok=True)
            return

        def copy() -> None:
            with self._open_to_copy(path1) as source, self._open_new(path2) as file:
                while data := source.read(_PUT_BYTES):
                    file.write(data)

        await _in_thread(copy)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """Renames a file or directory of a checkpoint volume, or a checkpoint, by one commit.

        A file replaces one of its new name. Where the new name is that of a directory, or ends with
        `/`, what is renamed is moved into it. Lists, patterns, and what goes to another volume are
        copied and deleted.
        """
        sync(self.loop, self._mv, path1, path2, recursive=recursive, maxdepth=maxdepth)

    async def _mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        if isinstance(path1, str | os.PathLike) and isinstance(path2, str | os.PathLike):
            one, other = await self._writable(path1, path2)
            if one[0] is other[0] and maxdepth is None:
                into = os.fspath(path2).endswith("/")
                await _in_thread(lambda: one[0].rename(one[1], other[1], into=into))
                return
        await self._copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
        await self._rm(path1, recursive=recursive, maxdepth=maxdepth)

    async def _mv_file(self, path1: str, path2: str) -> None:
        await self._mv(path1, path2)

    async def _rm_file(self, path: str, **_: Any) -> None:
        ((volume, name),) = await self._writable(path)
        await _in_thread(lambda: volume.remove(name, recursive=False))

    async def _rm(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """Deletes files; a directory with all that is in it by one commit, if `recursive`."""
        paths = await self._expand_path(path, recursive=maxdepth is not None, maxdepth=maxdepth)
        volumes = await self._writable(*paths)
        deleted: tuple[str, ...] = ()
        for path, (volume, name) in zip(paths, volumes, strict=True):
            if path.startswith(deleted) or (maxdepth is not None and not await self._isfile(path)):
                continue
            await _in_thread(lambda v=volume, n=name: v.remove(n, recursive=recursive))
            deleted += (f"{path}/",)

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Does nothing: directories are there as long as something is in them."""
        await self._writable(path)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        await self._writable(path)

    def rmdir(self, path: str) -> None:
        """Does nothing unless something is in the directory, since it is not there then."""
        sync(self.loop, self._rmdir, path)

    async def _rmdir(self, path: str) -> None:
        ((volume, name),) = await self._writable(path)
        await _in_thread(volume.check_empty, name)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Opens a file, as `AbstractFileSystem.open` does.

        One that is written appears when it is closed, unless that is by a `with` block that an
        exception leaves.
        """
        if mode in ("w", "wt", "x", "xt") and compression is None:
            texts = ("encoding", "errors", "newline")
            of_text = {name: options.pop(name) for name in texts if name in options}
            binary = mode.removesuffix("t") + "b"
            return EntryText(self.open(path, binary, block_size, cache_options, **options), **of_text)
        return super().open(path, mode, block_size, cache_options, compression, **options)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> NvmfFile | EntryFile | EntryWriter:
        place = Place.of(path)
        tree = self._tree(place)
        options |= {"block_size": block_size or "default", "cache_options": cache_options}
        if mode == "rb":
            found = None if tree.is_outside(place) else tree.volume(place)
            if found is None:
                return NvmfFile(self, path, tree=tree, place=place, **options)
            return EntryFile(self, path, volume=found[0], name=found[1], **options)
        volume, name = _volume_of(place, tree)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"mode {mode!r}: files are opened with 'rb', 'wb' and 'xb'")
        options["autocommit"] = autocommit
        return EntryWriter(self, path, mode, volume=volume, name=name, **options)

    def _open_new(self, path: str, mode: str = "overwrite") -> Any:
        """A file that is written, in a transaction if there is one."""
        return self.open(path, "xb" if mode == "create" else "wb", block_size=_PUT_BYTES)

    def _open_to_copy(self, path: str) -> Any:
        return self.open(path, "rb", cache_type="none")

    async def _locate(self, path: Any) -> tuple[Place, Tree]:
        place = Place.of(self._strip_protocol(path))
        tree = self._trees.get(place.subsystem)
        if tree is None:
            tree = await _in_thread(self._tree, place)
        return place, tree

    async def _find_file(self, path: str) -> ShardAt | EntryAt:
        place, tree = await self._locate(path)
        if tree.is_outside(place):
            return ShardAt(tree, place)

        def find() -> ShardAt | EntryAt:
            found = tree.volume(place)
            if found is None:
                return ShardAt(tree, place)
            volume, name = found
            return EntryAt(volume, volume.entry(name))

        return await _in_thread(find)

    async def _writable(self, *paths: Any) -> list[tuple[Volume, str]]:
        """The volumes that paths are in, and their names there."""
        where = [await self._locate(path) for path in paths]
        return [await _in_thread(_volume_of, *each) for each in where]

    def _tree(self, place: Place) -> Tree:
        with self._lock:
            tree = self._trees.get(place.subsystem)
            if tree is None:
                source = feedrail.open(str(place.url), **self._options)
                tree = Tree(source, place.url, self._volume_options)
                self._trees[place.subsystem] = tree
            return tree


async def _in_thread(call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)


def _info(place: Place, tree: Tree) -> dict[str, Any]:
    found = tree.volume(place)
    if found is None:
        return tree.info(place)
    volume, name = found
    return {"name": place.path, **volume.info(name)}


def _list(place: Place, tree: Tree) -> list[dict[str, Any]]:
    found = tree.volume(place)
    if found is None:
        return tree.list(place)
    volume, name = found
    return [
        {"name": place.beside(f"{place.name}{suffix}").path, **info}
        for suffix, info in volume.list(name)
    ]


def _volume_of(place: Place, tree: Tree) -> tuple[Volume, str]:
    """The volume that a place to be written is in, and its name there."""
    found = tree.volume(place)
    if found is None:
        raise ReadOnly(
            f"{place.path}: shards are read, in mode 'rb', and nothing is written but files of "
            "checkpoint volumes"
        )
    return found


def _each(values: int | None | Iterable[int | None], count: int) -> list[int | None]:
    if values is None or isinstance(values, int):
        return [values] * count
    listed = list(values)
    if len(listed) != count:
        raise ValueError(f"{count} paths, but {len(listed)} starts or ends")
    return listed
