"""Arrays and tensors in the memory of buffers. `_core.Buffer` calls these."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

    from feedrail import _core


def as_numpy(
    buffer: _core.Buffer, dtype: DTypeLike, shape: tuple[int, ...] | int | None
) -> NDArray[Any]:
    """An array in the memory of a buffer, of its first bytes if there are more."""
    kind = np.dtype(dtype)
    count = buffer.nbytes // kind.itemsize
    sizes = (count,) if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    elements = _fitting(buffer, sizes, kind.itemsize)
    array: NDArray[Any] = np.frombuffer(memoryview(buffer), kind, count=elements)
    return array.reshape(sizes)


def as_tensor(
    buffer: _core.Buffer, dtype: DTypeLike | torch.dtype, shape: tuple[int, ...] | int | None
) -> torch.Tensor:
    """A tensor of torch's in the memory of a buffer, of its first bytes if there are more."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils.dlpack import from_dlpack  # pyright: ignore[reportMissingImports]

    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, np.dtype(dtype).name)
    count = buffer.nbytes // kind.itemsize
    sizes = (count,) if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = _fitting(buffer, sizes, kind.itemsize) * kind.itemsize
    return from_dlpack(buffer)[:nbytes].view(kind).reshape(sizes)


def _fitting(buffer: _core.Buffer, sizes: tuple[int, ...], itemsize: int) -> int:
    """The number of elements of a shape.

    Raises:
        ValueError: a size is negative, or the buffer is too short.
    """
    count = math.prod(sizes)
    if min(sizes, default=0) < 0 or count * itemsize > buffer.nbytes:
        raise ValueError(
            f"shape {sizes} of elements of {itemsize} bytes: the buffer has {buffer.nbytes} bytes"
        )
    return count
