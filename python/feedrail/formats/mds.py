"""Samples of MosaicML's MDS shards.

    index = feedrail.index.build(source)
    decoder = feedrail.formats.mds.Decoder.of(source)
    dataset = feedrail.torch.RangeDataset(source, index, transform=decoder)
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail._errors import FormatError
from feedrail.formats._batch import SampleDecoder, SampleError, picklable

if TYPE_CHECKING:
    from feedrail._source import Source

#: Makes a value of the bytes of a column.
Decode = Callable[[memoryview], Any]

_SCALARS = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
#: Types of arrays by the byte that stands for them.
_ARRAY_TYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}


@dataclass(frozen=True)
class Column:
    """A column of the samples.

    Attributes:
        name: Its name.
        encoding: How values are made bytes, as Streaming names it: `"int"`, `"ndarray:uint8:3,4"`.
        size: Bytes of each value, if all have as many.
    """

    name: str
    encoding: str
    size: int | None


@dataclass(frozen=True)
class MdsShard:
    """What `index.json` says of a shard.

    Attributes:
        basename: Path of its file from the folder of the index: with the folders of a merged one.
        nbytes: Bytes of the file.
        samples: Number of samples.
        columns: The columns of a sample, in the order of their bytes.
    """

    basename: str
    nbytes: int
    samples: int
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class MdsIndex:
    """An `index.json`.

    Attributes:
        shards: The shards in the order of the data set.
    """

    shards: tuple[MdsShard, ...]

    @classmethod
    def parse(cls, text: bytes) -> MdsIndex:
        """Takes the bytes of an `index.json` apart.

        Raises:
            FormatError: it is none, or its shards are compressed or of another format.
        """
        try:
            shards = json.loads(text)["shards"]
            return cls(tuple(_shard(shard) for shard in shards))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"not an index.json of MDS: {error!r}") from error

    @classmethod
    def read(cls, source: Source, shard: str | int = "index.json") -> MdsIndex:
        """Reads an `index.json` that is a shard of a source.

        Raises:
            FileNotFoundError: there is no such shard.
            FormatError: as `parse`.
        """
        with source.open(shard) as file:
            return cls.parse(file.read())


class Decoder(SampleDecoder[dict[str, Any]]):
    """Makes dictionaries of samples, with a value for each column.

    | encoding | value |
    |---|---|
    | `bytes`, `jpeg`, `png`, `pil` | `bytes` |
    | `str` | `str` |
    | `int`, `str_int` | `int` |
    | `str_float`, `str_decimal` | `float`, `decimal.Decimal` |
    | `uint8`, ..., `float64` | a scalar of numpy's |
    | `ndarray` | an array of numpy's in the memory of the batch, not copied |
    | `json` | what `json.loads` makes of it |
    | `pkl` | refused, unless `allow_pickle` is set |

    Args:
        columns: The columns, in the order of their bytes.
        allow_pickle: Whether `pkl` is decoded: that runs what the bytes say as code.
        decoders: Functions that make values of a `memoryview` of bytes in the batch, by name of the
            column; they come before the table. An image: `{"image": lambda data: Image.open(io.BytesIO(data))}`.

    Raises:
        FormatError: the encoding of a column is not known or not allowed.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        allow_pickle: bool = False,
        decoders: Mapping[str, Decode] | None = None,
    ) -> None:
        given = dict(decoders or {})
        self.columns = tuple(columns)
        self._allow_pickle, self._given = allow_pickle, given
        self._decoders = [
            given[column.name] if column.name in given else _decoder(column, allow_pickle)
            for column in self.columns
        ]
        self._variable = sum(column.size is None for column in self.columns)

    @classmethod
    def of(
        cls,
        source: Source,
        shard: str | int = "index.json",
        *,
        allow_pickle: bool = False,
        decoders: Mapping[str, Decode] | None = None,
    ) -> Decoder:
        """Reads the columns from the `index.json` of a source.

        Raises:
            FileNotFoundError: there is no such shard.
            FormatError: it is none, or its shards have different columns.
        """
        found = {shard.columns for shard in MdsIndex.read(source, shard).shards}
        if len(found) != 1:
            raise FormatError(f"index.json has shards of {len(found)} different sets of columns")
        return cls(found.pop(), allow_pickle=allow_pickle, decoders=decoders)

    def decode(self, data: memoryview) -> dict[str, Any]:
        """One sample: the lengths of values that have no fixed one, and the values."""
        at = 4 * self._variable
        if len(data) < at:
            raise SampleError(f"{len(data)} bytes, too few for {self._variable} lengths")
        lengths = iter(np.frombuffer(data[:at], "<u4").tolist())
        sample = {}
        for column, decoder in zip(self.columns, self._decoders, strict=True):
            length = next(lengths) if column.size is None else column.size
            if length > len(data) - at:
                raise SampleError(
                    f"column {column.name!r} has {length} bytes, and {len(data) - at} are left", at
                )
            try:
                sample[column.name] = picklable(decoder(data[at : at + length]))
            except SampleError as error:
                raise SampleError(f"column {column.name!r}: {error}", at + error.at) from None
            except Exception as error:
                message = f"column {column.name!r} of {column.encoding}: {error}"
                raise SampleError(message, at) from error
            at += length
        if at != len(data):
            raise SampleError(f"{len(data) - at} bytes behind the last column", at)
        return sample

    def __reduce__(self) -> tuple[object, ...]:
        return _decoder_of, (self.columns, self._allow_pickle, self._given)


def _decoder_of(
    columns: tuple[Column, ...], allow_pickle: bool, decoders: dict[str, Decode]
) -> Decoder:
    return Decoder(columns, allow_pickle=allow_pickle, decoders=decoders)


def _shard(shard: dict[str, Any]) -> MdsShard:
    if shard["format"] != "mds":
        raise FormatError(f"index.json: a shard of format {shard['format']!r}, not 'mds'")
    if shard.get("compression") is not None or shard.get("zip_data") is not None:
        raise FormatError("a compressed shard of MDS: write the data set with compression=None")
    names, encodings = shard["column_names"], shard["column_encodings"]
    columns = zip(names, encodings, shard["column_sizes"], strict=True)
    file = shard["raw_data"]
    basename = file["basename"]
    if "\\" in basename or any(part == "" or part.startswith(".") for part in basename.split("/")):
        raise FormatError(f"index.json names {basename!r}, which is no file beside or below it")
    return MdsShard(
        basename, int(file["bytes"]), int(shard["samples"]), tuple(Column(*c) for c in columns)
    )


def _decoder(column: Column, allow_pickle: bool) -> Decode:
    name, _, parameters = column.encoding.partition(":")
    if name == "ndarray":
        return _array_decoder(column, parameters)
    if name in _SCALARS or name == "int":
        return _scalar_decoder(_SCALARS[name if name != "int" else "int64"], is_int=name == "int")
    if name == "pkl":
        if not allow_pickle:
            raise FormatError(
                f"column {column.name!r} is pickled, and unpickling runs what its bytes say as "
                "code: pass allow_pickle=True if you trust who wrote them, or a function in decoders"
            )
        return pickle.loads
    plain = _PLAIN.get(name)
    if plain is None:
        raise FormatError(
            f"column {column.name!r} has the encoding {column.encoding!r}, which is not known "
            "here: pass a function for it in decoders"
        )
    return plain


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _decimal(data: memoryview) -> Decimal:
    try:
        return Decimal(_text(data))
    except InvalidOperation:
        raise SampleError("not a decimal number") from None


def _same(data: memoryview) -> memoryview:
    return data


_PLAIN: dict[str, Decode] = {
    "bytes": _same,
    "jpeg": _same,
    "png": _same,
    "pil": _same,
    "str": _text,
    "str_int": lambda data: int(_text(data)),
    "str_float": lambda data: float(_text(data)),
    "str_decimal": _decimal,
    "json": lambda data: json.loads(_text(data)),
}


def _scalar_decoder(dtype: np.dtype[Any], *, is_int: bool) -> Decode:
    def decode(data: memoryview) -> Any:
        if len(data) != dtype.itemsize:
            raise SampleError(f"{len(data)} bytes, for a {dtype}")
        value = np.frombuffer(data, dtype)[0]
        return int(value) if is_int else value

    return decode


def _array_decoder(column: Column, parameters: str) -> Decode:
    """An array whose type and shape are in the encoding, or before the elements."""
    text, _, sizes = parameters.partition(":")
    try:
        fixed_dtype = _SCALARS[text] if text else None
        fixed_shape = tuple(int(size) for size in sizes.split(",")) if sizes else None
    except (KeyError, ValueError):
        raise FormatError(f"column {column.name!r}: {column.encoding!r} is no array") from None

    def decode(data: memoryview) -> Any:
        dtype, at = fixed_dtype, 0
        if dtype is None:
            dtype, at = _array_type(data), 1
        shape = fixed_shape
        if shape is None:
            shape, at = _array_shape(data, at)
        if math.prod(shape) * dtype.itemsize != len(data) - at:
            raise SampleError(f"{len(data) - at} bytes, for an array {shape} of {dtype}", at)
        return np.frombuffer(data[at:], dtype).reshape(shape)

    return decode


def _array_type(data: memoryview) -> np.dtype[Any]:
    name = _ARRAY_TYPES.get(data[0]) if len(data) else None
    if name is None:
        raise SampleError("its first byte is no type of an array")
    return _SCALARS[name]


def _array_shape(data: memoryview, at: int) -> tuple[tuple[int, ...], int]:
    """The shape at a byte, and where it ends: axes and width of the sizes in one byte, sizes."""
    if len(data) <= at:
        raise SampleError("it ends before its shape", at)
    axes, width = data[at] >> 2, 1 << (data[at] & 3)
    end = at + 1 + axes * width
    if len(data) < end:
        raise SampleError(f"it ends within its shape of {axes} axes", at)
    return tuple(np.frombuffer(data[at + 1 : end], f"<u{width}").tolist()), end
