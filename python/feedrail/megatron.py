"""Indexed data sets of Megatron: a `.bin` of tokens, and an `.idx` that tells of its sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail.formats.npy import SequenceDecoder
from feedrail.index import Index

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from feedrail._source import Source

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER_BYTES = len(_MAGIC) + 8 + 1 + 8 + 8
_DTYPES = ["u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"]


class BinReader:
    """Reads a `.bin` as Megatron's `_BinReader` classes do, one read for each call.

    Args:
        source: Where the shard is.
        shard: Its name or number.
    """

    def __init__(self, source: Source, shard: str | int = 0) -> None:
        self._source, self._shard = source, source.shards.number(shard)

    def read(self, dtype: DTypeLike, count: int, offset: int) -> NDArray[Any]:
        """`count` elements from byte `offset` on, shape `(count,)`.

        Raises:
            RangeError: they are not all in the shard.
            FeedrailError: they could not be read.
        """
        kind = np.dtype(dtype)
        row = self._source.rows(self._shard, [offset], count * kind.itemsize)
        return row.as_numpy(kind, count)


@dataclass(frozen=True)
class MegatronIndex:
    """What an `.idx` tells.

    Attributes:
        dtype: Type of the tokens.
        lengths: Tokens of each sequence, `int32`, shape `(sequences,)`.
        pointers: First byte of each in the `.bin`, `int64`, shape `(sequences,)`.
        documents: The first sequence of each document, and their number at the end, `int64`.
    """

    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]
    pointers: NDArray[np.int64]
    documents: NDArray[np.int64]

    @classmethod
    def parse(cls, data: bytes) -> MegatronIndex:
        """Takes the bytes of an `.idx` apart.

        Raises:
            ValueError: they are not an `.idx` of version 1, or there are too few.
        """
        if len(data) < _HEADER_BYTES or not data.startswith(_MAGIC):
            raise ValueError("not an .idx of Megatron: it does not begin with MMIDIDX")
        version = int.from_bytes(data[9:17], "little")
        code = data[17]
        sequences = int.from_bytes(data[18:26], "little")
        documents = int.from_bytes(data[26:34], "little")
        if version != 1 or not 1 <= code <= len(_DTYPES):
            raise ValueError(f"an .idx of version {version} with type {code}: 1, and 1 to 8 are known")
        if len(data) < _HEADER_BYTES + 12 * sequences + 8 * documents:
            raise ValueError(
                f"an .idx of {len(data)} bytes is too short for {sequences} sequences and "
                f"{documents} documents"
            )
        at = _HEADER_BYTES
        lengths = np.frombuffer(data, "<i4", sequences, at)
        pointers = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
        found = np.frombuffer(data, "<i8", documents, at + 12 * sequences)
        return cls(np.dtype(_DTYPES[code - 1]), lengths, pointers, found)

    @classmethod
    def read(cls, source: Source, shard: str | int) -> MegatronIndex:
        """Reads an `.idx` that is a shard.

        Raises:
            ValueError: it is none.
        """
        with source.open(shard) as file:
            return cls.parse(file.read())

    def index(self, shard: int) -> Index:
        """The sequences as samples of the `.bin` that is that shard, for a `RangeDataset`.

        Raises:
            ValueError: a length or a pointer is negative.
        """
        lengths = self.lengths.astype(np.int64) * self.dtype.itemsize
        return Index.of(self.pointers, lengths, shard=shard)

    def decoder(self) -> SequenceDecoder:
        """Makes arrays of the sequences of a batch: a `transform` of `RangeDataset`."""
        return SequenceDecoder(self.dtype)
