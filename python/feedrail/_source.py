"""Sources: data sets on targets, as one client sees them."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from feedrail import _core
from feedrail._dtypes import as_checksums, as_plan, make_plan, plan_of_range
from feedrail._errors import ChecksumError, DatasetChanged, NotFound, ReadOnly
from feedrail._file import File
from feedrail._local import LocalSession
from feedrail._manifest import Manifest
from feedrail._secrets import Secrets
from feedrail._shards import Replicas, Shard, Shards
from feedrail._stats import Stats, UsageClock
from feedrail._ticket import Ticket
from feedrail._url import NvmfUrl

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

    from feedrail._typing import Progress, Readable, Writable
    from feedrail.index import Index

Provider = Literal["auto", "verbs", "soft", "shm"]


@dataclass(frozen=True)
class Specification:
    """What a source is made of: all that another process needs to open the same."""

    url: str
    provider: Provider
    local_address: str | None
    io_queues: int
    queue_entries: int
    io_timeout: float
    loss_timeout: float | None
    host_nqn: str | None = None
    manifest: Manifest | None = None
    is_local: bool = False
    replicas: Literal["spread", "first"] = "spread"
    secrets: Secrets = Secrets()

    def connection(self) -> dict[str, Any]:
        """How to connect, as `feedrail.open` takes it."""
        others = ("url", "manifest", "is_local", "replicas", "secrets")
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in others}
        return own | self.secrets.options()

    def new_session(self) -> _core.Session:
        """A session without connections yet."""
        return _core.Session(
            provider=self.provider,
            local_address=self.local_address,
            io_queues=self.io_queues,
            queue_entries=self.queue_entries,
            io_timeout=self.io_timeout,
            loss_timeout=self.loss_timeout,
            host_nqn=self.host_nqn,
            secrets=self.secrets.options(),
        )


class Source:
    """A data set: the shards of a manifest, of one subsystem or folder, or one of these.

    It can be pickled, and used after a fork: it carries how it was opened and what the shards were,
    never connections, and a process that has none connects when it first reads. Threads may share
    it. Made by `feedrail.open`.

    Attributes:
        shards: The shards, by number and by name.
    """

    def __init__(
        self,
        specification: Specification,
        shards: Shards | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self._specification = specification
        self._lock = threading.Lock()
        self._opened: tuple[int, _core.Session | LocalSession] | None = None
        #: Loaders count here how long they were waited for.
        self.usage = UsageClock()
        self._replicas = replicas
        if replicas is None and specification.manifest is not None:
            self._replicas = Replicas(specification.manifest)
        _SOURCES.add(self)
        if shards is None:
            self.shards = self._open()[1]
        else:
            self.shards = shards

    @property
    def url(self) -> str:
        """The URL that it was opened with, or the path of the manifest."""
        return self._specification.url

    @property
    def manifest(self) -> Manifest | None:
        """The manifest that it was opened with, if it was one."""
        return self._specification.manifest

    @property
    def hash(self) -> str:
        """A hash of the shards: names, sizes, identities and generations.

        That of a manifest is its `content_hash`, which is the same wherever the shards are.
        """
        manifest = self._specification.manifest
        return self.shards.hash if manifest is None else manifest.content_hash

    @property
    def nbytes(self) -> int:
        """Number of bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def writable(self) -> bool:
        """Whether all shards can be written, as their target said when it was opened.

        False for a manifest and for files of this machine. `Shard.writable` is of one shard.
        """
        is_remote = not self._specification.is_local and self._specification.manifest is None
        return is_remote and all(shard.writable for shard in self.shards)

    def pool(self, nbytes: int, *, device: str = "cpu", pin: bool | None = None) -> _core.Pool:
        """Registered memory that is lent in parts: `Pool.take`.

        Raises:
            ValueError: `device` is not the CPU, or `pin` asks for memory that CUDA has pinned:
                this build has neither.
            OSError: the system has no room for it.
        """
        _check_device(device)
        if pin:
            raise ValueError("pin=True needs CUDA, which this build of feedrail does not use")
        return _core.Pool(nbytes)

    def register(self, obj: Readable, /) -> _core.Buffer:
        """Registers the memory of an array or a tensor, to read into it in place.

        Takes what exports its memory by the buffer protocol (numpy, `bytearray`, `array`) or by
        DLPack (torch, cupy on the host, jax). The buffer keeps the exporter until every device has
        forgotten the memory.

        Raises:
            BufferError: the memory is read-only, has gaps, or is on a device.
            TypeError: the object exports no memory.
        """
        return _core.Buffer.of(obj)

    def register_ptr(
        self, ptr: int, n: int, *, owner: object, device: str = "cpu"
    ) -> _core.Buffer:
        """Registers `n` bytes at address `ptr`.

        The caller answers for it: the bytes must be writable, and stay mapped for as long as
        `owner` lives, which the buffer keeps.

        Raises:
            ValueError: the address is zero, or `device` is not the CPU.
        """
        _check_device(device)
        return _core.Buffer.of_address(ptr, n, owner)

    def submit(
        self,
        plan: ArrayLike,
        out: Readable,
        *,
        timeout: float | None = None,
        priority: int = 0,
        crc32c: ArrayLike | None = None,
    ) -> Ticket:
        """Starts reading the ranges of a plan into a buffer, and returns without waiting.

        Args:
            plan: Entries of `PLAN_DTYPE`; their `dst` are bytes of `out` and must not overlap.
            out: A `Buffer`, or what `register` takes.
            timeout: Seconds after which ranges without a result fail.
            priority: Below 0, ranges go behind those of priority 0 or more, for prefetching.
            crc32c: CRC-32C of the bytes of each range, shape `(entries,)`, `uint32`; 0 for ranges
                that are not checked. `Ticket.wait` compares them.

        Raises:
            RangeError: an entry is not within its shard. Nothing was read.
            BufferInUse: a batch that is not over uses the same bytes. Nothing was read.
            ValueError: an entry names no shard, or bytes that `out` does not have, or two entries
                share bytes of `out`. Nothing was read.
            ForkedHandleError: `out` was registered by the process that this was forked from.
        """
        session, buffer = self._session(), _buffer(out)
        entries = as_plan(plan)
        checksums = None if crc32c is None else as_checksums(crc32c, len(entries))
        return Ticket(session.submit(entries, buffer, timeout, priority < 0), checksums)

    def read_many(
        self,
        plan: ArrayLike,
        out: Readable,
        *,
        timeout: float | None = None,
        errors: Literal["raise", "return"] = "raise",
        crc32c: ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.void]:
        """Reads the ranges of a plan into a buffer, and waits for them.

        Other threads keep running. What a signal's handler raises, such as `KeyboardInterrupt`,
        ends it within 200 ms and cancels the batch.

        Args:
            plan: Entries of `PLAN_DTYPE`; their `dst` are bytes of `out` and must not overlap.
            out: A `Buffer`, or what `register` takes.
            timeout: Seconds after which ranges without a result fail.
            errors: `"return"` leaves failed ranges to the caller, in the results.
            crc32c: CRC-32C of the bytes of each range, shape `(entries,)`, `uint32`; 0 for ranges
                that are not checked. They are compared in one call, while other threads run.
            progress: Called in this thread with the bytes that are done and those of all, each
                100 ms and at the end; what it raises cancels the batch.

        Returns:
            A result for each entry, shape `(entries,)`, dtype `RESULT_DTYPE`.

        Raises:
            BatchError: ranges failed; it is a `TargetLost`, `DatasetChanged`, `ReadTimeout` or
                `ChecksumError` too where all failed for that reason.
            RangeError: an entry is not within its shard. Nothing was read.
            BufferInUse: a batch that is not over uses the same bytes. Nothing was read.
            ValueError: an entry names no shard, or bytes that `out` does not have, or two entries
                share bytes of `out`. Nothing was read.
            ForkedHandleError: `out` was registered by the process that this was forked from.
        """
        session, buffer = self._session(), _buffer(out)
        entries = as_plan(plan)
        checksums = None if crc32c is None else as_checksums(crc32c, len(entries))
        ticket = Ticket(session.read(entries, buffer, timeout, False, progress), checksums)
        return ticket.results(errors)

    def rows(
        self,
        shard: int | str,
        offsets: ArrayLike,
        row_bytes: int,
        out: Readable | None = None,
        *,
        progress: Progress | None = None,
    ) -> _core.Buffer:
        """Reads ranges of equal length, one after the other, into one buffer.

        `rows(0, offsets, 2050).as_numpy("u2", (len(offsets), 1025))` is a batch of rows.

        Args:
            shard: Number or name of a shard.
            offsets: First bytes of the rows, shape `(rows,)`, integers.
            row_bytes: Bytes of each row.
            out: Where to read to; a new buffer of `rows * row_bytes` bytes if `None`.
            progress: As for `read_many`.

        Raises:
            BatchError: as `read_many`.
        """
        number = self.shards.number(shard)
        plan = make_plan(np.ravel(offsets), row_bytes, shard=number)
        buffer = _core.Buffer.allocate(len(plan) * row_bytes) if out is None else _buffer(out)
        self.read_many(plan, buffer, progress=progress)
        return buffer

    def submit_write(
        self,
        plan: ArrayLike,
        data: Writable,
        *,
        timeout: float | None = None,
        priority: int = 0,
        durable: bool = False,
    ) -> Ticket:
        """Starts writing the ranges of a plan from a buffer, and returns without waiting.

        The bytes of the plan must stay as they are until the ticket is done: other batches may write
        from them too, but not read into them. A range of whole blocks is sent from where it is; a
        block that is written in part is read, changed and written: if two processes or hosts write
        parts of one block at the same time, the bytes of one are lost. Ranges of a plan that share
        bytes of a shard are written in any order.

        Args:
            plan: Entries of `PLAN_DTYPE`; their `dst` are the bytes of `data` that are written.
            data: A `Buffer`, or an array, tensor, `bytes` or other memory without gaps, which may be
                read-only.
            timeout: Seconds after which ranges without a result fail.
            priority: Below 0, ranges go behind those of priority 0 or more.
            durable: Ranges are on stable media when they succeed (Force Unit Access). For many
                ranges one `flush` after them is faster.

        Raises:
            RangeError: an entry is not within its shard. Nothing was written.
            ReadOnly: the source is a manifest or files of this machine. A shard that is write
                protected is an error of its ranges.
            BufferInUse: a batch that is not over reads into the same bytes. Nothing was written.
            BufferError: `data` has gaps, or is on a device.
            ValueError: an entry names no shard, or bytes that `data` does not have. Nothing was
                written.
            ForkedHandleError: `data` was registered by the process that this was forked from.
        """
        session, buffer, entries = self._session_to_write(), _source_of(data), as_plan(plan)
        return Ticket(session.submit_write(entries, buffer, timeout, priority < 0, durable))

    def write_many(
        self,
        plan: ArrayLike,
        data: Writable,
        *,
        timeout: float | None = None,
        errors: Literal["raise", "return"] = "raise",
        durable: bool = False,
        progress: Progress | None = None,
    ) -> NDArray[np.void]:
        """Writes the ranges of a plan from a buffer, and waits for them.

        Other threads keep running. What a signal's handler raises, such as `KeyboardInterrupt`,
        ends it within 200 ms and cancels the batch; `data` is kept until the target is done with it.

        Ranges that a lost connection interrupts are written again when it is back, until their
        deadline. A range that failed, or that was cancelled, may have been written or not, in
        whole or in part; one that succeeded is durable after `flush`.

        Args:
            plan: Entries of `PLAN_DTYPE`; their `dst` are the bytes of `data` that are written.
            data: A `Buffer`, or an array, tensor, `bytes` or other memory without gaps, which may be
                read-only.
            timeout: Seconds after which ranges without a result fail.
            errors: `"return"` leaves failed ranges to the caller, in the results.
            durable: As for `submit_write`.
            progress: Called in this thread with the bytes that are done and those of all, each
                100 ms and at the end; what it raises cancels the batch.

        Returns:
            A result for each entry, shape `(entries,)`, dtype `RESULT_DTYPE`.

        Raises:
            BatchError: ranges failed; it is a `TargetLost`, `ReadOnly`, `DatasetChanged` or
                `ReadTimeout` too where all failed for that reason.
            RangeError, ReadOnly, BufferInUse, BufferError, ValueError, ForkedHandleError: as
                `submit_write`. Nothing was written.
        """
        session, buffer, entries = self._session_to_write(), _source_of(data), as_plan(plan)
        return Ticket(session.write(entries, buffer, timeout, durable, progress)).results(errors)

    def pwrite(
        self,
        data: Writable,
        offset: int,
        *,
        shard: int | str = 0,
        timeout: float | None = None,
        durable: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Writes all bytes of `data` at `offset` of a shard, and returns their number.

        Args:
            data: As for `write_many`.
            offset: First byte in the shard, of any alignment.
            shard: Number or name of the shard.
            timeout, durable, progress: As for `write_many`.

        Raises:
            BatchError, RangeError, ReadOnly, BufferInUse, BufferError, ForkedHandleError: as
                `write_many`.
            ValueError: `offset` is negative.
        """
        buffer, number = _source_of(data), self.shards.number(shard)
        plan = plan_of_range(number, offset, buffer.nbytes)
        self.write_many(plan, buffer, timeout=timeout, durable=durable, progress=progress)
        return buffer.nbytes

    def flush(self, shard: int | str | None = None, *, timeout: float | None = None) -> None:
        """Makes durable what was written to a shard, or to all: writes that have ended before it.

        If it raises, they may not be durable. It also raises if a connection was lost after one of
        them: a target that has restarted may have lost what it had not flushed, and answers the
        next flush all the same. That is told once; the writes have to be repeated, not only the
        flush. Call it before `close`.

        Raises:
            TargetLost: the connection was lost, in the meantime or before.
            ReadTimeout: the target has not answered within `timeout` seconds, or in the time that
                it has for each command: the longer of 15 seconds and `io_timeout`.
            ReadOnly: the source is a manifest or files of this machine.
            FeedrailError: the target could not make them durable.
        """
        session = self._session_to_write()
        everything = range(len(self.shards))
        session.flush([*everything] if shard is None else [self.shards.number(shard)], timeout)

    def open(self, shard: str | int = 0, mode: Literal["rb", "r+b"] = "rb") -> File:
        """A shard as a file that Python's libraries read, or write in place: `io.RawIOBase`.

        Raises:
            NotFound: there is no such shard.
            ReadOnly: the mode is `"r+b"`, and the shard cannot be written.
            ValueError: the mode is neither `"rb"` nor `"r+b"`.
        """
        number = self.shards.number(shard)
        if mode in ("rb", "r"):
            return File(self, number)
        if mode not in ("r+b", "rb+"):
            raise ValueError(f"mode {mode!r}: shards are read in mode 'rb', and written in mode 'r+b'")
        self._session_to_write()
        if not self.shards[number].writable:
            raise ReadOnly(
                f"{self.shards[number].name} of {self.url} was write protected when it was opened: set "
                "read_only = false in the target's configuration, start its quick form with --writable, "
                "or call feedrail target protect --undo, and open it again",
                shard=number,
            )
        return File(self, number, writable=True)

    def index(self) -> Index:
        """The index that the manifest names, once its hash is checked.

        Raises:
            ValueError: the source has no manifest, or the manifest has no index.
            ChecksumError: the bytes are not those of the index that the manifest names.
            OSError: the index cannot be read.
        """
        from feedrail.index import Index

        manifest, options = self._specification.manifest, self._specification.connection()
        if manifest is None:
            raise ValueError(f"{self.url} is no manifest, which would name an index: load it by Index")
        return Index.parse(manifest.read_index(**options), f"the index of {self.url}")

    def verify(self, shard: int | str | None = None) -> None:
        """Reads a shard whole, or all, from each replica and compares the checksums of the manifest.

        A replica that differs is no longer read from, and a `ReplicaWarning` says so. Replicas
        whose target is away are not compared. Other reads go first.

        Raises:
            ValueError: the source has no manifest, or the manifest no checksum of the shard: write it
                with `feedrail manifest --crc`.
            ChecksumError: no replica that can be read has the bytes of a shard.
        """
        manifest, session = self._specification.manifest, self._session()
        if manifest is None or isinstance(session, LocalSession):
            raise ValueError(f"{self.url} is no manifest, which would have checksums")
        numbers = range(len(self.shards)) if shard is None else [self.shards.number(shard)]
        for number in numbers:
            expected = manifest.shards[number].crc32c
            if expected is None:
                name = manifest.shards[number].name
                raise ValueError(f"no checksum of {name}: write the manifest with --crc")
            self._verify(session, number, expected)

    def _verify(self, session: _core.Session, number: int, expected: int) -> None:
        replicas = self.shards[number].replicas
        wrong = {}
        for place, replica in enumerate(replicas):
            found = session.checksum(number, place) if replica.state == "used" else None
            if found is not None and found != expected:
                wrong[place] = f"its CRC-32C is {found:08x}, and {expected:08x} in the manifest"
        for place, reason in wrong.items():
            session.take_out(number, place, reason)
        if not any(replica.state == "used" for replica in self.shards[number].replicas):
            name = self.shards[number].name
            raise ChecksumError(
                f"no replica of {name} that can be read has its checksum", shard=number
            )

    def stats(self) -> Stats:
        """Counters of the reads and writes of this process so far."""
        session = self._session()
        return Stats.of(
            session.counters(), session.targets_away(), session.providers(), self.usage
        )

    def close(self) -> None:
        """Ends the connections of this process. A later read connects again."""
        with self._lock:
            self._forget_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _forget_session(self) -> None:
        self._opened = None
        if self._replicas is not None:
            self._replicas.detach()

    def _session(self) -> _core.Session | LocalSession:
        """The connections of this process."""
        opened = self._opened
        if opened is not None and opened[0] == os.getpid():
            return opened[1]
        with self._lock:
            session, shards = self._open()
        if shards != self.shards:
            self.close()
            raise DatasetChanged(f"{self.url}: its shards are not those that were opened")
        return session

    def _session_to_write(self) -> _core.Session:
        """The connections of this process, to one subsystem.

        Raises:
            ReadOnly: it is a manifest or files.
        """
        if self._specification.manifest is not None:
            raise ReadOnly(
                f"{self.url} is a manifest, whose shards may have several replicas and are only read: "
                "write to the URL of one namespace"
            )
        session = self._session()
        if isinstance(session, LocalSession):
            raise ReadOnly(f"{self.url} is of this machine and only read: write it with Python's open")
        return session

    def _open(self) -> tuple[_core.Session | LocalSession, Shards]:
        if self._specification.is_local:
            files = LocalSession(self._specification.url)
            self._opened = os.getpid(), files
            return files, Shards(files.shards())
        session = self._specification.new_session()
        manifest, replicas = self._specification.manifest, self._replicas
        if manifest is not None and replicas is not None:
            spread = self._specification.replicas == "spread"
            session.open_manifest(manifest._core, spread, replicas.known())
            replicas.attach(session, len(manifest.shards))
            self._opened = os.getpid(), session
            return session, Shards.of_manifest(manifest, replicas)
        url = NvmfUrl.parse(self._specification.url)
        found = session.open(url.resolve(), url.port, url.nqn, nsid=url.nsid, name=url.name)
        if not found:
            hint = f": a number is said as nsid:{url.name}" if (url.name or "").isdecimal() else ""
            raise NotFound(f"{self._specification.url}: there is no such namespace{hint}")
        self._opened = os.getpid(), session
        return session, Shards([Shard.of(properties) for properties in found])

    def __reduce__(self) -> tuple[type[Source], tuple[Specification, Shards, Replicas | None]]:
        return Source, (self._specification, self.shards, self._replicas)

    def __repr__(self) -> str:
        return f"<feedrail.Source {self.url}: {len(self.shards)} shards, {self.nbytes} bytes>"

    def _forget_parent(self) -> None:
        """In a child: the parent's connections and lock mean nothing."""
        self._lock = threading.Lock()
        self._forget_session()
        self.usage = UsageClock()


_SOURCES: weakref.WeakSet[Source] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    _core.after_fork_in_child()
    for source in list(_SOURCES):
        source._forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _buffer(out: Readable) -> _core.Buffer:
    return out if isinstance(out, _core.Buffer) else _core.Buffer.of(out)


def _source_of(data: Writable) -> _core.Buffer:
    return data if isinstance(data, _core.Buffer) else _core.Buffer.of_source(data)


def _check_device(device: str) -> None:
    if device != "cpu":
        raise ValueError(f"device {device!r}: this build of feedrail reads into host memory only")
