"""Tensors as they arrive."""

from __future__ import annotations

import difflib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from feedrail import _core
from feedrail._dtypes import make_plan
from feedrail._errors import ForkedHandleError, NotFound, PoolFull
from feedrail.formats.safetensors._slice import TensorRuns, bounds_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from numpy.typing import NDArray

    from feedrail._source import Source
    from feedrail._ticket import Ticket
    from feedrail._typing import Progress
    from feedrail.formats.safetensors._entries import EntrySource, EntryTicket
    from feedrail.formats.safetensors._file import FileTensor
    from feedrail.formats.safetensors._slice import Slices

#: Tensors begin at multiples of this many bytes of the memory that they share.
_ALIGNMENT = 64
#: Steps that are in flight, at most, and before the first tensor is there. They take turns on the wire:
#: with eight, new memory takes 1.1 times as long, since its pages leave the cache between turns.
_STEPS_AT_MOST, _STEPS_AT_FIRST = 3, 2
#: Least and most bytes of a step: steps of half the size take a little longer in sum.
_STEP_BYTES = 64 << 10, 16 << 20
#: Ranges of a step, at most: their results take memory.
_STEP_RANGES = 16 << 10

#: Types of torch's by the names of the format, and how many values an element has. Two of the format
#: have none: F6_E2M3 and F6_E3M2.
_DTYPES = {
    "BOOL": ("bool", 1),
    "F4": ("float4_e2m1fn_x2", 2),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "I16": ("int16", 1),
    "U16": ("uint16", 1),
    "F16": ("float16", 1),
    "BF16": ("bfloat16", 1),
    "I32": ("int32", 1),
    "U32": ("uint32", 1),
    "F32": ("float32", 1),
    "C64": ("complex64", 1),
    "F64": ("float64", 1),
    "I64": ("int64", 1),
    "U64": ("uint64", 1),
}


class TensorStream(Iterator[tuple[str, "torch.Tensor"]]):
    """Names and tensors, in the order of the file. Made by `feedrail.formats.safetensors.stream`.

    Reads are in flight until it ends, is closed or is dropped; that cancels them. Threads may share
    it: each tensor goes to one of them.

    Attributes:
        nbytes: Bytes of all its tensors.
    """

    def __init__(
        self,
        source: Source | EntrySource,
        tensors: Iterable[FileTensor],
        device: str | torch.device,
        *,
        slices: Slices | None,
        names: Iterable[str] | None,
        buffer_bytes: int,
        progress: Progress | None,
        is_owned: bool,
    ) -> None:
        """Chooses what to read; `stream` has the arguments and errors.

        Args:
            is_owned: Whether the source is closed at the end.
        """
        if buffer_bytes < 1:
            raise ValueError(f"buffer_bytes={buffer_bytes}: it is at least 1")
        self._source, self._is_owned = source, is_owned
        self._device = torch.device(device)
        self._progress = progress
        self._arrived: deque[tuple[str, torch.Tensor]] = deque()
        parts = _selected(list(tensors), slices, names)
        if self._device.type == "meta":
            self._arrived += [(part.name, part.without_bytes()) for part in parts]
            parts = []
        self.nbytes = sum(part.runs.nbytes for part in parts)
        least, most = _STEP_BYTES
        step_bytes = max(least, min(most, buffer_bytes // _STEPS_AT_MOST))
        largest = max((part.runs.nbytes for part in parts), default=0)
        # Read ahead, and in the hands of the consumer.
        lent_bytes = min(self.nbytes, buffer_bytes + min(buffer_bytes, max(largest, step_bytes)))
        self._lender = _Lender(lent_bytes, self._device)
        self._steps: Iterator[_Step] = _steps(parts, step_bytes, self._lender)
        self._next_step = next(self._steps, None)
        self._in_flight: deque[tuple[_Step, Ticket | EntryTicket | None]] = deque()
        self._buffer_bytes = buffer_bytes
        self._steps_at_most = _STEPS_AT_FIRST
        self._done = 0
        self._has_ended = self._is_closed = False
        self._home, self._lock = os.getpid(), threading.Lock()

    def __next__(self) -> tuple[str, torch.Tensor]:
        """The next tensor.

        Raises:
            StopIteration: all have been handed out.
            BatchError: bytes could not be read; it is a `TargetLost`, `DatasetChanged` or
                `ReadTimeout` too where that is the reason. The stream is closed.
            ForkedHandleError: the stream is that of the process that this was forked from.
            ValueError: the stream was closed.
        """
        if os.getpid() != self._home:
            raise ForkedHandleError("the stream belongs to the process that this was forked from")
        with self._lock:
            try:
                while not self._arrived and not self._has_ended:
                    self._advance()
                if self._arrived:
                    return self._arrived.popleft()
            except BaseException as error:
                # By another thread, or by this one before.
                was_closed = self._is_closed
                self.close()
                if was_closed and isinstance(error, Exception):
                    raise ValueError("the stream was closed before its end") from None
                raise
        raise StopIteration

    def close(self) -> None:
        """Cancels the reads in flight, and frees what nobody has taken. The end of a stream does so.

        A thread that waits for a tensor gets a `ValueError`.
        """
        self._is_closed = not self._has_ended
        in_flight = list(self._in_flight)
        self._steps, self._next_step = iter(()), None
        self._in_flight.clear()
        self._arrived.clear()
        if os.getpid() == self._home:
            for _, ticket in in_flight:
                if ticket is not None:
                    ticket.cancel()
            if self._is_owned:
                self._source.close()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TensorStream of {self._source.url}: {self._done} of {self.nbytes} bytes>"

    def _advance(self) -> None:
        """Waits for the oldest step in flight, after as many were begun as there is room for."""
        while (step := self._next_step) is not None and not self._is_closed and self._has_room(step):
            ticket = self._source.submit(step.plan(), step.memory.buffer()) if step.nbytes else None
            self._in_flight.append((step, ticket))
            self._next_step = next(self._steps, None)
        if self._is_closed:
            raise ValueError("closed")
        if not self._in_flight:
            self._has_ended = True
            self.close()
            return
        # It stays there, where `close` finds it.
        step, ticket = self._in_flight[0]
        if ticket is not None:
            self._wait(ticket)
        self._in_flight.popleft()
        self._done += step.nbytes
        if step.parts:
            self._steps_at_most = _STEPS_AT_MOST
        self._arrived += [(part.name, self._moved(step.memory, part, at)) for part, at in step.parts]

    def _has_room(self, step: _Step) -> bool:
        if not self._in_flight:
            return True
        ahead = {id(other.memory): other.memory.nbytes for other, _ in self._in_flight}
        ahead[id(step.memory)] = step.memory.nbytes
        is_within = sum(ahead.values()) <= self._buffer_bytes or len(ahead) == 1
        return is_within and len(self._in_flight) < self._steps_at_most

    def _wait(self, ticket: Ticket | EntryTicket) -> None:
        told, done = self._progress, self._done
        if told is None:
            ticket.wait()
        else:
            ticket.wait(progress=lambda some, _: told(done + some, self.nbytes))

    def _moved(self, memory: _Memory, part: _Part, at: int) -> torch.Tensor:
        """A tensor of a step that has ended, on its device."""
        tensor = part.of(memory.view(at, part.runs.nbytes))
        return tensor.to(self._device, non_blocking=self._lender.is_pinned)


class _Lender:
    """Gives memory to read into, and uses again what the consumer has dropped.

    New memory costs a page fault for each page, which takes as long as to fill the page.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        """Makes a pool, whose pages take memory from when they are first used.

        Args:
            nbytes: Bytes that are lent at a time if the consumer drops tensors.
            device: Where tensors are copied to: copies to CUDA need not wait with pinned memory,
                which torch uses again.
        """
        self.is_pinned = device.type == "cuda"
        self._pool = _core.Pool(nbytes) if nbytes and not self.is_pinned else None

    def take(self, nbytes: int) -> tuple[_core.Buffer, torch.Tensor]:
        """Memory, as a buffer and as a tensor."""
        if self.is_pinned:
            pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            return _core.Buffer.of(pinned), pinned
        buffer = self._taken(nbytes)
        return buffer, buffer.as_tensor()

    def _taken(self, nbytes: int) -> _core.Buffer:
        try:
            if self._pool is not None:
                return self._pool.take(nbytes)
        except PoolFull:
            pass
        return _core.Buffer.allocate(nbytes)


class _Memory:
    """Memory that tensors share, which is taken when it is first asked for."""

    def __init__(self, lender: _Lender) -> None:
        self.nbytes = 0
        self._lender = lender
        self._buffer: _core.Buffer | None = None
        self._bytes: Any = None

    def room_for(self, nbytes: int) -> int:
        """Makes room for a tensor, and returns the offset of its first byte."""
        at = -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = at + nbytes
        return at

    def buffer(self) -> _core.Buffer:
        """The memory as reads take it."""
        if self._buffer is None:
            self._buffer, self._bytes = self._lender.take(self.nbytes)
        return self._buffer

    def view(self, at: int, nbytes: int) -> torch.Tensor:
        """Bytes of it, which keep it."""
        return self._bytes[at : at + nbytes] if nbytes else torch.empty(0, dtype=torch.uint8)


class _Part:
    """A tensor that is wanted, or a slice of it."""

    def __init__(self, tensor: FileTensor, spec: Any) -> None:
        kind, values = _DTYPES.get(tensor.dtype, ("", 1))
        dtype = getattr(torch, kind, None)
        if dtype is None:
            message = f"tensor {tensor.name!r} is of {tensor.dtype}, which this torch has no type for"
            raise ValueError(message)
        self.name, self.shard, self.dtype = tensor.name, tensor.shard, dtype
        try:
            shape, bounds = tensor.shape, bounds_of(... if spec is None else spec, tensor.shape)
            if values > 1:
                bounds[-1] = _elements(bounds[-1], shape[-1], values)
                shape = (*shape[:-1], shape[-1] // values)
        except (ValueError, IndexError, TypeError) as error:
            raise type(error)(f"tensor {self.name!r} of shape {[*tensor.shape]}: {error}") from None
        self.runs = TensorRuns(tensor.offset, dtype.itemsize, shape, bounds)

    def without_bytes(self) -> torch.Tensor:
        """A tensor of its shape and type, of the device `meta`."""
        return torch.empty(self.runs.shape, dtype=self.dtype, device="meta")

    def of(self, data: torch.Tensor) -> torch.Tensor:
        """The tensor that bytes are."""
        return data.view(self.dtype).reshape(self.runs.shape)


def _elements(bounds: tuple[int, int], size: int, values: int) -> tuple[int, int]:
    """The elements that values are packed in.

    Raises:
        ValueError: they are not whole.
    """
    start, stop = bounds
    if size % values:
        raise ValueError(f"its rows have {size} values, and a byte has {values}")
    if start % values or stop % values:
        raise ValueError(f"values {start} to {stop} are not whole bytes of {values} values")
    return start // values, stop // values


class _Step:
    """Ranges that are read together, and the tensors that are there when they are."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        #: With their places in memory.
        self.parts: list[tuple[_Part, int]] = []
        self.nbytes = self.ranges = 0
        self._plans: list[NDArray[np.void]] = []

    def add(self, shard: int, offsets: NDArray[np.uint64], length: int, dst: int) -> None:
        """Adds ranges of equal length, which follow each other in memory."""
        places = dst + length * np.arange(len(offsets))
        self._plans.append(make_plan(offsets, length, shard=shard, dst=places))
        self.ranges += len(offsets)
        self.nbytes += length * len(offsets)

    def plan(self) -> NDArray[np.void]:
        return np.concatenate(self._plans)


def _steps(parts: list[_Part], step_bytes: int, lender: _Lender) -> Iterator[_Step]:
    """The steps in which tensors are read, in order. It keeps no memory of those before."""
    for memory, placed in _in_memory(parts, step_bytes, lender):
        step = _Step(memory)
        for part, at in placed:
            dst = at
            for offsets, length in part.runs.ranges(step_bytes, _STEP_RANGES):
                nbytes = length * len(offsets)
                is_full = step.nbytes + nbytes > step_bytes or step.ranges + len(offsets) > _STEP_RANGES
                if step.ranges and is_full:
                    yield step
                    step = _Step(memory)
                step.add(part.shard, offsets, length, dst)
                dst += nbytes
            step.parts.append((part, at))
        yield step


def _in_memory(
    parts: list[_Part], step_bytes: int, lender: _Lender
) -> Iterator[tuple[_Memory, list[tuple[_Part, int]]]]:
    """Tensors that follow each other, and memory of at most `step_bytes` that they share."""
    memory, placed = _Memory(lender), list[tuple[_Part, int]]()
    for part in parts:
        if placed and memory.nbytes + part.runs.nbytes > step_bytes:
            yield memory, placed
            memory, placed = _Memory(lender), []
        placed.append((part, memory.room_for(part.runs.nbytes)))
    if placed:
        yield memory, placed


def _selected(
    tensors: list[FileTensor], slices: Slices | None, names: Iterable[str] | None
) -> list[_Part]:
    """What is wanted of the tensors of a file.

    Raises:
        NotFound: there is no tensor of a name.
    """
    wanted = None if names is None else dict.fromkeys(names)
    known = {tensor.name for tensor in tensors}
    for name in [*(wanted or ()), *(slices if isinstance(slices, Mapping) else ())]:
        if name not in known:
            close = " or ".join(map(repr, difflib.get_close_matches(name, known)))
            hint = f": is it {close}?" if close else f" among {len(known)}"
            raise NotFound(f"there is no tensor {name!r}{hint}")
    parts = []
    for tensor in tensors:
        if wanted is not None and tensor.name not in wanted:
            continue
        if isinstance(slices, Mapping):
            spec = slices.get(tensor.name)
        else:
            spec = None if slices is None else slices(tensor.name, tensor.dtype, tensor.shape)
        if spec is not False:
            parts.append(_Part(tensor, spec))
    return parts
