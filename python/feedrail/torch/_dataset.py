"""Map-style data sets that read whole batches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import TypeVar

from feedrail.index import NO_CHECKSUMS, Windows, has_checksums, samples_in
from feedrail.torch._batch import Batch, TokenBatch
from feedrail.torch._dtypes import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike, NDArray

    from feedrail import Source
    from feedrail.index import Samples

#: What a loader hands out: a batch, or what the transform makes of it.
B = TypeVar("B")
#: A sample alone: a tensor, or what the transform makes of a batch of it.
S = TypeVar("S", default=torch.Tensor)


class RangeDataset(Dataset[S], Generic[B, S]):
    """Samples that are ranges of bytes of shards.

    `DataLoader` reads whole batches by `__getitems__`, one call for each; give it
    `collate_fn=feedrail.torch.collate`. In worker processes the bytes land in shared memory, from
    where the parent takes them without a copy. Workers connect for themselves, whether they were
    forked or spawned.

    Args:
        source: Where the shards are.
        index: Where the samples are in the shards: `feedrail.index.Index`.
        transform: Called once for each batch with the `Batch`; what it returns is the batch.
        dtype: Elements of samples, `uint8` if `None`. Lengths must be multiples of its size.
        verify: Whether samples are compared with the CRC-32C that the index has for them: one that
            has another is a `ChecksumError`. Threads of a `Loader` do it ahead, and other threads
            keep running.

    Raises:
        ValueError: `verify` is set, and the index has no checksums.
        DatasetChanged: the source has another shard than the index.
    """

    source: Source

    @overload
    def __init__(
        self: RangeDataset[Batch, torch.Tensor],
        source: Source,
        index: Samples,
        *,
        transform: None = None,
        dtype: DTypeLike | torch.dtype | None = None,
        verify: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: RangeDataset[B, B],
        source: Source,
        index: Samples,
        *,
        transform: Callable[[Batch], B],
        dtype: DTypeLike | torch.dtype | None = None,
        verify: bool = False,
    ) -> None: ...
    def __init__(
        self,
        source: Source,
        index: Samples,
        *,
        transform: Callable[[Any], Any] | None = None,
        dtype: DTypeLike | torch.dtype | None = None,
        verify: bool = False,
    ) -> None:
        if verify and not has_checksums(index):
            raise ValueError(NO_CHECKSUMS)
        self.source = source
        self.transform = transform
        self.verify = verify
        self.dtype = torch_dtype(dtype)
        self._index = samples_in(source, index)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> S:
        """Sample `i`, shape `(elements,)`; what `transform` makes of a batch of it if there is one.

        Raises:
            IndexError: there is no such sample.
            FeedrailError: it could not be read.
        """
        batch = self.__getitems__([i])
        return cast("S", batch if self.transform is not None else cast("Batch", batch)[0])

    def __getitems__(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> B:
        """Samples in one read: a `Batch`, or what `transform` makes of it.

        Raises:
            IndexError: there is no such sample.
            ValueError: a sample is not a whole number of elements.
            BatchError: some could not be read, or do not have their checksums; see its `indices`.
        """
        numbers = self.numbers(indices)
        plan = self.plan(numbers)
        data = _empty(planned_bytes(plan))
        self.source.read_many(plan, data, crc32c=self.checksums(numbers))
        return self.finished(self.batch(numbers, plan, data))

    def numbers(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Numbers of samples as an array, negative ones counted from the end.

        Raises:
            IndexError: there is no such sample.
        """
        numbers = np.asarray(indices, np.int64).reshape(-1)
        count = len(self)
        if len(numbers) and not -count <= int(numbers.min()) <= int(numbers.max()) < count:
            wrong = numbers[(numbers < -count) | (numbers >= count)][0]
            raise IndexError(f"sample {wrong} of {count}")
        return np.where(numbers < 0, numbers + count, numbers)

    def plan(self, numbers: NDArray[np.int64]) -> NDArray[np.void]:
        """The plan that reads samples one after the other, shape `(samples,)`, `PLAN_DTYPE`.

        Raises:
            ValueError: a sample is not a whole number of elements.
        """
        plan = self._index.plan(numbers)
        odd = np.flatnonzero(plan["length"] % self.dtype.itemsize)
        if len(odd):
            length = plan["length"][odd[0]]
            raise ValueError(f"sample {numbers[odd[0]]} has {length} bytes, no whole {self.dtype}s")
        return plan

    def checksums(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32] | None:
        """CRC-32C of samples, shape `(samples,)`, 0 for none; `None` without `verify`."""
        index = self._index
        return index.checksums(numbers) if self.verify and has_checksums(index) else None

    def batch(
        self, numbers: NDArray[np.int64], plan: NDArray[np.void], data: torch.Tensor
    ) -> Batch:
        """The batch that a plan has read into `data`, which has at least its bytes."""
        offsets = np.zeros(len(plan) + 1, np.int64)
        np.cumsum(plan["length"] // self.dtype.itemsize, out=offsets[1:])
        elements = data[: planned_bytes(plan)].view(self.dtype)
        indices, ends = torch.from_numpy(numbers), torch.from_numpy(offsets)
        return self._kind(indices, elements, ends, plan=plan)

    def prepared_bytes(self, plan: NDArray[np.void]) -> int:
        """Bytes of what `Batch.prepare` makes of what a plan reads."""
        return 0

    def finished(self, batch: Batch) -> B:
        """What a loader gets: the batch, or what `transform` makes of it."""
        return cast("B", batch if self.transform is None else self.transform(batch))

    @property
    def fingerprint(self) -> str:
        """A text that differs for data sets with other shards, or another number of samples."""
        described = f"{self.source.hash} {len(self)} {self.dtype}"
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()

    _kind: type[Batch] = Batch

    def __repr__(self) -> str:
        return f"<feedrail.torch.{type(self).__name__}: {len(self)} samples of {self.source!r}>"


class TokenDataset(RangeDataset[B, S]):
    """Windows of `block_size + 1` tokens, as nanoGPT and llm.c store them: arrays without frames.

    Window `i` of a shard begins at its token `i * stride`. With `stride=1`, windows and their
    number are those from which nanoGPT's `get_batch` draws. Windows do not cross shards.

    Args:
        source: Where the shards are; each is one array of tokens.
        block_size: Tokens of the input `x` of a sample.
        dtype: Tokens as stored.
        stride: Tokens from a window to the next; `block_size` if `None`, so that each token is once
            in `y`.
        header_bytes: Bytes before the tokens of each shard: 1024 for llm.c.
        transform: As for `RangeDataset`.

    Raises:
        ValueError: a shard is not a whole number of tokens, or a number is not positive.
    """

    @overload
    def __init__(
        self: TokenDataset[TokenBatch, torch.Tensor],
        source: Source,
        block_size: int = 1024,
        *,
        dtype: DTypeLike | torch.dtype = "uint16",
        stride: int | None = None,
        header_bytes: int = 0,
        transform: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: TokenDataset[B, B],
        source: Source,
        block_size: int = 1024,
        *,
        dtype: DTypeLike | torch.dtype = "uint16",
        stride: int | None = None,
        header_bytes: int = 0,
        transform: Callable[[TokenBatch], B],
    ) -> None: ...
    def __init__(
        self,
        source: Source,
        block_size: int = 1024,
        *,
        dtype: DTypeLike | torch.dtype = "uint16",
        stride: int | None = None,
        header_bytes: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        kind = torch_dtype(dtype)
        stride = block_size if stride is None else stride
        if block_size < 1 or stride < 1 or header_bytes < 0:
            raise ValueError(f"block_size {block_size}, stride {stride}, header {header_bytes}")
        for shard in source.shards:
            if (shard.nbytes - header_bytes) % kind.itemsize:
                raise ValueError(
                    f"{shard.name}: {shard.nbytes} bytes after a header of {header_bytes} are no "
                    f"whole number of {kind}"
                )
        windows = Windows(
            [shard.nbytes for shard in source.shards],
            (block_size + 1) * kind.itemsize,
            stride * kind.itemsize,
            header_bytes,
        )
        super().__init__(source, windows, transform=cast("Any", transform), dtype=kind)
        self.block_size, self.stride = block_size, stride

    @property
    def fingerprint(self) -> str:
        """As of `RangeDataset`; the windows count too."""
        described = f"{super().fingerprint} {self.block_size} {self.stride}"
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()

    def prepared_bytes(self, plan: NDArray[np.void]) -> int:
        """Bytes of the tokens as `int64`."""
        return planned_bytes(plan) // self.dtype.itemsize * torch.int64.itemsize

    _kind = TokenBatch


def planned_bytes(plan: NDArray[np.void]) -> int:
    """Bytes of a buffer for a plan whose ranges follow each other."""
    return int(plan["dst"][-1]) + int(plan["length"][-1]) if len(plan) else 0


def _empty(nbytes: int) -> torch.Tensor:
    """Memory to read into; in a worker process, memory that the parent maps instead of copying."""
    if get_worker_info() is None or nbytes == 0:
        return torch.empty(nbytes, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage)
