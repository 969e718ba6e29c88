"""Checkpoint stores: checkpoints of training jobs on writable namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from feedrail import _core
from feedrail._checkpoint_errors import Leased
from feedrail._checkpoint_stats import CheckpointStats, StoreReplicaStats
from feedrail._errors import FeedrailError, NotFound
from feedrail._secrets import Secrets
from feedrail._url import NvmfUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn, Self, TypeVar

    from feedrail._source import Provider
    from feedrail._typing import Readable

    T = TypeVar("T")

#: Longest metadata of a checkpoint, as the format permits.
_METADATA_BYTES = 1 << 20
#: Longest pause before the lease of another writer is looked at again, in seconds.
_LOOK_AGAIN = 0.5

Urls = str | Sequence[str]


@dataclass(frozen=True)
class CheckpointReplica:
    """A replica of a store.

    Attributes:
        url: URL that the store was opened with.
        state: `"current"` has the newest checkpoints, `"stale"` others, `"away"` does not answer.
        error: Why it is away.
    """

    url: str
    state: Literal["current", "stale", "away"]
    error: Exception | None


@dataclass(frozen=True)
class DamagedUnit:
    """Bytes of an entry that do not have their checksum, or that a target does not read.

    Attributes:
        url: URL of the replica.
        checkpoint: Name of the checkpoint.
        entry: Name of the entry.
        offset: First byte of the unit in the entry.
        length: Number of bytes of the entry in the unit.
        namespace_offset: First byte of the unit in the namespace.
    """

    url: str
    checkpoint: str
    entry: str
    offset: int
    length: int
    namespace_offset: int


@dataclass(frozen=True)
class VerifyReport:
    """Result of a verification.

    Attributes:
        nbytes: Bytes that were read, from all replicas.
        damaged: Units that are damaged.
        damaged_manifests: URLs of the replicas with a damaged copy of the manifest, which the next
            change writes again.
    """

    nbytes: int
    damaged: tuple[DamagedUnit, ...]
    damaged_manifests: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged and not self.damaged_manifests


@dataclass(frozen=True)
class RepairReport:
    """Changes of a repair to one replica.

    Attributes:
        url: URL of the replica.
        copied: Names of the checkpoints that it got.
        deleted: Names of the checkpoints that it had and the newest replica has not.
        nbytes: Bytes that were copied.
        rewritten: Number of damaged units that were rewritten with the bytes of another replica.
        damaged: Units that are still damaged, since no other replica has their bytes.
    """

    url: str
    copied: tuple[str, ...]
    deleted: tuple[str, ...]
    nbytes: int
    rewritten: int
    damaged: tuple[DamagedUnit, ...]


class Checkpoint:
    """A committed checkpoint. Made by `CheckpointStore`.

    Attributes:
        name: Name, which no other checkpoint of the volume has.
        step: Training step.
        created: When its save began.
        metadata: What `begin` was given; bytes if they are no JSON.
        nbytes: Bytes of all entries.
    """

    def __init__(
        self, store: CheckpointStore, parts: tuple[str, int, int, bytes, int, int]
    ) -> None:
        self._store = store
        self.name, self.step, created_ms, metadata, _, self.nbytes = parts
        self.created = datetime.fromtimestamp(created_ms / 1000, timezone.utc)
        self.metadata = _parse_metadata(metadata)
        self._entries: dict[str, int] | None = None

    @property
    def entries(self) -> Mapping[str, int]:
        """Lengths of the entries in bytes, by name, in the order in which they were written."""
        if self._entries is None:
            self._entries = dict(self._store._volume.entries(self.name))
        return self._entries

    def read(
        self, entry: str, offset: int = 0, length: int | None = None, into: Readable | None = None
    ) -> Any:
        """Reads bytes of an entry, and compares the checksums of all units that they lie in.

        Other threads keep running. What a signal's handler raises ends it within 200 ms.

        Args:
            entry: Name of the entry.
            offset: First byte.
            length: Number of bytes; up to the end of the entry, or as many as `into` has, if
                `None`.
            into: Memory to read into, as for `Source.register`, with exactly `length` bytes.

        Returns:
            `into`, or a new `Buffer`.

        Raises:
            Damaged: bytes do not have their checksum, on any replica. What `into` holds then is
                unspecified.
            NotFound: there is no such entry.
            RangeError: the entry has not that many bytes.
            ValueError: `into` has another length.
        """
        if into is None:
            if length is None:
                length = max(self._length_of(entry) - offset, 0)
            into = _core.Buffer.allocate(length)
        memory = _memory(into)
        have = _nbytes(memory)
        if length is not None and have != length:
            raise ValueError(f"{length} bytes are read, and the memory has {have}")
        self._store._volume.read(self.name, entry, offset, memory)
        return into

    def read_into(self, buffers: Mapping[str, Readable]) -> None:
        """Reads entries into memory of their lengths, such as the tensors of a `state_dict`.

        Nothing is read unless all of them fit.

        Raises:
            NotFound: there is no such entry.
            ValueError: memory has another length than its entry.
            Damaged: as for `read`.
        """
        memories = {name: _memory(buffer) for name, buffer in buffers.items()}
        for name, memory in memories.items():
            length, have = self._length_of(name), _nbytes(memory)
            if have != length:
                raise ValueError(f"{name!r} has {length} bytes, and the memory has {have}")
        for name, memory in memories.items():
            self._store._volume.read(self.name, name, 0, memory)

    def _length_of(self, entry: str) -> int:
        try:
            return self.entries[entry]
        except KeyError:
            raise NotFound(f"there is no entry {entry!r} in checkpoint {self.name!r}") from None

    def __repr__(self) -> str:
        return f"<feedrail.Checkpoint {self.name}: step {self.step}, {self.nbytes} bytes>"


#: In the class, `list` is its method.
Checkpoints = list[Checkpoint]


class CheckpointSave:
    """A checkpoint in the making. Made by `CheckpointStore.begin`.

    As a context manager it is aborted where its block is left without a commit.
    """

    def __init__(self, save: _core.CheckpointSave, name: str, step: int) -> None:
        self._save = save
        self.name, self.step = name, step

    def write(self, entry: str, data: Readable) -> None:
        """Adds an entry with the bytes of a buffer, which may be changed when this returns.

        The bytes were copied to memory of the store then, and are on their way; an error of their
        write may be raised by a later call. Other threads keep running.

        Args:
            entry: Parts with `/` between them, such as `rank0/model.0`.
            data: Memory as for `Source.register`; it may be read-only.

        Raises:
            ValueError: the name has an empty part, `.`, `..` or a control character.
            CheckpointExists: the save has an entry of this name.
            CapacityExceeded: the volume has not that much space. Nothing was written.
            BufferError: the memory has gaps, or is on a device.
        """
        self._save.write(entry, _memory(data))

    def commit(self) -> None:
        """Makes the checkpoint durable and visible: it survives a loss of power then.

        The save has ended afterwards. Ctrl-C is noticed when the commit has ended: a
        `KeyboardInterrupt` of this call means that the commit has happened, unless its
        `__context__` is an error of the store.

        Raises:
            SaveFailed: an entry is incomplete, or the target lost bytes. The checkpoint is not
                there; save again.
            CommitUnknown: the target was lost, and it is unknown whether the checkpoint is there.
            FeedrailError: the checkpoint is not there, for another reason.
        """
        self._save.commit()

    def abort(self) -> None:
        """Ends the save without a commit. It is no error if it has ended."""
        self._save.abort()

    @property
    def has_ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._save.has_ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def __repr__(self) -> str:
        state = "ended" if self.has_ended else "not committed"
        return f"<feedrail.CheckpointSave {self.name}: step {self.step}, {state}>"


class CheckpointStore:
    """A checkpoint volume, on one namespace or several replicas.

    Threads may share it. A store and its saves belong to the process that opened it: in a child
    each call raises `ForkedHandleError`.

    A writer has the lease of the volume, which keeps other writers away. Calls renew it when half
    of it has passed; a store that is idle for longer keeps it only until another writer takes it,
    unless `renew` is called. `close` gives it back, as does the end of the `with` block, which
    aborts a save that has not ended, and that of the interpreter. If the process is killed, the next
    writer can begin after the rest of the lease and 30 s.
    """

    def __init__(
        self,
        urls: Urls,
        *,
        mode: Literal["r", "w"] = "w",
        write_quorum: int | None = None,
        lease: float = 60.0,
        wait: float = 0.0,
        staging_bytes: int = 64 << 20,
        provider: Provider = "auto",
        local_address: str | None = None,
        io_timeout: float = 30.0,
        loss_timeout: float | None = None,
        host_nqn: str | None = None,
        dhchap_secret: str | None = None,
        dhchap_secret_file: str | os.PathLike[str] | None = None,
        dhchap_ctrl_secret: str | None = None,
        dhchap_ctrl_secret_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Opens a volume.

        Args:
            urls: `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`, or those of all replicas.
            mode: `"w"` takes the lease; `"r"` reads only, and needs none.
            write_quorum: Replicas that must have a commit; more than half if `None`.
            lease: Seconds that the lease is taken for.
            wait: Seconds to wait for the end of another writer's lease.
            staging_bytes: Registered memory for the bytes of a save, and for those of reads.
            provider: As for `feedrail.open`, and so are the other options.

        Raises:
            NotAVolume: the namespace is not formatted.
            Leased: another writer has the lease.
            AccessDenied: the namespace is write protected.
            NoQuorum: too few replicas answer.
            TargetLost: the target of the only replica does not answer.
        """
        self._urls = as_urls(urls)
        self._mode, self._wait = mode, wait
        self._options = connection_options(
            write_quorum=write_quorum,
            lease=lease,
            staging_bytes=staging_bytes,
            provider=provider,
            local_address=local_address,
            io_timeout=io_timeout,
            loss_timeout=loss_timeout,
            host_nqn=host_nqn,
            dhchap_secret=dhchap_secret,
            dhchap_secret_file=dhchap_secret_file,
            dhchap_ctrl_secret=dhchap_ctrl_secret,
            dhchap_ctrl_secret_file=dhchap_ctrl_secret_file,
        )
        self._saves: weakref.WeakSet[_core.CheckpointSave] = weakref.WeakSet()
        self._finalizer: weakref.finalize[..., CheckpointStore] | None = None
        self._open(mode)

    @staticmethod
    def format(
        urls: Urls,
        force: bool = False,
        *,
        unit_bytes: int = 1 << 20,
        provider: Provider = "auto",
        local_address: str | None = None,
        io_timeout: float = 30.0,
        loss_timeout: float | None = None,
        host_nqn: str | None = None,
        dhchap_secret: str | None = None,
        dhchap_secret_file: str | os.PathLike[str] | None = None,
        dhchap_ctrl_secret: str | None = None,
        dhchap_ctrl_secret_file: str | os.PathLike[str] | None = None,
    ) -> str:
        """Makes an empty volume of a namespace, or of several replicas, and returns its UUID.

        Args:
            urls: As for the store.
            force: Destroy a file system, partition table, archive or volume that is there.
            unit_bytes: What space is allocated in and checksums are for: a power of two from 4,096
                to 16,777,216.
            provider: As for `feedrail.open`, and so are the other options.

        Raises:
            VolumeOccupied: the namespace holds data, and `force` is false.
            NotAVolume: the namespace is too small.
            AccessDenied: the namespace is write protected.
        """
        shift = unit_bytes.bit_length() - 1
        if unit_bytes < 1 or unit_bytes != 1 << shift or not 12 <= shift <= 24:
            raise ValueError(f"unit_bytes={unit_bytes}: it is a power of two from 4096 to 16777216")
        options = connection_options(
            provider=provider,
            local_address=local_address,
            io_timeout=io_timeout,
            loss_timeout=loss_timeout,
            host_nqn=host_nqn,
            dhchap_secret=dhchap_secret,
            dhchap_secret_file=dhchap_secret_file,
            dhchap_ctrl_secret=dhchap_ctrl_secret,
            dhchap_ctrl_secret_file=dhchap_ctrl_secret_file,
        )
        return _core.CheckpointVolume.format(as_urls(urls), force, shift, options)

    def begin(
        self,
        step: int,
        *,
        name: str | None = None,
        metadata: Any = None,
        keep: int | None = None,
    ) -> CheckpointSave:
        """Begins a save. Readers see nothing of it until its commit. A store can have several.

        Args:
            step: Training step.
            name: Name of the checkpoint; `step-<step>` if `None`.
            metadata: What `json.dumps` takes, or bytes; at most 1 MiB.
            keep: The commit deletes all checkpoints but the last `keep`, this one included.

        Raises:
            CheckpointExists: there is a checkpoint of this name.
            AccessDenied: the store is open for reading.
            ValueError: the name or the metadata are not allowed.
        """
        name = f"step-{step}" if name is None else name
        save = self._volume.begin(name, step, _format_metadata(metadata), keep)
        self._saves.add(save)
        return CheckpointSave(save, name, step)

    def list(self) -> Checkpoints:
        """The checkpoints, in the order of their commits, as `refresh` or the opening saw them."""
        return [Checkpoint(self, parts) for parts in self._volume.list()]

    def latest(self) -> Checkpoint:
        """The checkpoint that was committed last.

        Raises:
            NotFound: the volume has no such checkpoint.
        """
        all_of_them = self.list()
        if not all_of_them:
            raise NotFound(f"there are no checkpoints in {self._urls[0]}")
        return all_of_them[-1]

    def __getitem__(self, name: str) -> Checkpoint:
        """The checkpoint of a name.

        Raises:
            NotFound: the volume has no such checkpoint.
        """
        for checkpoint in self.list():
            if checkpoint.name == name:
                return checkpoint
        raise NotFound(f"there is no checkpoint {name!r} in {self._urls[0]}")

    def __contains__(self, name: object) -> bool:
        return any(checkpoint.name == name for checkpoint in self.list())

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self._volume.list())

    def delete(self, name: str) -> None:
        """Deletes a checkpoint. Its space is free afterwards.

        Raises:
            NotFound: there is no such checkpoint.
            CommitUnknown: the target was lost, and it is unknown whether the checkpoint is there.
        """
        self._volume.delete(name)

    def keep(self, count: int) -> None:
        """Deletes all checkpoints but the last `count`."""
        self._volume.keep(count)

    def renew(self) -> None:
        """Renews the lease if half of it has passed, as calls that write do. It may be called from
        another thread, while a job computes between two of them.

        Raises:
            Leased, LeaseLost: another writer has the volume.
        """
        self._volume.renew()

    def verify(self, name: str | None = None) -> VerifyReport:
        """Reads a checkpoint, or all, from each current replica, and compares all checksums."""
        nbytes, damaged, manifests = self._volume.verify(name)
        units = self._damaged_units(damaged)
        return VerifyReport(nbytes, units, tuple(self._urls[replica] for replica in manifests))

    def repair(self, *, missed_only: bool = False) -> tuple[RepairReport, ...]:
        """Connects to all replicas again, and makes the stale ones equal to the newest.

        All bytes of all replicas are then read, and units that are damaged on one are rewritten with
        the bytes of another. It needs no quorum of current replicas, and takes the lease while it
        runs.

        Args:
            missed_only: Do not read all bytes to find damaged units.

        Returns:
            What was done to each replica that was stale or had damaged units.

        Raises:
            Leased: another writer has the lease, also of a stale replica.
            SaveInProgress: a save of this store has not ended.
        """
        self._volume.close()
        try:
            self._open("repair")
            # A replica that was lost may have a lease of its own.
            reports = self._wait_for_lease(lambda: self._volume.repair(missed_only))
            self._volume.close()
        finally:
            self._open(self._mode)
        return tuple(
            RepairReport(
                self._urls[replica],
                tuple(copied),
                tuple(deleted),
                nbytes,
                rewritten,
                self._damaged_units(damaged),
            )
            for replica, copied, deleted, nbytes, rewritten, damaged in reports
        )

    def refresh(self) -> None:
        """Opens the volume again, to see what another process committed."""
        self._volume.close()
        self._open(self._mode)

    @property
    def replicas(self) -> tuple[CheckpointReplica, ...]:
        """The replicas, in the order of their URLs, and what is known of them."""
        states = zip(self._urls, self._volume.replicas(), strict=True)
        return tuple(CheckpointReplica(url, state, error) for url, (state, error) in states)

    @property
    def summary(self) -> dict[str, Any]:
        """UUID, generation, size, free bytes and size of a unit of the volume, and its writer."""
        return self._volume.summary()

    def stats(self) -> CheckpointStats:
        """Bytes, seconds and failed reads of each replica since the store was opened."""
        parts = zip(self._urls, self._volume.stats(), strict=True)
        return CheckpointStats(tuple(StoreReplicaStats(url, *counted) for url, counted in parts))

    def close(self) -> None:
        """Gives the lease back, and ends the connections. Closing twice is no error.

        A lease that cannot be given back, because the target is lost, is a `RuntimeWarning`: what was
        saved is durable, and the next writer waits for the end of the lease.

        Raises:
            SaveInProgress: a save has not ended.
        """
        self._volume.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        _abort(self._saves)
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CheckpointStore cannot be pickled: open one in the process that uses it")

    def _damaged_units(
        self, parts: Sequence[tuple[int, tuple[str, str, int, int, int]]]
    ) -> tuple[DamagedUnit, ...]:
        return tuple(DamagedUnit(self._urls[replica], *unit) for replica, unit in parts)

    def _open(self, mode: str) -> None:
        self._volume = self._wait_for_lease(
            lambda: _core.CheckpointVolume(self._urls, mode, self._options)
        )
        if self._finalizer is not None:
            self._finalizer.detach()
        # Also when the interpreter ends.
        self._finalizer = weakref.finalize(self, _close_quietly, self._volume, self._saves)

    def _wait_for_lease(self, call: Callable[[], T]) -> T:
        """Calls a function, again while another writer has the lease and `wait` has not passed."""
        until = time.monotonic() + self._wait
        while True:
            try:
                return call()
            except Leased as error:
                left = until - time.monotonic()
                if left <= 0:
                    raise
                time.sleep(min(left, _LOOK_AGAIN, error.rest or _LOOK_AGAIN))

    def __repr__(self) -> str:
        return f"<feedrail.CheckpointStore {', '.join(self._urls)}: mode {self._mode!r}>"


def _close_quietly(
    volume: _core.CheckpointVolume, saves: weakref.WeakSet[_core.CheckpointSave]
) -> None:
    with contextlib.suppress(FeedrailError):
        _abort(saves)
        volume.close()


def _abort(saves: weakref.WeakSet[_core.CheckpointSave]) -> None:
    for save in list(saves):
        save.abort()


def as_urls(urls: Urls) -> list[str]:
    """The URLs of replicas, as they were given.

    Raises:
        ValueError: the list is empty, or a URL is malformed.
    """
    every = [urls] if isinstance(urls, str) else list(urls)
    if not every:
        raise ValueError("there is no URL")
    for url in every:
        NvmfUrl.parse(url)
    return every


def connection_options(
    *,
    write_quorum: int | None = None,
    lease: float = 60.0,
    staging_bytes: int = 64 << 20,
    provider: str = "auto",
    local_address: str | None = None,
    io_timeout: float = 30.0,
    loss_timeout: float | None = None,
    host_nqn: str | None = None,
    dhchap_secret: str | None = None,
    dhchap_secret_file: str | os.PathLike[str] | None = None,
    dhchap_ctrl_secret: str | None = None,
    dhchap_ctrl_secret_file: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Options as the native module takes them."""
    secrets = Secrets.of(
        dhchap_secret, dhchap_secret_file, dhchap_ctrl_secret, dhchap_ctrl_secret_file
    )
    return {
        "write_quorum": write_quorum,
        "lease": lease,
        "staging_bytes": staging_bytes,
        "provider": provider,
        "local_address": local_address,
        "io_timeout": io_timeout,
        "loss_timeout": loss_timeout,
        "host_nqn": host_nqn,
        "secrets": secrets.options(),
    }


def _format_metadata(metadata: Any) -> bytes:
    if metadata is None:
        return b""
    if isinstance(metadata, bytes | bytearray | memoryview):
        data = bytes(metadata)
    else:
        data = json.dumps(metadata).encode()
    if len(data) > _METADATA_BYTES:
        raise ValueError(f"the metadata has {len(data)} bytes, and {_METADATA_BYTES} is the limit")
    return data


def _parse_metadata(data: bytes) -> Any:
    if not data:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return data


def _memory(exporter: Any) -> Any:
    """An array or tensor that exports its memory: torch refuses it for those that need gradients."""
    detach = getattr(exporter, "detach", None)
    return exporter if detach is None else detach()


def _nbytes(memory: Any) -> int:
    """The length of memory in bytes."""
    length = getattr(memory, "nbytes", None)
    return memoryview(memory).nbytes if length is None else int(length)
