"""Reading batches ahead."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from feedrail import _core
from feedrail._errors import PoolFull
from feedrail.torch._dataset import planned_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from feedrail._ticket import Ticket
    from feedrail.torch._dataset import RangeDataset


@dataclass(eq=False)
class Reading:
    """A batch under way. What it ended with is set under the lock of its queue.

    Attributes:
        numbers: Numbers of its samples, shape `(samples,)`.
        end: Position after its last sample in the epoch.
    """

    numbers: NDArray[np.int64]
    end: int
    plan: NDArray[np.void]
    data: torch.Tensor
    ticket: Ticket
    is_over: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it reads."""
        return planned_bytes(self.plan)


@dataclass(eq=False)
class _Queue:
    """What the threads share: they hold this, and never the prefetcher."""

    dataset: RangeDataset
    state_of: Callable[[int], dict[str, Any]]
    changed: threading.Condition = field(default_factory=threading.Condition)
    begun: deque[Reading] = field(default_factory=deque)
    waiting: deque[Reading] = field(default_factory=deque)
    is_closed: bool = False
    pid: int = field(default_factory=os.getpid)

    def work(self) -> None:
        """Finishes readings, one after the other, until the queue is closed."""
        while (reading := self._next()) is not None:
            result, error = None, None
            try:
                result = self._finish(reading)
            except BaseException as raised:  # the consumer raises it
                error = raised
            with self.changed:
                reading.result, reading.error, reading.is_over = result, error, True
                self.changed.notify_all()
            del reading, result, error

    def _next(self) -> Reading | None:
        with self.changed:
            while not self.waiting and not self.is_closed:
                self.changed.wait()
            return None if self.is_closed else self.waiting.popleft()

    def _finish(self, reading: Reading) -> Any:
        reading.ticket.wait()
        batch = self.dataset.batch(reading.numbers, reading.plan, reading.data)
        batch.state = self.state_of(reading.end)
        batch.prepare()
        return self.dataset.finished(batch)

    def close(self) -> None:
        """Cancels what is under way, which ends the threads.

        In a forked child there are none, and the lock may be held forever.
        """
        if os.getpid() == self.pid:
            with self.changed:
                self.is_closed = True
                self.waiting.clear()
                begun = list(self.begun)
                self.changed.notify_all()
            for reading in begun:
                reading.ticket.cancel()


class _Threads:
    """The threads of this process that finish readings. All end before the interpreter does.

    The interpreter ends a daemon thread at its next step in Python. Within a call of torch that
    unwinds through C++ and aborts the process, so they are not daemons: `threading` joins them,
    after it has called `end`, however the program ends.
    """

    def __init__(self) -> None:
        self._queues: weakref.WeakSet[_Queue] = weakref.WeakSet()
        self._has_ended = False
        # `atexit` is too late: its functions run after threads are joined.
        threading._register_atexit(self.end)  # type: ignore[attr-defined]

    def start(self, queue: _Queue, count: int) -> list[threading.Thread]:
        """Starts threads, which end when the queue is closed.

        Raises:
            RuntimeError: the interpreter is ending.
        """
        if self._has_ended:
            raise RuntimeError("batches cannot be read ahead: the interpreter is ending")
        self._queues.add(queue)
        threads = [
            threading.Thread(target=queue.work, name="feedrail-loader", daemon=False)
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        return threads

    def end(self) -> None:
        """Closes the queues of all threads."""
        self._has_ended = True
        for queue in list(self._queues):
            queue.close()


_THREADS = _Threads()


class Prefetcher:
    """Batches in order, read ahead as far as a number of bytes allows.

    Each time that the consumer has to wait, one batch more is read ahead from then on, so that the
    first batch does not wait behind many.

    Batches are begun by the thread that takes them, and finished (waited for, cast, transformed) by
    threads of its own, which end with `close` or when the prefetcher is dropped.

    Args:
        dataset: What to read of.
        batches: The numbers of the samples of each batch, and the position after it.
        state_of: The state of a loader after the batch that ends at a position.
        prefetch_bytes: Bytes of batches that are begun and not taken. One may always be.
        threads: Number of threads.
    """

    def __init__(
        self,
        dataset: RangeDataset,
        batches: Iterator[tuple[NDArray[np.int64], int]],
        state_of: Callable[[int], dict[str, Any]],
        prefetch_bytes: int,
        threads: int = 1,
    ) -> None:
        self._batches: Iterator[tuple[NDArray[np.int64], int]] | None = batches
        self._prefetch_bytes = prefetch_bytes
        self._pool: _core.Pool | None = None
        self._queue = _Queue(dataset, state_of)
        self._begun = self._queue.begun
        self._begun_bytes = 0
        # Whether the consumer waited for the last batch: then one more is read ahead.
        self._is_late = True
        weakref.finalize(self, self._queue.close).atexit = False
        self._threads = _THREADS.start(self._queue, threads)

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made here, and not before a fork."""
        return self._queue.pid == os.getpid()

    def next(self) -> tuple[Any, int] | None:
        """The next batch, and the position after it; `None` after the last.

        Raises:
            BatchError: ranges of it failed. Or what a transform raises.
        """
        self._begin()
        if not self._begun:
            return None
        reading = self._begun[0]
        with self._queue.changed:
            self._is_late = not reading.is_over
            while not reading.is_over:
                self._queue.changed.wait()
        self._begun.popleft()
        self._begun_bytes -= reading.nbytes
        if reading.error is not None:
            raise reading.error
        return reading.result, reading.end

    def _begin(self) -> None:
        """Begins to read a batch, and one more where the consumer had to wait."""
        for _ in range(1 + self._is_late):
            if self._batches is None or (
                self._begun and self._begun_bytes >= self._prefetch_bytes
            ):
                return
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None
                return
            self._submit(*batch)

    def _submit(self, numbers: NDArray[np.int64], end: int) -> None:
        dataset = self._queue.dataset
        plan = dataset.plan(numbers)
        memory = self._memory(planned_bytes(plan))
        ticket = dataset.source.submit(plan, memory, crc32c=dataset.checksums(numbers))
        data = from_dlpack(memory) if memory.nbytes else torch.empty(0, dtype=torch.uint8)
        reading = Reading(numbers, end, plan, data, ticket)
        self._begun.append(reading)
        self._begun_bytes += reading.nbytes
        with self._queue.changed:
            self._queue.waiting.append(reading)
            self._queue.changed.notify_all()

    def _memory(self, nbytes: int) -> _core.Buffer:
        """Memory of the pool, or other memory where the consumer keeps what the pool has."""
        if nbytes == 0:
            return _core.Buffer.allocate(0)
        if self._pool is None:
            # Batches that are read ahead, the one that the consumer works with, and one between.
            self._pool = _core.Pool(min(self._prefetch_bytes, 64 * nbytes) + 2 * nbytes)
        try:
            return self._pool.take(nbytes)
        except (PoolFull, ValueError):
            return _core.Buffer.allocate(nbytes)

    def close(self) -> None:
        """Cancels what is under way, and waits for the threads to end."""
        self._batches, self._pool = None, None
        self._queue.close()
        if self.is_of_this_process:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
        self._begun.clear()
        self._begun_bytes = 0
