"""Streams of batches, for worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from feedrail.torch._loader import BatchSequence
from feedrail.torch._order import Order
from feedrail.torch._prefetch import Prefetcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedrail.torch._dataset import RangeDataset


#: What is handed out: a batch, or what the transform of the data set makes of it.
B = TypeVar("B")


class _Place(NamedTuple):
    """Where an iteration begins: after so many samples of all ranks.

    Attributes:
        consumed: Samples of the epoch.
        is_own: Whether the next batch is one of this worker; else that of worker 0.
    """

    consumed: int
    is_own: bool


_BEGINNING = _Place(0, False)


class StreamDataset(IterableDataset[B], Generic[B]):
    """Batches of one rank, in order, split among the workers of a `DataLoader`.

        stream = StreamDataset(dataset, 12, order=Order(len(dataset)))
        loader = DataLoader(stream, batch_size=None, num_workers=4)

    `DataLoader` hands out each `Batch`, `Decoded` and tensor as it is. Of what else a transform may
    return, torch makes tensors of arrays and lists of tuples and of bytes, unless it is given
    `collate_fn=feedrail.torch.collate`.

    The batches are those of a `Loader`, whatever the number of workers: worker `w` of `W` makes
    every `W`-th batch, and `DataLoader` takes them by turns. Each worker reads ahead in a thread of
    its own.

    To resume with the same number of workers use torchdata's `StatefulDataLoader`. To resume with
    another number of workers or ranks load the `state` of the last `Batch` (which a transform must
    keep) before the loader is made.

    An iteration without `set_epoch` before it repeats the epoch, as with torch's
    `DistributedSampler`: workers have copies of the stream, which do not tell it that they are at
    the end. After a state was loaded, `epoch` is the one to continue:

        for epoch in range(stream.epoch, epochs):
            stream.set_epoch(epoch)
            for batch in loader:
                ...

    Args:
        dataset: What to read.
        batch_size: Samples of a batch of this rank.
        order: Order and rank; `Order(len(dataset))` if `None`.
        drop_last: As for `Loader`.
        prefetch_bytes: As for `Loader`, in each worker.

    Raises:
        ValueError: the order is of another number of samples, or a number is out of its bounds.
    """

    def __init__(
        self,
        dataset: RangeDataset[B, Any],
        batch_size: int,
        *,
        order: Order | None = None,
        drop_last: bool = False,
        prefetch_bytes: int = 32 << 20,
    ) -> None:
        super().__init__()
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.order = Order(len(dataset)) if order is None else order
        self._prefetch_bytes = prefetch_bytes
        self._epoch = self._last_set = self.order.epoch
        #: The epoch of the last `set_epoch`, wherever it was called: workers may persist.
        self._shared_epoch = torch.tensor(self._epoch)
        self._shared_epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._begin = self._at = _BEGINNING
        self._sequence = BatchSequence(dataset, batch_size, self.order, drop_last=drop_last)

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch

    def __len__(self) -> int:
        """Number of batches of an epoch of all ranks, of all workers together."""
        return self._sequence.remaining(0)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch; stays where it is if that is the epoch already.

        Workers that persist begin it with the next iteration.
        """
        self._shared_epoch.fill_(epoch)
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        self._last_set = epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._begin = self._at = _BEGINNING

    def __iter__(self) -> Iterator[B]:
        """Batches of this worker from the loaded state, or the beginning, to the end of the epoch.

        Raises:
            BatchError: ranges failed. Or what a transform raises.
        """
        worker, workers = _worker()
        last_set = int(self._shared_epoch)
        if last_set != self._last_set:
            self._go_to(last_set)
        begin, self._begin = self._begin, _BEGINNING
        self._at = begin
        sequence, epoch = self._sequence, self._epoch
        skip = 0 if begin.is_own else worker
        batches = sequence.batches(epoch, begin.consumed, skip, workers)
        prefetcher = Prefetcher(
            self.dataset, batches, lambda end: sequence.state(epoch, end), self._prefetch_bytes
        )
        try:
            while (found := prefetcher.next()) is not None:
                batch, end = found
                between = (workers - 1) * sequence.global_batch
                # Where this worker continues; the other workers make what is between.
                self._at = _Place(min(end + between, sequence.epoch_samples), workers > 1)
                yield batch
        finally:
            prefetcher.close()

    def state_dict(self) -> dict[str, Any]:
        """Position at which this process or worker continues. JSON of less than 1 KiB.

        In a worker it can be loaded by the same worker of as many: `StatefulDataLoader` does that.
        """
        state = self._sequence.state(self._epoch, self._at.consumed)
        return {**state, "worker": [*_worker()]} if self._at.is_own else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state: that of a batch, of a `Loader`, or of this worker.

        After the last batch of an epoch that is the beginning of the next one: see `epoch`. The
        state of one of several workers stays in its epoch, in which others may have batches left.

        Raises:
            ValueError: it is the state of another data set, order, seed or global batch, or of
                another worker.
        """
        own = state.get("worker")
        if own is not None and tuple(own) != _worker():
            raise ValueError(
                f"the state of worker {own[0]} of {own[1]}: load the state of a batch instead"
            )
        described = {name: value for name, value in state.items() if name != "worker"}
        resume = self._sequence.resume if own is None else self._sequence.place
        self._epoch, consumed = resume(described)
        self._begin = self._at = _Place(consumed, own is not None)


def _worker() -> tuple[int, int]:
    """The number of this worker, and of how many."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
