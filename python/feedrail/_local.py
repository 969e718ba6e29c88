"""Files of this machine, as a target would export them."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from feedrail import _core
from feedrail._dtypes import RESULT_DTYPE
from feedrail._errors import ChecksumError, DatasetChanged, FeedrailError, RangeError
from feedrail._shards import Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedrail._typing import Progress

#: `status` of a range that failed on this side.
_FAILED = 0x8000
_COUNTERS = (
    *("batches", "commands", "ranges", "ranges_failed", "direct_bytes", "bounced_bytes", "retries"),
    *("reconnects", "connections_lost", "protocol_violations", "timeouts", "aborts"),
)


def files_of(folder: Path) -> list[str]:
    """Paths of the regular files in a folder and those in it, from there, with slashes, sorted.

    Hidden ones are left out, and links to folders are not followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    found = []
    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                found.append(os.path.relpath(path, folder).replace(os.sep, "/"))
    return sorted(found)


def path_of(source: str | os.PathLike[str]) -> Path | None:
    """The file or folder of this machine that a source is; `None` for a URL of targets.

    Raises:
        ValueError: a `file:` URL names another machine.
    """
    text = os.fspath(source)
    if not isinstance(source, str) or not text.startswith("file:"):
        return None if text.startswith("nvmf:") else Path(text)
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not file:///path of this machine, percent-encoded")
    return Path(unquote(parts.path))


class LocalSession:
    """Reads files as `_core.Session` reads namespaces: each batch ends as it is submitted."""

    def __init__(self, root: str) -> None:
        path = Path(root)
        if path.is_dir():
            found = [(name, path / name) for name in files_of(path)]
        else:
            found = [(path.name, path)]
        seen = [(name, file, _seen(os.stat(file))) for name, file in found]
        # As a target does: a namespace of no bytes is not active.
        self._files = [(file, seen) for _, file, seen in seen if seen[0]]
        self._names = [name for name, _, seen in seen if seen[0]]
        self._lock = threading.Lock()
        self._counts = {name: 0 for name in _COUNTERS}
        self._seconds: list[float] = [0.0]

    def shards(self) -> list[Shard]:
        """The files, in the order of their names."""
        described = zip(self._names, self._files, strict=True)
        return [Shard(name, seen[0], 0, None, seen[1]) for name, (_, seen) in described]

    def submit(
        self, plan: NDArray[np.void], out: _core.Buffer, timeout: float | None, background: bool
    ) -> LocalTicket:
        """Reads a plan into a buffer."""
        self._check(plan, out.nbytes)
        began = time.monotonic()
        statuses = np.zeros(len(plan), RESULT_DTYPE)
        statuses["attempts"] = 1
        ticket = LocalTicket(plan, out, statuses)
        with memoryview(out) as data:
            for number in np.unique(plan["shard"]).tolist():
                self._read(number, np.flatnonzero(plan["shard"] == number), data, ticket)
        with self._lock:
            self._counts["batches"] += 1
            self._counts["ranges"] += len(plan)
            self._counts["ranges_failed"] += len(ticket.failed)
            self._counts["direct_bytes"] += int(plan["length"].sum(dtype=np.uint64))
            self._seconds[0] += time.monotonic() - began
        return ticket

    def read(
        self,
        plan: NDArray[np.void],
        out: _core.Buffer,
        timeout: float | None,
        background: bool,
        progress: Progress | None = None,
    ) -> LocalTicket:
        """As `submit`, and tells of the end."""
        ticket = self.submit(plan, out, timeout, background)
        ticket.wait(None, progress)
        return ticket

    def _check(self, plan: NDArray[np.void], room: int) -> None:
        """Refuses what `_core.Session` refuses."""
        if not len(plan):
            return
        unknown = np.flatnonzero(plan["shard"] >= len(self._files))
        if len(unknown):
            number = plan["shard"][unknown[0]]
            raise ValueError(f"entry {unknown[0]} names shard {number} of {len(self._files)}")
        sizes = np.array([seen[0] for _, seen in self._files], np.uint64)[plan["shard"]]
        lengths = plan["length"].astype(np.uint64)
        outside = np.flatnonzero((lengths > sizes) | (plan["offset"] > sizes - np.minimum(lengths, sizes)))
        if len(outside):
            at = int(outside[0])
            shard, length, offset, _ = plan[at].tolist()
            message = f"entry {at}: {length} bytes at {offset} of shard {shard}, which has {sizes[at]}"
            raise RangeError(message, shard=shard, offset=offset, length=length)
        if bool(((lengths > room) | (plan["dst"] > room - np.minimum(lengths, room))).any()):
            raise ValueError(f"an entry goes beyond the {room} bytes of the buffer")
        used = plan[lengths > 0]
        used = used[np.argsort(used["dst"], kind="stable")]
        if bool((used["dst"][:-1] + used["length"][:-1] > used["dst"][1:]).any()):
            raise ValueError("two entries of the plan share bytes of the buffer")

    def _read(
        self, number: int, entries: NDArray[np.intp], data: memoryview, ticket: LocalTicket
    ) -> None:
        path, known = self._files[number]
        try:
            with open(path, "rb", buffering=0) as file:
                if _seen(os.fstat(file.fileno())) != known:
                    raise DatasetChanged(f"{path} was changed since it was opened")
                for entry in entries.tolist():
                    _, length, offset, dst = ticket.plan[entry].tolist()
                    _fill(file.fileno(), data[dst : dst + length], offset)
        except OSError as error:
            for entry in entries.tolist():
                ticket.fail(entry, error)

    def providers(self) -> list[str]:
        """No provider of RDMA."""
        return ["local files"]

    def targets_away(self) -> list[str]:
        """No targets."""
        return []

    def counters(self) -> dict[str, Any]:
        """What was read, as `_core.Session` counts it."""
        with self._lock:
            latency = {"latency_edges_us": [], "latency_counts": [self._counts["batches"]]}
            seconds = {"latency_seconds": self._seconds[0], "stall_seconds": self._seconds[0]}
            return {**self._counts, **latency, **seconds}


class LocalTicket:
    """A batch that has ended, as `_core.Ticket` shows it."""

    def __init__(
        self, plan: NDArray[np.void], out: _core.Buffer, results: NDArray[np.void]
    ) -> None:
        self.plan, self.failed = plan, dict[int, FeedrailError]()
        self._out, self._results = out, results
        self._event: int | None = None

    def fail(self, entry: int, error: OSError) -> None:
        """A range was not read."""
        shard, length, offset, _ = self.plan[entry].tolist()
        kind = type(error) if isinstance(error, FeedrailError) else FeedrailError
        self.failed[entry] = kind(
            str(error), errno=error.errno, shard=shard, offset=offset, length=length
        )
        self._results["status"][entry] = _FAILED

    def done(self) -> bool:
        """Always true."""
        return True

    def wait(self, timeout: float | None = None, progress: Progress | None = None) -> bool:
        """Tells of the end; always true."""
        if progress is not None:
            nbytes = int(self.plan["length"].sum(dtype=np.uint64))
            progress(nbytes, nbytes)
        return True

    def mismatches(self, crc32c: bytes) -> list[tuple[int, FeedrailError]]:
        """The ranges that do not have their checksums."""
        wrong: list[tuple[int, FeedrailError]] = []
        with memoryview(self._out) as data:
            for entry, expected in enumerate(np.frombuffer(crc32c, "<u4").tolist()):
                shard, length, offset, dst = self.plan[entry].tolist()
                if not expected or entry in self.failed:
                    continue
                found = _core.crc32c(data[dst : dst + length])
                if found != expected:
                    message = f"the CRC-32C is {found:08x}, and should be {expected:08x}"
                    error = ChecksumError(message, shard=shard, offset=offset, length=length)
                    wrong.append((entry, error))
        return wrong

    def cancel(self) -> int:
        """Nothing is left to cancel."""
        return 0

    def fileno(self) -> int:
        """A descriptor that is readable."""
        if self._event is None:
            self._event = os.eventfd(1, os.EFD_CLOEXEC)
        return self._event

    def results(self) -> bytes:
        """A result of `RESULT_DTYPE` for each range."""
        return self._results.tobytes()

    def failures(self, at_most: int) -> list[tuple[int, FeedrailError]]:
        """The ranges that were not read."""
        return list(self.failed.items())[:at_most]

    def __del__(self) -> None:
        if self._event is not None:
            os.close(self._event)


def _seen(status: os.stat_result) -> tuple[int, int]:
    """Size of a file, and a number that differs when its bytes may differ."""
    told = f"{status.st_dev} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
    generation = hashlib.blake2b(told.encode(), digest_size=8).digest()
    return status.st_size, int.from_bytes(generation, "little")


def _fill(descriptor: int, into: memoryview, offset: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], offset + done)
        if not count:
            raise DatasetChanged("the file was cut off since it was opened")
        done += count
