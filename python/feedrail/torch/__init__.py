"""Data sets, orders and loaders for torch.

    import feedrail
    import feedrail.torch as ft
    source = feedrail.open("nvmf://192.0.2.10/nqn.2026-01.org.example:shards/train.bin")
    loader = ft.Loader(ft.TokenDataset(source, 1024), batch_size=12)
    for batch in loader:
        loss = model(batch.x, batch.y)

A batch is one call that fills one tensor: no Python code runs for each sample. Worker processes are
not needed for that (`num_workers=0`); they help where samples are decoded in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedrail.torch._batch import Batch, TokenBatch, collate
from feedrail.torch._dataset import RangeDataset, TokenDataset
from feedrail.torch._loader import Loader
from feedrail.torch._order import Order
from feedrail.torch._stream import StreamDataset

if TYPE_CHECKING:
    from feedrail.torch._checkpoint import CheckpointWriter
    from feedrail.torch._checkpoint_reader import CheckpointReader

__all__ = [
    "Batch",
    "CheckpointReader",
    "CheckpointWriter",
    "Loader",
    "Order",
    "RangeDataset",
    "StreamDataset",
    "TokenBatch",
    "TokenDataset",
    "collate",
]


def __getattr__(name: str) -> Any:
    """What imports `torch.distributed.checkpoint`, which takes seconds, is imported when it is used."""
    if name not in ("CheckpointReader", "CheckpointWriter"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from feedrail.torch import _checkpoint_reader

    return getattr(_checkpoint_reader, name)
