"""Memory of batches: lent, used again, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from feedrail import _core
from feedrail._errors import PoolFull
from feedrail.formats import Decoded
from feedrail.torch._batch import Batch

#: Batches that a pool has memory for, at most.
_LENT_AT_MOST = 64


class Lender:
    """Memory for batches, used again when the last user of a batch has dropped it.

    New memory costs a page fault for each page, which takes longer than to fill the page.
    """

    def __init__(self) -> None:
        self._pool: _core.Pool | None = None

    def take(self, nbytes: int, ahead: int) -> _core.Buffer:
        """Memory of the pool, or new memory where the consumer keeps what the pool has.

        Args:
            nbytes: Length of the buffer.
            ahead: Number of batches that are read ahead.
        """
        if nbytes == 0:
            return _core.Buffer.allocate(0)
        if self._pool is None:
            # The consumer has one more, keeps another for a moment, and a third may be begun.
            self._pool = _core.Pool((min(ahead, _LENT_AT_MOST) + 3) * -(-nbytes // 4096) * 4096)
        try:
            return self._pool.take(nbytes)
        except PoolFull:
            return _core.Buffer.allocate(nbytes)


def tensor_in(memory: _core.Buffer) -> torch.Tensor:
    """The bytes of a buffer, `uint8`, shape `(bytes,)`."""
    return from_dlpack(memory) if memory.nbytes else torch.empty(0, dtype=torch.uint8)


def held_bytes(value: Any) -> int:
    """Bytes of the tensors, arrays, texts and bytes of a batch, each memory once.

    They are looked for in batches, sequences and dictionaries. Other objects count nothing.
    """
    held: dict[int, int] = {}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (bytes, bytearray, str)):
            held[id(item)] = len(item)
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        elif isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, (np.ndarray, memoryview)):
            held[id(item)] = item.nbytes
        elif isinstance(item, (Batch, Decoded)):
            waiting += vars(item).values()
    return sum(held.values())
