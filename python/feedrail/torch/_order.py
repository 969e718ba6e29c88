"""Orders of samples."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Sampler

from feedrail import _core
from feedrail.torch._ranks import rank_and_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Samples that are computed in one call.
_CHUNK = 4096


class Order(Sampler[int]):
    """The samples of one rank in an epoch, for `DataLoader(sampler=...)` and `Loader`.

    Position `p` of an epoch is that of rank `p % world_size`, so the sequence of all ranks together
    does not depend on their number. Each epoch has another order: call `set_epoch`.

    | `order` | samples are read | memory |
    |---|---|---|
    | `"global"` | in a keyed permutation of all | some 100 bytes |
    | `"block"`, `"block:1024:64"` | 64 blocks of 1,024 samples at a time | the same |
    | `"torch"` | exactly as torch's `DistributedSampler` reads them | 4 bytes a sample |

    At the end of an epoch, `"torch"` repeats samples until all ranks have as many, as
    `DistributedSampler` does. The others have no sample twice: the first ranks have one more. With
    `drop_last` all ranks have as many, and the samples that are left over are not read.

    Args:
        n: Number of samples, or the data set.
        seed: What the order follows from, with the epoch; from 0 to 2**64 - 1.
        rank: Number of this process among those that read; as `torch.distributed` or torchrun's
            environment say, if `None`, else 0.
        world_size: Number of processes that read; found like `rank`, else 1.
        shuffle: Whether samples are permuted; else they are in the order of their numbers.
        drop_last: Whether samples that do not suffice for one of each rank are left out.
        order: One of the table.

    Raises:
        ValueError: there is no such order or rank.
    """

    def __init__(
        self,
        n: int | Sized,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        order: str = "global",
    ) -> None:
        self.n = len(n) if isinstance(n, Sized) else n
        self.seed, self.epoch = seed, 0
        self.rank, self.world_size = rank_and_world(rank, world_size)
        self.drop_last = drop_last
        self.order = "block:1024:64" if order == "block" else order
        self.shuffle = shuffle
        _core.Order(self.kind if self.order != "torch" else "global", self.n, seed, 0)

    @property
    def kind(self) -> str:
        """The order as states name it: `"sequential"` without `shuffle`."""
        return self.order if self.shuffle else "sequential"

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = self.of_epoch(self.epoch)
        for first in range(0, len(self), _CHUNK):
            chunk = order.of_rank(self._split, first, _CHUNK)
            yield from np.frombuffer(chunk, np.int64).tolist()

    def numbers(self, first: int = 0, count: int | None = None) -> NDArray[np.int64]:
        """Samples of this rank from its number `first` on, shape `(count,)`; all if `None`."""
        count = len(self) if count is None else count
        return np.frombuffer(
            self.of_epoch(self.epoch).of_rank(self._split, first, count), np.int64
        )

    def of_epoch(self, epoch: int) -> _core.Order:
        """The order of all samples in an epoch."""
        return _core.Order(self.kind, self.n, self.seed, epoch)

    @property
    def _split(self) -> tuple[int, int, str]:
        kept = "pad" if self.order == "torch" else "keep"
        return self.rank, self.world_size, "drop" if self.drop_last else kept

    def __len__(self) -> int:
        """Number of samples of this rank."""
        sizes = _core.Order("sequential", self.n, 0, 0)
        return sizes.rank_len(*self._split)

    def __repr__(self) -> str:
        return (
            f"<feedrail.torch.Order {self.kind}: rank {self.rank} of {self.world_size}, "
            f"{len(self)} of {self.n} samples, seed {self.seed}, epoch {self.epoch}>"
        )
