"""Shards and checkpoints as files of fsspec's, for pyarrow, Ray, pandas, Lightning and others.

    fsspec.filesystem("nvmf").cat_file("nvmf://192.0.2.10/nqn.2026-01.org.example:shards/a.bin")

Paths are `nvmf://host[:port]/<nqn>/<name>`. A subsystem is a directory, and so are the parts of
names before a slash. Names are percent-encoded as in `feedrail.open`. A namespace that is a
checkpoint volume is a directory of checkpoints, whose entries are files:
`nvmf://host/<nqn>/<volume>/<checkpoint>/<entry>`. Only these are written.
"""

from __future__ import annotations

from feedrail.fsspec._read import EntryFile, NvmfFile
from feedrail.fsspec._system import NvmfFileSystem
from feedrail.fsspec._write import EntryWriter

__all__ = ["EntryFile", "EntryWriter", "NvmfFile", "NvmfFileSystem"]
