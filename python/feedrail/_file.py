"""A shard as a file."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from feedrail._dtypes import make_plan

if TYPE_CHECKING:
    from typing import NoReturn

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from feedrail._source import Source
    from feedrail._typing import Progress

#: Bytes of the longest range that an entry of a plan has here.
_ENTRY_BYTES = 1 << 30


class File(io.RawIOBase):
    """A shard as a file that is read, and never written. Made by `Source.open`.

    Each call is a request to the target: wrap it in `io.BufferedReader` for small reads. Threads
    may share it for `pread`, which has no position.
    """

    def __init__(self, source: Source, shard: int) -> None:
        super().__init__()
        self._source, self._shard = source, shard
        self._position = 0

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self._source.shards[self._shard].name

    @property
    def mode(self) -> str:
        """Always `"rb"`."""
        return "rb"

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

    def write(self, data: Buffer, /) -> NoReturn:
        """Always fails: shards are read."""
        raise io.UnsupportedOperation("not writable")

    def tell(self) -> int:
        """The position of the next read."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets the position of the next read, which may be beyond the end.

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
            self._source.read_many(self._plan(offset, count), buffer, progress=progress)
        return count

    def _plan(self, offset: int, count: int) -> NDArray[np.void]:
        starts = range(0, count, _ENTRY_BYTES)
        lengths = [min(_ENTRY_BYTES, count - start) for start in starts]
        return make_plan([offset + start for start in starts], lengths, shard=self._shard)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
