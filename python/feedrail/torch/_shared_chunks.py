"""Chunks of a checkpoint that one rank of a machine reads, and others copy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: Bytes of a chunk: at least a unit of any volume.
CHUNK_BYTES = 16 << 20
#: Chunks in the memory of a machine at a time.
_SLOTS = 4
#: Seconds that a rank waits for the others to begin, and for the slowest of them. It reads alone
#: afterwards.
_BEGINNING = 5.0
_PATIENCE = 30.0
#: Pause between looks, in seconds.
_LOOK_AGAIN = 0.001
#: Bytes before the chunks: a number for each slot, then for each rank.
_HEADER_BYTES = 1 << 16
_NUMBER_BYTES = 8
_MEMBERS_MAX = _HEADER_BYTES // _NUMBER_BYTES - _SLOTS
#: A rank that needs no other chunk.
_END = (1 << 63) - 1

#: An entry of the checkpoint, and the number of a chunk in it.
Chunk = tuple[str, int]
#: Reads bytes of an entry, from an offset on, into memory.
Load = Callable[[str, int, memoryview], None]


@dataclass(frozen=True)
class Offer:
    """Memory that a rank offers to the others.

    Attributes:
        place: What the ranks that can open it have in common, and the checkpoint that they read.
        pid: The process, and the number of the file in it.
        name: Name of the memory, which no other has.
    """

    place: tuple[str, ...]
    pid: int
    fd: int
    name: str


@dataclass(frozen=True)
class Sharing:
    """What a rank is told: the memory to use, its number among those that use it, and the chunks."""

    offer: Offer
    member: int
    members: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Wanted:
    """Bytes of an entry that a rank needs."""

    entry: str
    begin: int
    nbytes: int


class OfferedMemory:
    """Memory that this rank offers, empty at first. It exists as long as a rank has it open."""

    def __init__(self, checkpoint: Iterable[str]) -> None:
        """Raises `OSError` where there is no such memory."""
        name = f"feedrail-{secrets.token_hex(16)}"
        self._file = os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "r+b", buffering=0)
        with open("/proc/sys/kernel/random/boot_id") as boot:
            machine = boot.read().strip()
        place = (machine, os.readlink("/proc/self/ns/pid"), str(os.getuid()), *checkpoint)
        self.offer = Offer(place, os.getpid(), self._file.fileno(), name)

    def close(self) -> None:
        self._file.close()


def plan_sharing(
    offers: Sequence[Offer | None],
    wanted: Sequence[Sequence[Wanted]],
    lengths: Mapping[str, int],
) -> list[Sharing | None]:
    """Decides for all ranks, by what each needs, which chunks the ranks of a machine share.

    They share those that would be read 1.25 times otherwise: where one rank's rows end and another's
    begin, each reads its part.

    Args:
        offers: That of each rank.
        wanted: What each rank needs.
        lengths: Bytes of each entry.
    """
    machines: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, offer in enumerate(offers):
        if offer is not None:
            machines[offer.place].append(rank)
    sharing: list[Sharing | None] = [None] * len(offers)
    for ranks in machines.values():
        chunks = _repeated([wanted[rank] for rank in ranks], lengths)
        offer = offers[ranks[0]]
        if chunks and offer is not None and len(ranks) <= _MEMBERS_MAX:
            for member, rank in enumerate(ranks):
                sharing[rank] = Sharing(offer, member, len(ranks), chunks)
    return sharing


def _repeated(ranks: list[Sequence[Wanted]], lengths: Mapping[str, int]) -> tuple[Chunk, ...]:
    """Chunks that ranks need together more than once."""
    sums: dict[Chunk, int] = defaultdict(int)
    for wanted in ranks:
        own: dict[Chunk, int] = defaultdict(int)
        for one in wanted:
            for number, part in _split(one.begin, one.nbytes):
                own[one.entry, number] += part
        for chunk, nbytes in own.items():
            sums[chunk] += min(nbytes, _length(chunk, lengths))
    repeated = (chunk for chunk, nbytes in sums.items() if nbytes * 4 > _length(chunk, lengths) * 5)
    return tuple(sorted(repeated))


def _length(chunk: Chunk, lengths: Mapping[str, int]) -> int:
    entry, number = chunk
    return min(CHUNK_BYTES, lengths[entry] - number * CHUNK_BYTES)


def _split(begin: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Numbers of the chunks that bytes lie in, with how many lie there."""
    end = begin + nbytes
    while begin < end:
        number = begin // CHUNK_BYTES
        part = min(end, (number + 1) * CHUNK_BYTES) - begin
        yield number, part
        begin += part


class SharedChunks:
    """The chunks that this rank shares with others, which all come to them in the same order.

    A slot of the memory is locked while a rank reads a chunk into it. A rank that ends, however, loses
    its lock, so that the next reads the chunk; where a rank lags, others wait for it, at most
    30 seconds, and then read without sharing.
    """

    def __init__(self, sharing: Sharing, lengths: Mapping[str, int]) -> None:
        """Raises `OSError` where the memory cannot be opened."""
        self._members, self._lengths = sharing.members, lengths
        self._chunks = sharing.chunks
        self._fd = _open(sharing.offer)
        self._own = _NUMBER_BYTES * (_SLOTS + sharing.member)
        self._next = -1
        self._buffer = bytearray(CHUNK_BYTES)
        os.ftruncate(self._fd, _HEADER_BYTES + _SLOTS * CHUNK_BYTES)
        self._advance(0)
        self._wait(_BEGINNING, lambda: 0 not in self._progress())

    def close(self) -> None:
        """Lets the others read without this rank. Closing twice is no error."""
        if self._fd >= 0:
            self._advance(_END)
            os.close(self._fd)
            self._fd = -1

    def read(self, entry: str, begin: int, into: memoryview, load: Load) -> None:
        """Reads bytes of an entry, those of shared chunks from the memory.

        Args:
            entry: Name of the entry.
            begin: First byte in the entry.
            into: Memory for the bytes.
            load: Reads what no other rank has read.
        """
        at = alone = 0
        for number, nbytes in _split(begin, len(into)):
            part = into[at : at + nbytes]
            if self._copy((entry, number), begin + at - number * CHUNK_BYTES, part, load):
                if alone < at:
                    load(entry, begin + alone, into[alone:at])
                alone = at + nbytes
            at += nbytes
        if alone < at:
            load(entry, begin + alone, into[alone:at])

    def _copy(self, chunk: Chunk, at: int, into: memoryview, load: Load) -> bool:
        """Copies bytes from `at` on of a chunk, if it is shared."""
        position = bisect_left(self._chunks, chunk)
        self._advance(position)
        is_shared = self._chunks[position : position + 1] == (chunk,)
        if self._fd < 0 or not is_shared or not self._take(position, at, into, load):
            return False
        if at + len(into) == _length(chunk, self._lengths):
            self._advance(position + 1)
        return True

    def _take(self, position: int, at: int, into: memoryview, load: Load) -> bool:
        """Copies bytes of a chunk, and loads it before if no other rank has."""
        slot = position % _SLOTS
        data = _HEADER_BYTES + slot * CHUNK_BYTES
        taken: bool | None = None

        def look() -> bool:
            nonlocal taken
            with self._locked(slot):
                held = self._number(slot * _NUMBER_BYTES) - 1
                if held == position:
                    _read(self._fd, into, data + at)
                    taken = True
                elif held > position:
                    taken = False
                elif held < self._first_needed():
                    chunk = self._load(position, load)
                    self._write(slot * _NUMBER_BYTES, 0)
                    # Where it has no room the others read for themselves.
                    with contextlib.suppress(OSError):
                        _write(self._fd, chunk, data)
                        self._write(slot * _NUMBER_BYTES, position + 1)
                    into[:] = chunk[at : at + len(into)]
                    taken = True
            return taken is not None

        if not self._wait(_PATIENCE, look):
            self.close()
        return bool(taken)

    def _load(self, position: int, load: Load) -> memoryview:
        entry, number = chunk = self._chunks[position]
        memory = memoryview(self._buffer)[: _length(chunk, self._lengths)]
        load(entry, number * CHUNK_BYTES, memory)
        return memory

    def _first_needed(self) -> int:
        """The first chunk that a rank still needs, of those that have begun."""
        return min(one for one in self._progress() if one > 0) - 1

    def _advance(self, position: int) -> None:
        """Notes that this rank needs no chunk before this one."""
        if position > self._next and self._fd >= 0:
            self._next = position
            self._write(self._own, min(position + 1, _END))

    def _progress(self) -> list[int]:
        """What each rank has noted, plus one; zero if it has not begun."""
        begin = _NUMBER_BYTES * _SLOTS
        data = os.pread(self._fd, self._members * _NUMBER_BYTES, begin)
        return [
            int.from_bytes(data[at : at + _NUMBER_BYTES], "little")
            for at in range(0, len(data), _NUMBER_BYTES)
        ]

    def _number(self, at: int) -> int:
        return int.from_bytes(os.pread(self._fd, _NUMBER_BYTES, at), "little")

    def _write(self, at: int, number: int) -> None:
        os.pwrite(self._fd, number.to_bytes(_NUMBER_BYTES, "little"), at)

    @contextlib.contextmanager
    def _locked(self, slot: int) -> Iterator[None]:
        """Locks a slot. The lock ends with the process too."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, slot)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)

    @staticmethod
    def _wait(seconds: float, condition: Callable[[], bool]) -> bool:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_AGAIN)
        return True


def _open(offer: Offer) -> int:
    """Opens the memory of an offer, and nothing else that has the number of its file by now."""
    wanted = f"/memfd:{offer.name} (deleted)"
    path = f"/proc/{offer.pid}/fd/{offer.fd}"
    if os.readlink(path) != wanted:
        raise FileNotFoundError(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.readlink(f"/proc/self/fd/{fd}") != wanted:
        os.close(fd)
        raise FileNotFoundError(path)
    return fd


def _read(fd: int, into: memoryview, at: int) -> None:
    while len(into) > 0:
        count = os.preadv(fd, [into], at)
        if count == 0:
            raise OSError("the shared memory has ended")
        into, at = into[count:], at + count


def _write(fd: int, data: memoryview, at: int) -> None:
    while len(data) > 0:
        count = os.pwrite(fd, data, at)
        data, at = data[count:], at + count
