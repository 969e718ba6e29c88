"""MosaicML's streaming over `nvmf:` URLs.

    import feedrail.streaming
    feedrail.streaming.register()
    dataset = streaming.StreamingDataset(remote="nvmf://192.0.2.10/<nqn>", local="/tmp/cache")

`register` runs once in each process that downloads: with `spawn` or `forkserver` a worker imports
the module of its data set, which is where the call belongs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from streaming.base.storage import download

from feedrail._errors import NotFound
from feedrail._open import open as open_source
from feedrail._url import SCHEME, NvmfUrl

if TYPE_CHECKING:
    from feedrail._source import Source

#: Bytes that are read at a time.
_PIECE_BYTES = 16 << 20


class NvmfDownloader(download.CloudDownloader):  # type: ignore[misc]
    """Copies shards of one subsystem into streaming's cache, over one connection.

    A folder of the remote path is what the names of shards begin with, up to a slash.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opened: tuple[str, Source] | None = None

    @staticmethod
    def _client_identifier() -> str:
        return SCHEME

    def clean_up(self) -> None:
        """Ends the connection."""
        self._opened = None

    def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
        url = NvmfUrl.parse(remote)
        if url.name is None:
            raise NotFound(f"{remote}: the URL names no shard")
        source = self._source(url.of_subsystem())
        partial = f"{local}.tmp"
        with source.open(url.name) as shard, open(partial, "wb") as copy:
            data = bytearray(min(shard.size, _PIECE_BYTES))
            while count := shard.readinto(data):
                copy.write(memoryview(data)[:count])
        # A process that waits for the shard sees all of it or nothing.
        os.replace(partial, local)

    def _source(self, url: NvmfUrl) -> Source:
        subsystem = str(url)
        if self._opened is None or self._opened[0] != subsystem:
            self._opened = subsystem, open_source(subsystem)
        return self._opened[1]


def register() -> None:
    """Makes `StreamingDataset(remote="nvmf://...")` download from targets."""
    # The table is made when streaming is imported, from the subclasses that exist then.
    mappings: dict[str, Any] = download.DOWNLOADER_MAPPINGS
    mappings[SCHEME] = NvmfDownloader
