"""Slices of tensors, and where their bytes are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

#: A slice of a tensor, as for indexing.
Spec: TypeAlias = slice | EllipsisType | tuple[slice | EllipsisType, ...]

#: What is wanted of each tensor: `None` all, `False` nothing.
Slices: TypeAlias = (
    Mapping[str, Spec | Literal[False] | None]
    | Callable[[str, str, tuple[int, ...]], Spec | Literal[False] | None]
)

#: Ranges are cut at multiples of this many bytes of the file: whole blocks need no copy.
_BLOCK_BYTES = 4096


def shard_slices(
    rank: int, world_size: int, dim_of: Callable[[str], int | None]
) -> Callable[[str, str, tuple[int, ...]], Spec | None]:
    """The slices of one rank, as `torch.chunk` and the placement `Shard` of DTensor cut tensors.

        stream(url, slices=shard_slices(rank, 8, {"embed.weight": 0, "head.weight": 1}.get))

    Args:
        rank: Number of the rank.
        world_size: Number of ranks. If they do not divide a dimension, the last have less of it.
        dim_of: The dimension that a tensor is cut along, by its name; `None` to read it whole.

    Raises:
        ValueError: there is no such rank.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")

    def slice_of(name: str, dtype: str, shape: tuple[int, ...]) -> Spec | None:
        dim = dim_of(name)
        if dim is None:
            return None
        if not -len(shape) <= dim < len(shape):
            raise IndexError(f"tensor {name!r} of shape {shape} has no dimension {dim}")
        each = -(-shape[dim] // world_size)
        return (slice(None),) * (dim % len(shape)) + (slice(each * rank, each * (rank + 1)),)

    return slice_of


def bounds_of(spec: Spec, shape: Sequence[int]) -> list[tuple[int, int]]:
    """First index of each dimension, and the one after the last.

    Raises:
        ValueError: a step is not 1.
        IndexError: there are more slices than dimensions, or several ellipses.
        TypeError: a part is no slice.
    """
    parts: list[Any] = list(spec) if isinstance(spec, tuple) else [spec]
    ellipses = [at for at, part in enumerate(parts) if part is ...]
    if len(ellipses) > 1:
        raise IndexError("there are several ellipses")
    rest = [slice(None)] * (len(shape) - len(parts) + len(ellipses))
    if len(parts) - len(ellipses) > len(shape):
        raise IndexError(f"there are {len(parts) - len(ellipses)} slices")
    at = ellipses[0] if ellipses else len(parts)
    parts[at : at + 1] = rest
    return [_bounds(part, size) for part, size in zip(parts, shape, strict=True)]


def _bounds(part: object, size: int) -> tuple[int, int]:
    if not isinstance(part, slice):
        raise TypeError(f"{part!r} is no slice")
    if part.step not in (None, 1):
        raise ValueError(f"the step is {part.step}, and only 1 is possible")
    start, stop, _ = part.indices(size)
    return start, max(start, stop)


class TensorRuns:
    """The bytes of a slice: runs of equal length in the file, one after the other in the result.

    Attributes:
        shape: Shape of the result.
        nbytes: Number of bytes.
    """

    def __init__(
        self, offset: int, itemsize: int, shape: Sequence[int], bounds: Sequence[tuple[int, int]]
    ) -> None:
        """Finds the runs.

        Args:
            offset: First byte of the tensor.
            itemsize: Bytes of an element.
            shape: Shape of the tensor.
            bounds: What is wanted of each dimension.
        """
        self.shape = tuple(stop - start for start, stop in bounds)
        self.nbytes = itemsize * math.prod(self.shape)
        strides = [itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        starts = (start * stride for (start, _), stride in zip(bounds, strides, strict=True))
        self._offset = offset + sum(starts)
        # Dimensions behind the last one that is cut are whole.
        cut = [dim for dim, size in enumerate(shape) if self.shape[dim] != size]
        outer = cut[-1] if cut else 0
        self._loops = list(zip(self.shape[:outer], strides[:outer], strict=True))
        self._run_bytes = self.nbytes // max(1, math.prod(self.shape[:outer]))

    def ranges(self, most_bytes: int, most_ranges: int) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """Offsets of ranges in the file, and the length of each of these.

        Args:
            most_bytes: Bytes of what is yielded together, at least a block.
            most_ranges: Ranges that are yielded together.
        """
        if not self.nbytes:
            return
        run_bytes = self._run_bytes
        runs = self.nbytes // run_bytes
        together = max(1, min(most_ranges, most_bytes // run_bytes))
        for begin in range(0, runs, together):
            offsets = self._offsets(begin, min(runs, begin + together))
            if run_bytes <= most_bytes:
                yield offsets, run_bytes
            else:
                yield from _cut(int(offsets[0]), run_bytes, most_bytes)

    def _offsets(self, begin: int, end: int) -> NDArray[np.uint64]:
        """First bytes of runs."""
        rest = np.arange(begin, end, dtype=np.uint64)
        offsets = np.full(end - begin, self._offset, np.uint64)
        for count, stride in reversed(self._loops):
            rest, index = np.divmod(rest, np.uint64(count))
            offsets += index * np.uint64(stride)
        return offsets


def _cut(offset: int, nbytes: int, most_bytes: int) -> Iterator[tuple[NDArray[np.uint64], int]]:
    """Cuts a range, at the beginnings of blocks."""
    end = offset + nbytes
    while offset < end:
        cut = (offset + most_bytes) // _BLOCK_BYTES * _BLOCK_BYTES
        length = min(cut, end) - offset
        yield np.array([offset], np.uint64), length
        offset += length
