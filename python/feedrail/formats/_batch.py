"""Samples of a batch as decoders see them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from feedrail import _core
from feedrail._errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from feedrail._source import Source
    from feedrail._typing import Progress
    from feedrail.index import Samples
    from feedrail.torch import Batch

T = TypeVar("T")


class RawBatch:
    """The bytes of samples, one after the other in one buffer.

    `batch[i]` is a view of the bytes of sample `i`: nothing is copied. Decoders take a `RawBatch`
    or a `feedrail.torch.Batch`.

    Attributes:
        data: The bytes of all samples, `uint8`, shape `(bytes,)`.
        offsets: Sample `i` is `data[offsets[i]:offsets[i + 1]]`; `int64`, shape `(samples + 1,)`.
        indices: Numbers of the samples in the data set, `int64`, shape `(samples,)`.
        plan: Where each lies, entries of `PLAN_DTYPE`, shape `(samples,)`, if that is known.
        state: What resumes a loader after the batch, if one made it.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        indices: NDArray[np.int64] | None = None,
        plan: NDArray[np.void] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.data, self.offsets = data, offsets
        self.indices = np.arange(len(offsets) - 1) if indices is None else indices
        self.plan, self.state = plan, state
        self._view = data.data

    @classmethod
    def read(
        cls,
        source: Source,
        samples: Samples,
        indices: ArrayLike,
        *,
        verify: bool = False,
        progress: Progress | None = None,
    ) -> RawBatch:
        """Reads samples by number, in one call.

        Args:
            source: Where the shards are.
            samples: An `Index`.
            indices: Numbers of samples, shape `(n,)`.
            verify: Whether they are compared with the checksums of the index.
            progress: As for `Source.read_many`.

        Raises:
            IndexError: there is no such sample.
            DatasetChanged: the source has another shard than the index.
            BatchError: some could not be read, or do not have their checksums.
            ValueError: `verify` is set, and the index has no checksums.
        """
        from feedrail.index import NO_CHECKSUMS, has_checksums, samples_in

        samples = samples_in(source, samples)
        numbers = np.asarray(indices, np.int64).reshape(-1)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(samples):
            raise IndexError(f"a sample is none of {len(samples)}")
        plan = samples.plan(numbers)
        offsets = np.zeros(len(plan) + 1, np.int64)
        np.cumsum(plan["length"], out=offsets[1:])
        checksums = None
        if verify:
            if not has_checksums(samples):
                raise ValueError(NO_CHECKSUMS)
            checksums = samples.checksums(numbers)
        buffer = _core.Buffer.allocate(int(offsets[-1]))
        source.read_many(plan, buffer, crc32c=checksums, progress=progress)
        return cls(np.frombuffer(memoryview(buffer), np.uint8), offsets, numbers, plan)

    @classmethod
    def of(cls, batch: RawBatch | Batch) -> RawBatch:
        """The same bytes, of a `RawBatch` or a `feedrail.torch.Batch` in memory of the host.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(batch, RawBatch):
            return batch
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(getattr(batch, "data", None), torch.Tensor):
            raise TypeError(f"a decoder takes a Batch or a RawBatch, not {type(batch).__name__}")
        data, itemsize = batch.data, batch.data.element_size()
        raw = data.view(torch.uint8).numpy() if data.numel() else np.empty(0, np.uint8)
        offsets = batch.offsets.numpy() * itemsize
        return cls(raw, offsets, batch.indices.numpy(), batch.plan, batch.state)

    def error(self, i: int, message: str, at: int = 0) -> FormatError:
        """The exception for sample `i`, in which byte `at` is the first that is wrong."""
        number = int(self.indices[i])
        if self.plan is None:
            where, shard, offset = f"byte {at}", None, at
        else:
            shard, offset = int(self.plan["shard"][i]), int(self.plan["offset"][i]) + at
            where = f"shard {shard}, offset {offset}"
        length = int(self.offsets[i + 1] - self.offsets[i])
        text = f"sample {number}, {where}: {message}"
        return FormatError(text, sample=number, shard=shard, offset=offset, length=length)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> memoryview:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of a batch of {len(self)}")
        begin, end = self.offsets[i % len(self) :][:2].tolist()
        return self._view[begin:end]

    def __iter__(self) -> Iterator[memoryview]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<feedrail.formats.RawBatch: {len(self)} samples, {self.data.nbytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data, self.offsets, self.indices, self.plan, self.state)


class Decoded(Generic[T]):
    """What a decoder made of the samples of a batch, in order.

    `batch[i]`, slices, `len`, iteration and `==` work as for a list. It is none: `DataLoader`
    converts what is in lists (arrays into tensors), and hands this out as it is.

    Attributes:
        indices: Numbers of the samples in the data set, `int64`, shape `(samples,)`.
        state: What resumes a loader after the batch, if one made it.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        samples: list[T],
        indices: NDArray[np.int64],
        state: dict[str, Any] | None = None,
    ) -> None:
        self._samples, self.indices, self.state = samples, indices, state

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, i: int) -> T: ...
    @overload
    def __getitem__(self, i: slice) -> list[T]: ...
    def __getitem__(self, i: int | slice) -> T | list[T]:
        return self._samples[i]

    def __iter__(self) -> Iterator[T]:
        return iter(self._samples)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Decoded):
            return self._samples == other._samples
        return self._samples == other if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._samples!r})"


class SampleError(Exception):
    """What is wrong with the bytes of a sample, and from which byte on."""

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


class SampleDecoder(Generic[T]):
    """Decodes the samples of a batch one by one, and says which is damaged."""

    def __call__(self, batch: RawBatch | Batch) -> Decoded[T]:
        """What the samples of a batch are.

        Args:
            batch: A `RawBatch`, or a `feedrail.torch.Batch`: a decoder is a `transform` of
                `RangeDataset`.

        Raises:
            FormatError: a sample is damaged. It has `sample`, `shard` and `offset`.
        """
        raw = RawBatch.of(batch)
        samples = []
        for i, data in enumerate(raw):
            try:
                samples.append(self.decode(data))
            except SampleError as error:
                raise raw.error(i, str(error), error.at) from error.__cause__
        return Decoded(samples, raw.indices, raw.state)

    def decode(self, data: memoryview) -> T:
        """One sample; raises `SampleError`."""
        raise NotImplementedError


def picklable(value: Any) -> Any:
    """The value; bytes in place of a view of them, which no process can send to another."""
    return bytes(value) if isinstance(value, memoryview) else value
