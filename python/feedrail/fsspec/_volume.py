"""Checkpoint volumes as directories of checkpoints, whose entries are files."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedrail._checkpoint_errors import CheckpointExists, Damaged, SaveFailed
from feedrail._checkpoints import CheckpointStore
from feedrail._errors import FeedrailError, ForkedHandleError, IsDirectory, NotFound
from feedrail.fsspec._folders import Folders
from feedrail.fsspec._lease import HeldLease, Lease

if TYPE_CHECKING:
    from feedrail._checkpoints import Checkpoint
    from feedrail._core import EntryFile as NativeEntry
    from feedrail._typing import Readable


@dataclass(frozen=True)
class Entry:
    """A file as a store saw it. What it reads are the bytes of that time, or an error.

    Attributes:
        generation: That of the volume, which each change increases.
    """

    checkpoint: Checkpoint
    name: str
    size: int
    generation: int

    def read(self, offset: int, length: int) -> Any:
        """Bytes of the file, with their checksums compared."""
        return self.checkpoint.read(self.name, offset, length)


class View:
    """Checkpoints and entries of a volume, as a store has them. Names are `checkpoint/entry`."""

    def __init__(self, store: CheckpointStore) -> None:
        self.generation: int = store.summary["generation"]
        self._checkpoints = {it.name: it for it in store.list()}
        self._folders: dict[str, Folders] = {}

    def entry(self, name: str) -> Entry | None:
        """The file of a name."""
        checkpoint, entry = self._split(name)
        if checkpoint is None or entry not in checkpoint.entries:
            return None
        return Entry(checkpoint, entry, checkpoint.entries[entry], self.generation)

    def is_directory(self, name: str) -> bool:
        """Whether there is a directory of a name."""
        checkpoint, entry = self._split(name)
        return not name or (checkpoint is not None and entry in self._folders_of(checkpoint))

    def names_in(self, name: str) -> list[str]:
        """What is in a directory."""
        if not name:
            return list(self._checkpoints)
        checkpoint, entry = self._split(name)
        assert checkpoint is not None
        names = self._folders_of(checkpoint).names_in(entry)
        return [f"{checkpoint.name}/{each}" for each in names]

    def info(self, name: str) -> dict[str, Any] | None:
        """What `info` tells of a name."""
        found = self.entry(name)
        if found is not None:
            return {
                "size": found.size,
                "type": "file",
                "created": found.checkpoint.created,
                "generation": found.generation,
            }
        if not self.is_directory(name):
            return None
        info: dict[str, Any] = {"size": 0, "type": "directory"}
        checkpoint, entry = self._split(name)
        if checkpoint is not None and not entry:
            info |= {"created": checkpoint.created, "step": checkpoint.step}
        return info

    def check_new_file(self, name: str) -> None:
        """Refuses a file that would be a directory too."""
        checkpoint, _, entry = name.partition("/")
        if not entry:
            raise IsDirectory(f"{name!r} is directly in a volume: files are in its checkpoints")
        if self.is_directory(name):
            raise IsDirectory(f"{name} is a directory")
        parent = entry.rpartition("/")[0]
        while parent:
            if self.entry(f"{checkpoint}/{parent}") is not None:
                raise NotADirectoryError(f"{checkpoint}/{parent} is a file, and no directory")
            parent = parent.rpartition("/")[0]

    def _split(self, name: str) -> tuple[Checkpoint | None, str]:
        checkpoint, _, entry = name.partition("/")
        return self._checkpoints.get(checkpoint), entry

    def _folders_of(self, checkpoint: Checkpoint) -> Folders:
        folders = self._folders.get(checkpoint.name)
        if folders is None:
            folders = self._folders[checkpoint.name] = Folders(checkpoint.entries)
        return folders


@dataclass(frozen=True)
class VolumeOptions:
    """How volumes are opened.

    Attributes:
        connection: Options of `CheckpointStore` about connections.
        of_writer: All that a writer has.
    """

    connection: dict[str, Any]
    of_writer: dict[str, Any]


class Volume:
    """A checkpoint volume, with what was last seen of it."""

    def __init__(self, url: str, options: VolumeOptions) -> None:
        self._url, self._options = url, options
        self._begin()

    def _begin(self) -> None:
        self._home = os.getpid()
        # As long as somebody sees the volume, its changes are counted.
        self._counted = Lease.of(self._url)
        self._lock = threading.Lock()
        self._view: View | None = None
        self._seen = -1

    @property
    def _lease(self) -> Lease:
        if self._home != os.getpid():
            self._begin()
        return self._counted

    def entry(self, name: str) -> Entry:
        """The file of a name.

        Raises:
            NotFound: it is missing, also after looking again.
            IsDirectory: there is a directory.
        """
        found = self._view_with(name).entry(name)
        if found is None:
            raise IsDirectory(f"{name or 'a volume'} is a directory")
        return found

    def info(self, name: str) -> dict[str, Any]:
        """What `info` tells, without the path."""
        info = self._view_with(name).info(name)
        assert info is not None
        return info

    def list(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """What is in a directory, or a file alone: what follows the name, and what `info` tells."""
        view = self._view_with(name)
        if view.entry(name) is not None:
            return [("", self.info(name))]
        slash = "/" if name else ""
        listed = ((each, view.info(each)) for each in view.names_in(name))
        return [(f"/{each.removeprefix(name + slash)}", info) for each, info in listed if info]

    def check_empty(self, name: str) -> None:
        """Refuses a directory in which something is."""
        with contextlib.suppress(NotFound):
            self.info(name)
            raise OSError(errno.ENOTEMPTY, f"{name} is not empty")

    def read_again(self, before: Entry, error: Damaged) -> Entry:
        """The file that replaces one whose bytes are gone.

        Raises:
            Damaged: it was not replaced.
        """
        name = f"{before.checkpoint.name}/{before.name}"
        self.forget()
        found = self.entry(name)
        if found.generation == before.generation:
            raise error
        return found

    def begin(self, name: str, *, is_new: bool) -> PendingEntry:
        """Begins to write a file, which replaces one of its name unless it must be new.

        Raises:
            Leased: another writer has had the lease for all of `lease_wait`.
            IsDirectory: the name is that of a directory, or the file would be in no checkpoint.
            CheckpointExists: there is such a file, and it must be new.
            ValueError: the name is not allowed.
        """
        held = self._lease.take(self._options.of_writer)
        try:
            with held.watch():
                View(held.store).check_new_file(name)
                pending = PendingEntry(held, name, is_new=is_new)
                pending.begin()
                return pending
        except BaseException:
            held.give_back()
            raise

    def remove(self, name: str, *, recursive: bool) -> None:
        """Deletes a file, or a directory with all that is in it, by one commit.

        Raises:
            NotFound: there is no such file.
            IsDirectory: it is a directory, and `recursive` is false.
        """
        if self.info(name)["type"] == "directory" and not recursive:
            raise IsDirectory(f"{name or 'a volume'} is a directory, and recursive is false")
        with self._lease.use(self._options.of_writer) as store:
            view = View(store)
            checkpoint, _, entry = name.partition("/")
            if not name:
                for each in view.names_in(""):
                    store.delete(each)
            elif view.entry(name) is not None:
                store._volume.remove(checkpoint, entry)
            elif view.is_directory(name):
                store._volume.remove(checkpoint, f"{entry}/" if entry else None)
            else:
                raise NotFound(f"there is no {name} in the volume")

    def rename(self, name: str, to: str, *, into: bool) -> None:
        """Renames a file, which replaces one of its new name, or a directory, by one commit.

        Args:
            into: The new name is that of a directory, which may be new, and the last part stays.

        Raises:
            NotFound: there is no such file.
            CheckpointExists: a directory would replace something.
            OSError: it is the volume, or would be moved into itself.
        """
        if not name:
            raise OSError(errno.EINVAL, "a volume cannot be renamed")
        self.info(name)
        with self._lease.use(self._options.of_writer) as store:
            view = View(store)
            if into or (view.entry(to) is None and view.is_directory(to)):
                to = f"{to}/{name.rpartition('/')[2]}".lstrip("/")
            if to == name:
                return
            if to.startswith(f"{name}/"):
                raise OSError(errno.EINVAL, f"{name} cannot be moved into itself")
            checkpoint, _, entry = name.partition("/")
            to_checkpoint, _, to_entry = to.partition("/")
            if view.entry(name) is not None:
                view.check_new_file(to)
                store._volume.rename(checkpoint, entry, to_checkpoint, to_entry, True)
                return
            if view.info(to) is not None:
                raise CheckpointExists(f"there is {to} already")
            store._volume.rename(
                checkpoint,
                f"{entry}/" if entry else None,
                to_checkpoint,
                f"{to_entry}/" if to_entry else None,
                False,
            )

    def forget(self) -> None:
        """Has the next look open the volume again."""
        with self._lock:
            self._view = None

    def _view_with(self, name: str) -> View:
        """The last view that has a name; one is opened if the last has not."""
        lease = self._lease
        with self._lock:
            view, changes = self._view, lease.changes
            if view is None or self._seen != changes or view.info(name) is None:
                view = View(CheckpointStore(self._url, mode="r", **self._options.connection))
                self._view, self._seen = view, changes
        if view.info(name) is None:
            raise NotFound(f"there is no {name} in the volume")
        return view


class PendingEntry:
    """A file that is written. It appears with its commit."""

    def __init__(self, held: HeldLease, name: str, *, is_new: bool) -> None:
        self._held, self._name, self._is_new = held, name, is_new
        self._home = os.getpid()
        self._has_ended, self._is_whole = False, True

    def begin(self) -> None:
        """Begins the entry."""
        self._check_new()
        checkpoint, _, entry = self._name.partition("/")
        self._native: NativeEntry = self._held.store._volume.begin_file(checkpoint, entry)
        self._held.files.add(self._native)

    def append(self, data: Readable) -> None:
        """Adds bytes, which may be changed when this returns."""
        self._check_home()
        # An exception of a signal's handler leaves a part of the bytes appended.
        self._is_whole = False
        with self._held.watch():
            self._native.append(data)
        self._is_whole = True

    def commit(self) -> None:
        """Has the file appear. It is no error if it has ended.

        Raises:
            SaveFailed: a call that added bytes has failed.
            FeedrailError: as for `CheckpointSave.commit`.
        """
        self._check_home()
        if self._has_ended:
            return
        if not self._is_whole:
            self.abort()
            raise SaveFailed(f"{self._name} does not appear, since bytes of it were not written")
        self._has_ended = True
        try:
            with self._held.watch():
                self._check_new()
                self._native.commit()
        finally:
            self._held.lease.changes += 1
            self._end()

    def abort(self) -> None:
        """Ends it, and nothing appears. It is no error if it has ended."""
        if self._has_ended or self._home != os.getpid():
            return
        self._has_ended = True
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(FeedrailError):
            self._native.abort()
        self._held.give_back()

    def _check_new(self) -> None:
        if self._is_new and View(self._held.store).entry(self._name) is not None:
            raise CheckpointExists(f"there is {self._name} already")

    def _check_home(self) -> None:
        if self._home != os.getpid():
            raise ForkedHandleError(f"{self._name} is written by the parent of this process")
