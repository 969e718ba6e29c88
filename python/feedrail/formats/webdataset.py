"""WebDataset over `nvmf:` URLs."""

from __future__ import annotations

import io
from typing import Any

from feedrail._source import open as open_source


def register() -> None:
    """Makes `webdataset.WebDataset("nvmf://...")` read shards of targets.

    Raises:
        ImportError: webdataset is not installed.
    """
    from webdataset.gopen import gopen_schemes

    gopen_schemes["nvmf"] = open_url


def open_url(url: str, mode: str = "rb", bufsize: int = 1 << 20, **_: Any) -> io.BufferedReader:
    """A shard as a file, read `bufsize` bytes at a time.

    Raises:
        ValueError: the mode is not `"rb"`.
        FileNotFoundError: there is no such shard.
    """
    if mode not in ("r", "rb"):
        raise ValueError(f"mode {mode!r}: shards are read, in mode 'rb'")
    return io.BufferedReader(open_source(url).open(0), max(bufsize, 1 << 20))
