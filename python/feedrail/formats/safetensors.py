"""Tensors of Hugging Face's safetensors files."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail import _core
from feedrail._dtypes import make_plan
from feedrail._source import Source
from feedrail._source import open as open_source

if TYPE_CHECKING:
    import torch

    from feedrail._typing import Progress

#: Bytes of the longest header that the format allows.
_HEADER_MAX = 100_000_000
#: Tensors begin at multiples of this many bytes of the memory that they share.
_ALIGNMENT = 64
#: Bytes of the longest range of a plan.
_PIECE = 1 << 30

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


def load_file(
    source: str | Source,
    device: str = "cpu",
    *,
    shard: str | int = 0,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """All tensors of a file, by name, as `safetensors.torch.load_file` gives them.

    The header is read, then all tensors in one plan, into memory that they share: it is free again
    when the last of them is gone.

    Args:
        source: A URL, or a source that is open.
        device: Where the tensors go; anywhere but `"cpu"`, they are copied there afterwards.
        shard: Name or number of the shard.
        progress: As for `Source.read_many`.

    Raises:
        ValueError: the file is no safetensors file, or its header does not fit its size.
        BatchError: ranges could not be read.
    """
    import torch

    opened = open_source(source) if isinstance(source, str) else source
    number = opened.shards.number(shard)
    header, begin = _header(opened, number)
    nbytes = opened.shards[number].nbytes
    parts = {
        name: _Part(torch, name, entry, nbytes - begin)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    at = 0
    for part in parts.values():
        part.at, at = at, -(-(at + part.length) // _ALIGNMENT) * _ALIGNMENT
    memory = _core.Buffer.allocate(at)
    opened.read_many(_plan(parts, begin, number), memory, progress=progress)
    data = memory.as_tensor() if at else torch.empty(0, dtype=torch.uint8)
    loaded = {name: part.view(data) for name, part in parts.items()}
    if device == "cpu":
        return loaded
    return {name: tensor.to(device) for name, tensor in loaded.items()}


class _Part:
    """A tensor of the file, checked."""

    at: int

    def __init__(self, torch: Any, name: str, entry: Any, data_bytes: int) -> None:
        try:
            dtype, shape = _DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
            first, end = (int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"tensor {name!r}: its header cannot be read: {entry!r}") from error
        self.dtype, self.shape = getattr(torch, dtype), shape
        self.first, self.length = first, end - first
        wanted = math.prod(shape) * self.dtype.itemsize
        if min(shape, default=0) < 0 or not 0 <= first <= end <= data_bytes or wanted != end - first:
            raise ValueError(
                f"tensor {name!r}: {shape} of {dtype} is not at bytes {first} to {end} of {data_bytes}"
            )

    def view(self, data: Any) -> Any:
        """The tensor, in memory that has it at `at`."""
        return data[self.at : self.at + self.length].view(self.dtype).reshape(self.shape)


def _plan(parts: dict[str, _Part], begin: int, shard: int) -> np.ndarray[Any, Any]:
    pieces = [
        (begin + part.first + at, min(_PIECE, part.length - at), part.at + at)
        for part in parts.values()
        for at in range(0, part.length, _PIECE)
    ]
    offsets, lengths, places = zip(*pieces, strict=True) if pieces else ((), (), ())
    return make_plan(offsets, lengths, shard=shard, dst=places)


def _header(source: Source, shard: int) -> tuple[dict[str, Any], int]:
    """The header, and the offset of the data."""
    with source.open(shard) as file:
        length = int.from_bytes(file.pread(8, 0), "little")
        if not 2 <= length <= min(_HEADER_MAX, file.size - 8):
            raise ValueError(f"{file.name}: a header of {length} bytes, in a file of {file.size}")
        header = json.loads(file.pread(length, 8))
    if not isinstance(header, dict):
        raise ValueError(f"the header of shard {shard} is no object of JSON")
    return header, 8 + length
