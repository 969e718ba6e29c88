"""Types of arguments, for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from typing_extensions import Buffer


class SupportsDlpack(Protocol):
    """A tensor that other libraries can use in place."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """A capsule with the tensor."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Type and number of its device."""
        ...


#: What can be read into.
Readable: TypeAlias = Buffer | SupportsDlpack

#: Memory that can be written from: as `Readable`, and read-only too.
Writable: TypeAlias = Buffer | SupportsDlpack

#: Called with the number of bytes that are done, and of all.
Progress: TypeAlias = Callable[[int, int], object]
