"""Ray Data over `nvmf:` URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.fs import PyFileSystem


def filesystem(**options: Any) -> PyFileSystem:
    """A file system for `ray.data.read_*(..., filesystem=filesystem())`.

    Each worker of Ray connects for itself.

    Args:
        options: As for `feedrail.fsspec.NvmfFileSystem`.

    Raises:
        ImportError: pyarrow or fsspec is not installed.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    from feedrail.fsspec import NvmfFileSystem

    return PyFileSystem(FSSpecHandler(NvmfFileSystem(**options)))
