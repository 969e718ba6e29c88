"""A shard as a file."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from feedrail._dtypes import plan_of_range

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from feedrail._source import Source
    from feedrail._typing import Progress, Writable


class File(io.RawIOBase):
    """A shard as a file that is read, and written in mode `"r+b"`. Made by `Source.open`.

    Each call is a request to the target: wrap it in `io.BufferedReader` or `io.BufferedRandom` for
    small ones. Threads may share it for `pread` and `pwrite`, which have no position. Its size stays
    as it is.
    """

    def __init__(self, source: Source, shard: int, *, writable: bool = False) -> None:
        super().__init__()
        self._source, self._shard, self._writable = source, shard, writable
        self._position = 0
        self._is_unflushed = False

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self._source.shards[self._shard].name

    @property
    def mode(self) -> str:
        """`"rb"`, or `"rb+"` of a file that can be written."""
        return "rb+" if self._writable else "rb"

    @property
    def size(self) -> int:
        """Number of bytes of the shard."""
        return self._source.shards[self._shard].nbytes

    def readable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always true."""
        return True

    def writable(self) -> bool:
        """Whether it was opened in mode `"r+b"`."""
        return self._writable

    def write(self, data: Buffer, /) -> int:
        """Writes at the position, and returns the number of bytes: all of them.

        Raises:
            io.UnsupportedOperation: it was not opened in mode `"r+b"`.
            FeedrailError: as `Source.pwrite`.
        """
        count = self.pwrite(data, self._position)
        self._position += count
        return count

    def pwrite(
        self,
        data: Writable,
        offset: int,
        *,
        durable: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Writes all bytes of `data` at `offset`, and returns their number; leaves the position.

        `durable` and `progress` are as for `Source.pwrite`.
        """
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation('not writable: open the shard in mode "r+b"')
        self._is_unflushed |= not durable
        return self._source.pwrite(
            data, offset, shard=self._shard, durable=durable, progress=progress
        )

    def flush(self) -> None:
        """Makes durable what was written through this file, as `close` does.

        Raises:
            FeedrailError: as `Source.flush`.
        """
        self._check_open()
        if self._is_unflushed:
            self._source.flush(self._shard)
            self._is_unflushed = False

    def tell(self) -> int:
        """The position of the next read or write."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets the position of the next read or write, which may be beyond the end.

        Raises:
            ValueError: the position would be negative, or `whence` is not known.
        """
        self._check_open()
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}
        if whence not in origins:
            raise ValueError(f"whence {whence} is not 0, 1 or 2")
        position = origins[whence] + offset
        if position < 0:
            raise ValueError(f"position {position} is negative")
        self._position = position
        return position

    def readinto(self, buffer: Buffer, /) -> int:
        """Reads into a buffer in place; returns the number of bytes, 0 at the end.

        Raises:
            FeedrailError: the target is lost, the shard changed, or the time has passed.
        """
        self._check_open()
        count = self.pread_into(buffer, self._position)
        self._position += count
        return count

    def pread(self, n: int, offset: int, *, progress: Progress | None = None) -> bytes:
        """Reads `n` bytes at `offset`, fewer at the end; leaves the position as it is.

        `progress` is as for `Source.read_many`.
        """
        self._check_open()
        data = bytearray(max(0, min(n, self.size - offset)))
        self.pread_into(data, offset, progress=progress)
        return bytes(data)

    def pread_into(
        self, buffer: Buffer, offset: int, *, progress: Progress | None = None
    ) -> int:
        """Reads into a buffer at `offset`, less at the end; leaves the position as it is.

        `progress` is as for `Source.read_many`.
        """
        self._check_open()
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        count = max(0, min(memoryview(buffer).nbytes, self.size - offset))
        if count:
            plan = plan_of_range(self._shard, offset, count)
            self._source.read_many(plan, buffer, progress=progress)
        return count

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
