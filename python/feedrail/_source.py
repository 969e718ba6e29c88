"""Sources: data sets on targets, as one client sees them."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from feedrail import _core
from feedrail._dtypes import as_checksums, as_plan, make_plan
from feedrail._errors import DatasetChanged
from feedrail._file import File
from feedrail._shards import Shard, Shards
from feedrail._stats import Stats, UsageClock
from feedrail._ticket import Ticket
from feedrail._url import NvmfUrl

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from feedrail._typing import Progress, Readable

Provider = Literal["auto", "verbs", "soft"]


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

    def new_session(self) -> _core.Session:
        """A session without connections yet."""
        return _core.Session(
            provider=self.provider,
            local_address=self.local_address,
            io_queues=self.io_queues,
            queue_entries=self.queue_entries,
            io_timeout=self.io_timeout,
            loss_timeout=self.loss_timeout,
        )


class Source:
    """A data set: the shards of one subsystem, or one of them.

    It can be pickled, and used after a fork: it carries how it was opened and what the shards were,
    never connections, and a process that has none connects when it first reads. Threads may share
    it. Made by `feedrail.open`.

    Attributes:
        shards: The shards, by number and by name.
    """

    def __init__(self, specification: Specification, shards: Shards | None = None) -> None:
        self._specification = specification
        self._lock = threading.Lock()
        self._opened: tuple[int, _core.Session] | None = None
        #: Loaders count here how long they were waited for.
        self.usage = UsageClock()
        _SOURCES.add(self)
        if shards is None:
            self.shards = self._open()[1]
        else:
            self.shards = shards

    @property
    def url(self) -> str:
        """The URL that it was opened with."""
        return self._specification.url

    @property
    def hash(self) -> str:
        """A hash of the shards: names, sizes, identities and generations."""
        return self.shards.hash

    @property
    def nbytes(self) -> int:
        """Number of bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)

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
        """Starts reading the ranges of a plan into a buffer, and returns at once.

        Args:
            plan: Entries of `PLAN_DTYPE`; their `dst` are bytes of `out` and must not overlap.
            out: A `Buffer`, or what `register` takes.
            timeout: Seconds after which ranges without a result fail.
            priority: Below 0, ranges go behind those of priority 0 or more, for prefetching.
            crc32c: CRC-32C of the bytes of each range, shape `(entries,)`, `uint32`; 0 for ranges
                that are not checked. `Ticket.wait` compares them.

        Raises:
            RangeError: an entry is not within its shard. Nothing was read.
            BufferInUse: a batch that is not over reads into the same bytes. Nothing was read.
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

        Other threads run meanwhile. What a signal's handler raises, such as `KeyboardInterrupt`,
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
            BufferInUse: a batch that is not over reads into the same bytes. Nothing was read.
            ValueError: an entry names no shard, or bytes that `out` does not have, or two entries
                share bytes of `out`. Nothing was read.
            ForkedHandleError: `out` was registered by the process that this was forked from.
        """
        session, buffer = self._session(), _buffer(out)
        entries = as_plan(plan)
        checksums = None if crc32c is None else as_checksums(crc32c, len(entries))
        return Ticket(session.read(entries, buffer, timeout, False, progress), checksums).results(errors)

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

    def open(self, shard: str | int = 0, mode: Literal["rb"] = "rb") -> File:
        """A shard as a file that Python's libraries read: `io.RawIOBase`.

        Raises:
            FileNotFoundError: there is no such shard.
            ValueError: the mode is not `"rb"`.
        """
        if mode not in ("rb", "r"):
            raise ValueError(f"mode {mode!r}: shards are read, in mode 'rb'")
        return File(self, self.shards.number(shard))

    def stats(self) -> Stats:
        """What this process has read so far."""
        session = self._session()
        return Stats.of(session.counters(), session.providers(), self.usage)

    def close(self) -> None:
        """Ends the connections of this process. A later read connects again."""
        with self._lock:
            self._opened = None

    def _session(self) -> _core.Session:
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

    def _open(self) -> tuple[_core.Session, Shards]:
        session = self._specification.new_session()
        url = NvmfUrl.parse(self._specification.url)
        wanted: dict[str, Any] = {}
        if url.namespace is not None:
            number = url.namespace.isascii() and url.namespace.isdigit()
            wanted = {"nsid": int(url.namespace)} if number else {"name": url.namespace}
        found = session.open(url.resolve(), url.port, url.nqn, **wanted)
        if not found:
            raise FileNotFoundError(f"{self._specification.url}: there is no such namespace")
        self._opened = os.getpid(), session
        return session, Shards([Shard.of(properties) for properties in found])

    def __reduce__(self) -> tuple[type[Source], tuple[Specification, Shards]]:
        return Source, (self._specification, self.shards)

    def __repr__(self) -> str:
        return f"<feedrail.Source {self.url}: {len(self.shards)} shards, {self.nbytes} bytes>"

    def _forget_parent(self) -> None:
        """In a child: the parent's connections and lock mean nothing."""
        self._lock = threading.Lock()
        self._opened = None
        self.usage = UsageClock()


_SOURCES: weakref.WeakSet[Source] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    _core.after_fork_in_child()
    for source in list(_SOURCES):
        source._forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)


def open(
    source: str,
    /,
    *,
    provider: Provider = "auto",
    local_address: str | None = None,
    io_queues: int = 1,
    queue_entries: int = 128,
    io_timeout: float = 30.0,
    loss_timeout: float | None = None,
) -> Source:
    """Opens a data set, and connects to it.

    Args:
        source: `nvmf://host[:4420]/<nqn>` for all namespaces of a subsystem in the order of their
            numbers, or `nvmf://host[:4420]/<nqn>/<name or nsid>` for one.
        provider: `"verbs"` for RDMA devices, `"soft"` for RoCE v2 over UDP sockets, `"auto"` for
            verbs where a device serves the address and soft elsewhere.
        local_address: The IP address to connect from; that of the route if `None`.
        io_queues: I/O queues of a connection, each with `queue_entries` entries.
        io_timeout: Seconds that a range may be without progress.
        loss_timeout: Seconds without a connection after which reads fail; 60 if `None`.

    Raises:
        ValueError: the URL is malformed, or an option is out of its bounds.
        TargetLost: nothing answers at the address, or it refuses the connection.
        FileNotFoundError: the subsystem has no such namespace.
    """
    specification = Specification(
        url=os.fspath(source),
        provider=provider,
        local_address=local_address,
        io_queues=io_queues,
        queue_entries=queue_entries,
        io_timeout=io_timeout,
        loss_timeout=loss_timeout,
    )
    return Source(specification)


def _buffer(out: Readable) -> _core.Buffer:
    return out if isinstance(out, _core.Buffer) else _core.Buffer.of(out)


def _check_device(device: str) -> None:
    if device != "cpu":
        raise ValueError(f"device {device!r}: this build of feedrail reads into host memory only")
