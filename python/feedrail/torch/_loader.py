"""Loaders that read ahead, and can be stopped and resumed anywhere."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from feedrail import _core
from feedrail.torch._order import Order
from feedrail.torch._prefetch import Prefetcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Self

    from feedrail.torch._dataset import RangeDataset


#: What is handed out: a batch, or what the transform of the data set makes of it.
B = TypeVar("B")


class _Iterator:
    """In place of `torchdata.nodes.BaseNode`, where torchdata is not installed."""

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Does nothing."""


if TYPE_CHECKING:
    Node = _Iterator
else:
    try:
        from torchdata.nodes import BaseNode as Node
    except ImportError:
        Node = _Iterator


class BatchSequence:
    """The batches of one rank: which samples, and the state after each.

    Args:
        dataset: What is read.
        batch_size: Samples of a batch of this rank.
        order: Order and rank.
        drop_last: Whether samples that do not fill a batch of all ranks are left out.
    """

    def __init__(
        self, dataset: RangeDataset[Any, Any], batch_size: int, order: Order, *, drop_last: bool
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size} is less than 1")
        if order.n != len(dataset):
            raise ValueError(f"an order of {order.n} samples, for a data set of {len(dataset)}")
        self.order = order
        self.global_batch = batch_size * order.world_size
        self._follows_from = (
            dataset.fingerprint,
            order.n,
            order.kind,
            order.seed,
            self.global_batch,
            drop_last,
        )
        self._sequence = _core.Sequence(*self._follows_from)

    @property
    def epoch_samples(self) -> int:
        """Samples that all ranks read in an epoch."""
        return self._sequence.epoch_samples

    def batches(
        self, epoch: int, consumed: int, skip: int = 0, step: int = 1
    ) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Samples of this rank in batch after batch, and the position after each.

        The last batch may have none for this rank; then it is left out.

        Args:
            epoch: Number of the epoch.
            consumed: Samples that all ranks have read of it.
            skip: Batches to skip at first, which other workers make.
            step: Distance of two batches of this worker.
        """
        order = self.order.of_epoch(epoch)
        for begin, end in self._sequence.batches(consumed, skip, step):
            own = order.of_batch((begin, end), self.order.rank, self.order.world_size)
            if own:
                yield np.frombuffer(bytearray(own), np.int64), end

    def remaining(self, consumed: int) -> int:
        """Number of batches of all ranks after `consumed` samples."""
        first = consumed // self.global_batch
        return max(0, -(-self.epoch_samples // self.global_batch) - first)

    def state(self, epoch: int, consumed: int) -> dict[str, Any]:
        """A state for a checkpoint; JSON of less than 1 KiB."""
        state: dict[str, Any] = json.loads(self._sequence.state(epoch, consumed))
        return state

    def resume(self, state: dict[str, Any]) -> tuple[int, int]:
        """Epoch and consumed samples of a state, which at the end of an epoch are those of the next.

        Raises:
            ValueError: it is the state of another data set, order, seed or global batch.
        """
        epoch, consumed = self.place(state)
        return (epoch + 1, 0) if 0 < self.epoch_samples <= consumed else (epoch, consumed)

    def place(self, state: dict[str, Any]) -> tuple[int, int]:
        """Epoch and consumed samples of a state, within its epoch.

        Raises:
            ValueError: it is the state of another data set, order, seed or global batch.
        """
        return self._sequence.resume(json.dumps(state))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_sequence"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._sequence = _core.Sequence(*self._follows_from)


class Loader(Node, Generic[B]):
    """Batches of one rank, in order, read ahead in this process; an iterator.

    One epoch is iterated after the other: `StopIteration` ends an epoch, and the next iteration
    begins the next. Leaving a `for` loop leaves the loader where it is; `reset` begins the epoch
    again. It is a `torchdata.nodes.BaseNode` where torchdata is installed.

        loader = Loader(dataset, 12, sampler=Order(len(dataset), seed=7))
        loader.load_state_dict(checkpoint["loader"])
        while step < steps:
            for batch in loader:
                ...

    The state counts samples of all ranks: it can be loaded with another world size, and in a
    process with or without workers (`StreamDataset`), as long as the product of batch size and
    world size stays. The same sequence of samples follows.

    `dataset.source.stats().utilisation` is the share of the time in which the loop did not wait for a
    batch, from the second batch of each epoch on.

    Threads: one process may use it from one thread at a time.

    Args:
        dataset: What to read.
        batch_size: Samples of a batch of this rank.
        sampler: Order and rank; `Order(len(dataset))` if `None`.
        prefetch_bytes: Bytes of the batches that are read ahead of the one that is handed out, as
            they are handed out: cast, and made by the transform. One may always be. More than a
            processor caches slows a loop that does not compute.
        device: `"cpu"`: this build reads into host memory.
        drop_last: Whether the samples that do not fill a batch of all ranks are left out, so that
            ranks have as many batches. Else the last batch is shorter, and ranks for which it has
            no sample have one batch less.
        threads: Threads that wait for batches, cast tokens and run the transform of the data set.

    Raises:
        ValueError: the order is of another number of samples, or a number is out of its bounds.
        TypeError: the sampler is no `Order`: torch's `DataLoader` takes others.
    """

    def __init__(
        self,
        dataset: RangeDataset[B, Any],
        batch_size: int,
        *,
        sampler: Order | None = None,
        prefetch_bytes: int = 32 << 20,
        device: str = "cpu",
        drop_last: bool = False,
        threads: int = 1,
    ) -> None:
        super().__init__()
        if sampler is not None and not isinstance(sampler, Order):
            raise TypeError("a Loader takes a feedrail.torch.Order; DataLoader takes any sampler")
        if device != "cpu":
            raise ValueError(f"device {device!r}: this build of feedrail reads into host memory")
        if prefetch_bytes < 0 or threads < 1:
            raise ValueError(f"prefetch_bytes {prefetch_bytes}, threads {threads}")
        self.dataset = dataset
        order = Order(len(dataset)) if sampler is None else sampler
        self._sequence = BatchSequence(dataset, batch_size, order, drop_last=drop_last)
        self._prefetch_bytes, self._thread_count = prefetch_bytes, threads
        self._epoch, self._consumed = order.epoch, 0
        self._prefetcher: Prefetcher[B] | None = None
        self._has_ended = False
        #: When the last batch was handed out; `None` before the first one.
        self._handed_out: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch; stays where it is if that is the epoch already."""
        if epoch != self._epoch:
            self._go_to(epoch, 0)

    def next(self) -> B:
        """The next batch: a `Batch`, or what the transform of the data set makes of it.

        Raises:
            StopIteration: the epoch has ended.
            BatchError: ranges failed. The next call reads the same batch again.
        """
        if self._has_ended:
            raise StopIteration
        asked = time.perf_counter()
        try:
            found = self._running().next()
        except BaseException:
            self.close()
            raise
        self._count(asked)
        if found is None:
            self._go_to(self._epoch + 1, 0)
            self._has_ended = True
            raise StopIteration
        batch, self._consumed = found
        return batch

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes to the place of a state, or to the beginning of the epoch. `BaseNode` has it."""
        super().reset(initial_state)
        if initial_state is None:
            self._go_to(self._epoch, 0)
        else:
            self.load_state_dict(initial_state)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: after the batch that was handed out last. JSON of less than 1 KiB."""
        return self._sequence.state(self._epoch, self._consumed)

    def get_state(self) -> dict[str, Any]:
        """As `state_dict`; `BaseNode` has it."""
        return self.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the batch that was the last when `state` was taken.

        After the last batch of an epoch that is the beginning of the next one.

        Raises:
            ValueError: it is the state of another data set, order, seed or global batch.
        """
        self._go_to(*self._sequence.resume(state))

    def close(self) -> None:
        """Cancels what is read ahead and ends the threads. The next batch starts them again."""
        prefetcher, self._prefetcher = self._prefetcher, None
        self._handed_out = None
        if prefetcher is not None:
            prefetcher.close()

    def _count(self, asked: float) -> None:
        """Counts the time since the batch before, and that since the consumer asked for this one.

        The first batch of an epoch is not counted: nothing was computed before it.
        """
        now = time.perf_counter()
        if self._handed_out is not None:
            compute, stall = asked - self._handed_out, now - asked
            self.dataset.source.usage.add(compute=compute, stall=stall)
        self._handed_out = now

    def _go_to(self, epoch: int, consumed: int) -> None:
        self.close()
        self._epoch, self._consumed, self._has_ended = epoch, consumed, False

    def _running(self) -> Prefetcher[B]:
        running = self._prefetcher
        if running is None or not running.is_of_this_process:
            sequence, epoch = self._sequence, self._epoch
            running = Prefetcher(
                self.dataset,
                sequence.batches(epoch, self._consumed),
                lambda end: sequence.state(epoch, end),
                self._prefetch_bytes,
                self._thread_count,
            )
            self._prefetcher = running
        return running

    def __next__(self) -> B:
        return self.next()

    def __iter__(self) -> Self:
        self._has_ended = False
        return self

    def __len__(self) -> int:
        """Number of batches of an epoch of all ranks."""
        return self._sequence.remaining(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prefetcher": None, "_handed_out": None}
