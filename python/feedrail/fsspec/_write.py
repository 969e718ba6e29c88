"""Files of checkpoints that are written."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from fsspec.spec import AbstractBufferedFile

if TYPE_CHECKING:
    from types import FrameType

    from feedrail.fsspec._system import NvmfFileSystem
    from feedrail.fsspec._volume import Volume

#: Callers that are looked at for the end of a `with` block.
_CALLERS = 12


class EntryWriter(AbstractBufferedFile):  # type: ignore[misc]
    """A file of a checkpoint that is written. Made by `NvmfFileSystem.open`.

    `close` has it appear, whole and durable. If it is dropped, or the `with` block that would close
    it is left by an exception, nothing appears.
    """

    def __init__(
        self, fs: NvmfFileSystem, path: str, mode: str, *, volume: Volume, name: str, **options: Any
    ) -> None:
        # The class of fsspec's has no mode "xb" in each version.
        super().__init__(fs, path, "wb", **options)
        self.mode, self.closed, self.buffer = mode, False, io.BytesIO()
        self._pending = volume.begin(name, is_new=mode == "xb")

    def writable(self) -> bool:
        """Whether it is open."""
        return not self.closed

    def write(self, data: Any) -> int:
        """Adds bytes, and returns their number. They may be changed when this returns."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        count = memoryview(data).nbytes
        if self.buffer.tell() + count < self.blocksize:
            self.buffer.write(data)
        elif count:
            self._send()
            self._pending.append(np.frombuffer(data, np.uint8))
        self.loc += count
        return count

    def flush(self, force: bool = False) -> None:
        """Does nothing: bytes are durable when the file is closed."""
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def close(self) -> None:
        """Has the file appear, or, in a transaction, be ready for it. Closing twice is no error."""
        if self.closed:
            return
        if _is_left_by_exception():
            self.discard()
            return
        try:
            self._send()
            if self.autocommit:
                self._pending.commit()
        except BaseException:
            self.discard()
            raise
        self.closed = True

    def commit(self) -> None:
        """Has the file appear at the end of a transaction, unless it was discarded."""
        if not self.closed:
            self._send()
            self.closed = True
        self._pending.commit()

    def discard(self) -> None:
        """Ends it, and nothing appears. It is no error if it has ended."""
        self.closed = True
        self._pending.abort()

    def _send(self) -> None:
        if self.buffer.tell():
            self._pending.append(self.buffer.getbuffer())
            self.buffer = io.BytesIO()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if not self.closed and hasattr(self, "_pending"):
            self.discard()
            if sys.is_finalizing():
                return
            warnings.warn(
                f"{self.path} was not closed, and does not appear", ResourceWarning, stacklevel=2
            )

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class EntryText(io.TextIOWrapper):
    """A file of a checkpoint that is written as text, and discarded as `EntryWriter` is."""

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # It has no `closed` if it could not be made.
        with contextlib.suppress(ValueError):
            if not self.closed:
                self.discard()

    def discard(self) -> None:
        """Ends it, and nothing appears."""
        self.buffer.discard()  # type: ignore[attr-defined]


def _is_left_by_exception() -> bool:
    """Whether the caller is called by an `__exit__` that got the exception which is handled now.

    Context managers such as `fsspec.open` call `close` alone.
    """
    error = sys.exc_info()[1]
    if error is None:
        return False
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_CALLERS):
        if frame is None:
            return False
        if frame.f_code.co_name in ("__exit__", "__aexit__") and _has(frame, error):
            return True
        frame = frame.f_back
    return False


def _has(frame: FrameType, error: BaseException) -> bool:
    for value in frame.f_locals.values():
        values = value if isinstance(value, tuple) else (value,)
        if any(each is error for each in values):
            return True
    return False
