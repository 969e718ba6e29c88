"""Reading batches ahead."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from torch.utils.data import get_worker_info

from feedrail.torch._dataset import planned_bytes
from feedrail.torch._memory import Lender, held_bytes, tensor_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from feedrail._ticket import Ticket
    from feedrail.torch._dataset import RangeDataset

#: What a data set makes of a batch.
B = TypeVar("B")
_ENDING = "batches cannot be read ahead: the interpreter is ending"


@dataclass(eq=False)
class _Request:
    """What is read for a batch, and the memory for it.

    Attributes:
        numbers: Numbers of its samples, shape `(samples,)`.
        data: What it reads into.
        prepared: Memory for what `Batch.prepare` makes; `None` if it is not called.
    """

    numbers: NDArray[np.int64]
    plan: NDArray[np.void]
    data: torch.Tensor
    prepared: torch.Tensor | None
    ticket: Ticket

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return self.data.nbytes + (0 if self.prepared is None else self.prepared.nbytes)


@dataclass(eq=False)
class Reading:
    """A batch that was begun. What it ended with is set under the lock of its queue.

    Attributes:
        request: What is read; `None` once the batch is finished.
        end: Position after its last sample in the epoch.
        nbytes: Bytes that it holds; before it is finished, those that it is expected to hold.
    """

    request: _Request | None
    end: int
    nbytes: int
    result: Any = None
    error: BaseException | None = None


@dataclass(eq=False)
class _Queue:
    """What the threads share: they hold this, and never the prefetcher."""

    dataset: RangeDataset[Any, Any]
    state_of: Callable[[int], dict[str, Any]]
    changed: threading.Condition = field(default_factory=threading.Condition)
    begun: deque[Reading] = field(default_factory=deque)
    waiting: deque[Reading] = field(default_factory=deque)
    #: Bytes of `begun`.
    nbytes: int = 0
    #: How many times the bytes of its request the last finished batch holds.
    growth: float = 1.0
    is_closed: bool = False
    pid: int = field(default_factory=os.getpid)

    def begin(self, request: _Request, end: int) -> None:
        """Has the threads finish a batch."""
        with self.changed:
            # Memory of the request is held until the batch is finished, whatever that makes of it.
            reading = Reading(request, end, int(request.nbytes * max(1.0, self.growth)))
            self.nbytes += reading.nbytes
            self.begun.append(reading)
            self.waiting.append(reading)
            self.changed.notify_all()

    def take(self) -> tuple[Reading, bool]:
        """The batch that was begun first, once it is finished, and whether it already was.

        Raises:
            RuntimeError: the queue was closed during the call.
        """
        reading = self.begun[0]
        with self.changed:
            was_finished = reading.request is None
            while reading.request is not None and not self.is_closed:
                self.changed.wait()
            if self.is_closed:
                raise RuntimeError(_ENDING)
            self.begun.popleft()
            self.nbytes -= reading.nbytes
        return reading, was_finished

    def work(self) -> None:
        """Finishes batches, one after the other, until the queue is closed."""
        while (found := self._next()) is not None:
            reading, request = found
            result, error, held = None, None, 0
            try:
                result = self._finish(request, reading.end)
                held = held_bytes(result)
            except BaseException as raised:  # the consumer raises it
                error = raised
            with self.changed:
                self.growth = held / max(1, request.nbytes)
                self.nbytes += held - reading.nbytes
                reading.nbytes, reading.result, reading.error = held, result, error
                reading.request = None
                self.changed.notify_all()
            del found, reading, request, result, error

    def _next(self) -> tuple[Reading, _Request] | None:
        with self.changed:
            while not self.waiting and not self.is_closed:
                self.changed.wait()
            if self.is_closed:
                return None
            reading = self.waiting.popleft()
            assert reading.request is not None
            return reading, reading.request

    def _finish(self, request: _Request, end: int) -> Any:
        request.ticket.wait()
        batch = self.dataset.batch(request.numbers, request.plan, request.data)
        batch.state = self.state_of(end)
        if request.prepared is not None:
            batch.prepare(request.prepared)
        return self.dataset.finished(batch)

    def close(self) -> None:
        """Cancels reads in flight, which ends the threads.

        A forked child has no threads, and the lock may be held forever.
        """
        if os.getpid() == self.pid:
            with self.changed:
                self.is_closed = True
                self.waiting.clear()
                requests = [reading.request for reading in self.begun]
                self.begun.clear()
                self.nbytes = 0
                self.changed.notify_all()
            for request in requests:
                if request is not None:
                    request.ticket.cancel()


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
            raise RuntimeError(_ENDING)
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


class Prefetcher(Generic[B]):
    """Batches in order, read ahead as far as a number of bytes allows.

    Each time that the consumer has to wait, one batch more is read ahead from then on, so that the
    first batch does not wait behind many.

    Batches are begun by the thread that takes them, and finished (waited for, cast, transformed) by
    threads of its own, which end with `close` or when the prefetcher is dropped.

    Args:
        dataset: What to read of.
        batches: The numbers of the samples of each batch, and the position after it.
        state_of: The state of a loader after the batch that ends at a position.
        prefetch_bytes: Bytes that batches hold which are begun and not taken. One may always be.
        threads: Number of threads.
    """

    def __init__(
        self,
        dataset: RangeDataset[B, Any],
        batches: Iterator[tuple[NDArray[np.int64], int]],
        state_of: Callable[[int], dict[str, Any]],
        prefetch_bytes: int,
        threads: int = 1,
    ) -> None:
        self._batches: Iterator[tuple[NDArray[np.int64], int]] | None = batches
        self._prefetch_bytes = prefetch_bytes
        # What is cast is not read into: RDMA devices need not know of its memory.
        self._to_read, self._to_cast = Lender(), Lender()
        self._queue = _Queue(dataset, state_of)
        # Whether the consumer waited for the last batch: then one more is read ahead.
        self._is_late = True
        weakref.finalize(self, self._queue.close).atexit = False
        self._threads = _THREADS.start(self._queue, threads)

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was made here, and not before a fork."""
        return self._queue.pid == os.getpid()

    def next(self) -> tuple[B, int] | None:
        """The next batch, and the position after it; `None` after the last.

        Raises:
            BatchError: ranges of it failed. Or what a transform raises.
        """
        self._begin()
        if not self._queue.begun:
            return None
        reading, was_finished = self._queue.take()
        self._is_late = not was_finished
        if reading.error is not None:
            raise reading.error
        return cast("B", reading.result), reading.end

    def _begin(self) -> None:
        """Begins to read a batch, and one more where the consumer had to wait."""
        for _ in range(1 + self._is_late):
            is_enough = self._queue.begun and self._queue.nbytes >= self._prefetch_bytes
            if self._batches is None or is_enough:
                return
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None
                return
            self._submit(*batch)

    def _submit(self, numbers: NDArray[np.int64], end: int) -> None:
        dataset = self._queue.dataset
        plan = dataset.plan(numbers)
        read_bytes = planned_bytes(plan)
        # A worker sends batches as they are stored, and who gets them casts them.
        cast_bytes = dataset.prepared_bytes(plan) if get_worker_info() is None else None
        ahead = self._prefetch_bytes // max(1, read_bytes + (cast_bytes or 0))
        memory = self._to_read.take(read_bytes, ahead)
        ticket = dataset.source.submit(plan, memory, crc32c=dataset.checksums(numbers))
        prepared = None if cast_bytes is None else tensor_in(self._to_cast.take(cast_bytes, ahead))
        self._queue.begin(_Request(numbers, plan, tensor_in(memory), prepared, ticket), end)

    def close(self) -> None:
        """Cancels reads in flight, and waits for the threads to end."""
        self._batches = None
        self._queue.close()
        if self.is_of_this_process:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
