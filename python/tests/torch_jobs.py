"""What tests of `feedrail.torch` run in other processes; `spawn` and `forkserver` import it."""

from __future__ import annotations

from typing import Any

import numpy as np

import feedrail
import feedrail.torch


def total(batch: feedrail.torch.Batch) -> tuple[int, ...]:
    """A transform, in place of decoding: a sum for each sample."""
    return tuple(int(sample.sum()) for sample in batch)


def is_cast(batch: feedrail.torch.TokenBatch) -> bool:
    """A transform: whether the tokens have been cast already."""
    return "_windows" in vars(batch)


class Reopened:
    """A data set that is opened in the process that first reads it."""

    def __init__(self, url: str, index: feedrail.index.Samples) -> None:
        self.url, self.index = url, index
        self._opened: feedrail.torch.RangeDataset | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitems__(self, indices: list[int]) -> Any:
        if self._opened is None:
            self._opened = feedrail.torch.RangeDataset(feedrail.open(self.url), self.index)
        return self._opened.__getitems__(indices)


def random_index(nbytes: int, count: int, seed: int = 0) -> feedrail.index.Index:
    """Ranges of lengths from 0 to 9,000, anywhere."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 9000, count)
    return feedrail.index.Index.of(random.integers(0, nbytes - lengths), lengths)
