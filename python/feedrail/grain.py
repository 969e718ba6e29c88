"""A data source for grain.

    import feedrail
    import feedrail.grain
    source = feedrail.grain.RangeDataSource(
        feedrail.open("nvmf://192.0.2.10/nqn.2026-01.org.example:shards"),
        feedrail.index.Index.load("index.npy"),
    )
    dataset = grain.MapDataset.source(source).shuffle(seed=1).map(decode)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedrail import _core
from feedrail.index import samples_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from feedrail._source import Source
    from feedrail.index import Samples


class RangeDataSource:
    """Samples that are ranges of bytes of shards, as a `grain.sources.RandomAccessDataSource`.

    It can be pickled, for grain's worker processes. Several samples that grain asks for in one
    call are read in one call.

    Args:
        source: Where the shards are.
        index: Where the samples are in the shards: `feedrail.index.Index`.

    Raises:
        DatasetChanged: the source has another shard than the index.
    """

    def __init__(self, source: Source, index: Samples) -> None:
        self._source, self._index = source, samples_in(source, index)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, record_key: SupportsIndex) -> bytes:
        """Sample `record_key`.

        Raises:
            IndexError: there is no such sample.
            FeedrailError: it could not be read.
        """
        return self._getitems([record_key])[0]

    def _getitems(self, record_keys: Sequence[SupportsIndex]) -> list[bytes]:
        """Samples in one read. grain calls it by this name."""
        numbers = np.array([int(key) for key in record_keys], np.int64)
        outside = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(outside):
            raise IndexError(f"sample {outside[0]} of {len(self)}")
        plan = self._index.plan(numbers)
        ends = np.cumsum(plan["length"], dtype=np.int64)
        buffer = _core.Buffer.allocate(int(ends[-1]) if len(ends) else 0)
        self._source.read_many(plan, buffer)
        with memoryview(buffer) as data:
            starts = ends - plan["length"]
            return [bytes(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]

    def __repr__(self) -> str:
        """A text that is equal for equal data: grain's checkpoints have it."""
        return f"RangeDataSource({len(self)} samples, {self._source.hash})"
