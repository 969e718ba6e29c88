"""Ranges of shards and of entries, of one call of `cat_ranges`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import feedrail
from feedrail._checkpoint_errors import Damaged
from feedrail._dtypes import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from feedrail.fsspec._tree import Place, Tree
    from feedrail.fsspec._volume import Entry, Volume

#: Bytes of the longest range that an entry of a plan has here.
_ENTRY_BYTES = 1 << 30
#: Bytes between ranges of an entry that are read together, bytes of these, and how many of such
#: pieces are read side by side.
_GAP, _PIECE_BYTES, _PIECES = 1 << 20, 16 << 20, 8


@dataclass
class Batch:
    """The ranges of one call that are in one subsystem."""

    tree: Tree
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


@dataclass(frozen=True)
class ShardAt:
    """A shard that a path names."""

    tree: Tree
    place: Place


@dataclass(frozen=True)
class EntryAt:
    """A file of a checkpoint that a path names."""

    volume: Volume
    entry: Entry


@dataclass
class Piece:
    """Ranges of an entry that are read together, since they have units in common or nearly so."""

    at: EntryAt
    start: int
    end: int
    #: Number of each range in the call, and what it is of the entry.
    ranges: list[tuple[int, slice]]

    def takes(self, at: EntryAt, start: int, end: int) -> bool:
        """Whether a range that begins behind the others can be read with them."""
        is_near = start <= self.end + _GAP and max(end, self.end) - self.start <= _PIECE_BYTES
        return at.entry == self.at.entry and is_near

    def add(self, number: int, part: slice, end: int) -> None:
        """Adds a range."""
        self.ranges.append((number, part))
        self.end = max(end, self.end)

    def read(self) -> list[tuple[int, bytes | Exception]]:
        """The bytes of each range, or the error instead."""
        entry = self.at.entry
        try:
            return self._cut(entry)
        except Damaged as error:
            # The file may have been replaced by another process.
            try:
                entry = self.at.volume.read_again(entry, error)
                return [
                    (number, _read_alone(entry, part)) for number, part in self.ranges
                ]
            except OSError as failed:
                return [(number, failed) for number, _ in self.ranges]
        except OSError as error:
            return [(number, error) for number, _ in self.ranges]

    def _cut(self, entry: Entry) -> list[tuple[int, bytes | Exception]]:
        with memoryview(entry.read(self.start, self.end - self.start)) as data:
            found: list[tuple[int, bytes | Exception]] = []
            for number, part in self.ranges:
                first, last, _ = part.indices(entry.size)
                found.append((number, bytes(data[first - self.start : last - self.start])))
            return found


def _read_alone(entry: Entry, part: slice) -> bytes:
    first, last, _ = part.indices(entry.size)
    return bytes(entry.read(first, last - first)) if first < last else b""


class Ranges:
    """The ranges of one call of `cat_ranges`, and what became of them."""

    def __init__(
        self,
        found: Sequence[ShardAt | EntryAt | BaseException],
        starts: Sequence[int | None],
        ends: Sequence[int | None],
    ) -> None:
        self._results: list[bytearray | bytes | Exception] = [bytearray() for _ in found]
        self._batches: dict[int, Batch] = {}
        self._entries: list[tuple[EntryAt, int, int, int, slice]] = []
        for number, (at, start, end) in enumerate(zip(found, starts, ends, strict=True)):
            try:
                self._add(number, at, slice(start, end))
            except OSError as error:
                self._results[number] = error

    def _add(self, number: int, at: ShardAt | EntryAt | BaseException, part: slice) -> None:
        if isinstance(at, BaseException):
            raise at
        if isinstance(at, EntryAt):
            first, last, _ = part.indices(at.entry.size)
            if first < last:
                self._entries.append((at, first, last, number, part))
            return
        shard = at.tree.number(at.place)
        first, last, _ = part.indices(at.tree.source.shards[shard].nbytes)
        batch = self._batches.setdefault(id(at.tree), Batch(at.tree))
        batch.add(number, shard, first, last)

    async def read(self) -> None:
        """Reads all of them."""
        for batch in self._batches.values():
            batch.seal()
            ticket = batch.tree.source.submit(batch.plan, batch.buffer)
            await ticket.over()
            self._collect(batch, ticket)
        loop, at_once = asyncio.get_running_loop(), asyncio.Semaphore(_PIECES)

        async def read(piece: Piece) -> None:
            async with at_once:
                for number, result in await loop.run_in_executor(None, piece.read):
                    self._results[number] = result

        await asyncio.gather(*(read(piece) for piece in self._pieces()))

    def _pieces(self) -> Iterator[Piece]:
        def in_order(one: tuple[EntryAt, int, int, int, slice]) -> tuple[Any, ...]:
            return id(one[0].entry.checkpoint), one[0].entry.name, one[1]

        piece: Piece | None = None
        for at, first, last, number, part in sorted(self._entries, key=in_order):
            if piece is not None and piece.takes(at, first, last):
                piece.add(number, part, last)
                continue
            if piece is not None:
                yield piece
            piece = Piece(at, first, last, [(number, part)])
        if piece is not None:
            yield piece

    def _collect(self, batch: Batch, ticket: feedrail.Ticket) -> None:
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
        """The bytes of each range, or the error instead."""
        errors = [result for result in self._results if isinstance(result, Exception)]
        if errors and on_error == "raise":
            raise errors[0]
        return [r if isinstance(r, bytes | Exception) else bytes(r) for r in self._results]
