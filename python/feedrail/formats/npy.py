"""Rows of arrays: those of `.npy` files, and sequences of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.lib import format as npy_format

from feedrail._errors import FormatError
from feedrail.formats._batch import RawBatch, SampleDecoder, SampleError

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

    from feedrail._source import Source
    from feedrail.torch import Batch


class Decoder:
    """Makes one array of a batch of rows, in the memory of the batch.

    Args:
        dtype: Type of the elements; it has no Python objects.
        shape: Shape of a row: that of the array without its first axis.

    Raises:
        FormatError: the type has Python objects.
    """

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...] = ()) -> None:
        self.dtype, self.shape = np.dtype(dtype), tuple(shape)
        if self.dtype.hasobject:
            raise FormatError(f"{self.dtype} has Python objects, which are not read")

    @classmethod
    def of(cls, source: Source, shard: str | int = 0) -> Decoder:
        """Reads type and shape from the header of a `.npy` file.

        Raises:
            FormatError: it is no such file.
        """
        number = source.shards.number(shard)
        with source.open(number) as file:
            try:
                version = npy_format.read_magic(file)
                if version == (1, 0):
                    shape, _, dtype = npy_format.read_array_header_1_0(file)
                else:
                    shape, _, dtype = npy_format.read_array_header_2_0(file)
            except ValueError as error:
                raise FormatError(f"{file.name}: {error}", shard=number, offset=0) from error
        return cls(dtype, shape[1:])

    @overload
    def __call__(self, batch: RawBatch) -> NDArray[Any]: ...
    @overload
    def __call__(self, batch: Batch) -> torch.Tensor | NDArray[Any]: ...
    def __call__(self, batch: RawBatch | Batch) -> torch.Tensor | NDArray[Any]:
        """The rows of a batch, shape `(samples, *shape)`: a view, nothing is copied.

        They are an array of a `RawBatch`, and a tensor of a `feedrail.torch.Batch` as far as torch
        has the type: `DataLoader` would make one of an array.

        Raises:
            FormatError: a sample is no row.
        """
        raw = RawBatch.of(batch)
        row_bytes = math.prod(self.shape) * self.dtype.itemsize
        wrong = np.flatnonzero(np.diff(raw.offsets) != row_bytes)
        if len(wrong):
            i = int(wrong[0])
            message = f"{len(raw[i])} bytes, for a row {self.shape} of {self.dtype}"
            raise raw.error(i, message)
        # A row without bytes leaves the number of rows open.
        rows = raw.data.view(self.dtype).reshape(len(raw), *self.shape)
        return rows if raw is batch else _tensor(rows)


class SequenceDecoder(SampleDecoder["NDArray[Any]"]):
    """Makes an array of one axis of each sample, in the memory of the batch: Megatron's sequences.

    Args:
        dtype: Type of the elements, `MegatronIndex.dtype`.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)

    def decode(self, data: memoryview) -> NDArray[Any]:
        """One sequence."""
        if len(data) % self.dtype.itemsize:
            raise SampleError(f"{len(data)} bytes are no whole number of {self.dtype}")
        return np.frombuffer(data, self.dtype)


def _tensor(rows: NDArray[Any]) -> torch.Tensor | NDArray[Any]:
    """A tensor in the memory of an array; the array itself where torch has no such type."""
    import torch

    try:
        return torch.from_numpy(rows)
    except (TypeError, ValueError):
        return rows
