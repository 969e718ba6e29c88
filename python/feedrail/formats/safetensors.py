"""Tensors of Hugging Face's safetensors files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail import _core
from feedrail._dtypes import make_plan
from feedrail._open import open as open_source
from feedrail._source import Source

if TYPE_CHECKING:
    import torch

    from feedrail._typing import Progress

#: Tensors begin at multiples of this many bytes of the memory that they share.
_ALIGNMENT = 64
#: Bytes of the longest range of a plan.
_PIECE = 1 << 30

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


def load_file(
    source: str | os.PathLike[str] | Source,
    device: str = "cpu",
    *,
    shard: str | int = 0,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """All tensors of a file, by name, as `safetensors.torch.load_file` gives them.

    The header is read, then all tensors in one plan, into memory that they share: it is free again
    when the last of them is gone.

    Args:
        source: A URL, a path, or a source that is open.
        device: Where the tensors go; anywhere but `"cpu"`, they are copied there afterwards.
        shard: Name or number of the shard.
        progress: As for `Source.read_many`.

    Raises:
        FormatError: the file is no safetensors file, tensors overlap or leave gaps, or its header
            does not fit its size; it is a `ValueError`.
        ValueError: this torch has no type for a tensor.
        BatchError: ranges could not be read.
    """
    import torch

    opened = source if isinstance(source, Source) else open_source(source)
    number = opened.shards.number(shard)
    nbytes = opened.shards[number].nbytes
    with opened.open(number) as file:
        read = lambda offset, length: file.pread(length, offset)  # noqa: E731
        tensors = _core.safetensors_tensors(number, nbytes, read)
    parts = {tensor[0]: _Part(torch, *tensor) for tensor in tensors}
    at = 0
    for part in parts.values():
        part.at, at = at, -(-(at + part.length) // _ALIGNMENT) * _ALIGNMENT
    memory = _core.Buffer.allocate(at)
    opened.read_many(_plan(parts, number), memory, progress=progress)
    data = memory.as_tensor() if at else torch.empty(0, dtype=torch.uint8)
    loaded = {name: part.view(data) for name, part in parts.items()}
    if device == "cpu":
        return loaded
    return {name: tensor.to(device) for name, tensor in loaded.items()}


class _Part:
    """A tensor of the file."""

    at: int

    def __init__(
        self, torch: Any, name: str, dtype: str, shape: list[int], first: int, length: int
    ) -> None:
        kind, values = _DTYPES.get(dtype, ("", 1))
        self.dtype = getattr(torch, kind, None)
        if self.dtype is None:
            raise ValueError(f"tensor {name!r} is of {dtype}, which this torch has no type for")
        self.shape = shape if values == 1 else [*shape[:-1], shape[-1] // values]
        self.first, self.length = first, length

    def view(self, data: Any) -> Any:
        """The tensor, in memory that has it at `at`."""
        return data[self.at : self.at + self.length].view(self.dtype).reshape(self.shape)


def _plan(parts: dict[str, _Part], shard: int) -> np.ndarray[Any, Any]:
    pieces = [
        (part.first + at, min(_PIECE, part.length - at), part.at + at)
        for part in parts.values()
        for at in range(0, part.length, _PIECE)
    ]
    offsets, lengths, places = zip(*pieces, strict=True) if pieces else ((), (), ())
    return make_plan(offsets, lengths, shard=shard, dst=places)
