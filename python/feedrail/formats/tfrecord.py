"""Records of TensorFlow, and the `tf.train.Example` in them, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feedrail import _core
from feedrail._errors import FormatError
from feedrail.formats._batch import SampleDecoder, SampleError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEADER_BYTES = 12
_FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8

#: Kinds of values of a feature, by number of their field.
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
#: Wire types of protocol buffers.
_VARINT, _FIXED64, _CHUNK, _FIXED32 = 0, 1, 2, 5


def records(data: Buffer, *, verify: bool = True) -> Iterator[memoryview]:
    """The data of each record of a file or of a part that has whole records, as views of `data`.

    The samples of an index have no frames: this is for files that are read whole.

    Args:
        data: Bytes of whole records.
        verify: Whether the checksums of the data are compared; those of lengths always are.

    Raises:
        FormatError: a record is cut off, or a checksum is wrong; `offset` is that in `data`.
    """
    view, at = memoryview(data).cast("B"), 0
    while at < len(view):
        if len(view) - at < _HEADER_BYTES:
            raise FormatError(f"{len(view) - at} bytes behind the last record", offset=at)
        _check(view[at : at + 8], view[at + 8 : at + _HEADER_BYTES], "length", at)
        length = int.from_bytes(view[at : at + 8], "little")
        begin, end = at + _HEADER_BYTES, at + _HEADER_BYTES + length
        if end + _FOOTER_BYTES > len(view):
            raise FormatError(f"a record of {length} bytes is cut off", offset=at, length=length)
        if verify:
            _check(view[begin:end], view[end : end + _FOOTER_BYTES], "data", begin)
        yield view[begin:end]
        at = end + _FOOTER_BYTES


def masked_crc32c(data: Buffer) -> int:
    """The checksum as frames have it: CRC-32C, turned by 15 bits, plus a constant."""
    crc = _core.crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


class Decoder(SampleDecoder[dict[str, Any]]):
    """Makes a dictionary of each `tf.train.Example`, by the names of its features.

    | values | what they are |
    |---|---|
    | `bytes_list` | a list of `bytes` |
    | `float_list` | an array of `float32`, in the memory of the batch where it is packed |
    | `int64_list` | an array of `int64` |
    | none | an empty list |

    Args:
        features: Names of the features that are wanted; all if `None`. A sample without one of them
            is a `FormatError`.
    """

    def __init__(self, features: Sequence[str] | None = None) -> None:
        self.features = None if features is None else tuple(features)

    def decode(self, data: memoryview) -> dict[str, Any]:
        """One sample: the bytes of an `Example`."""
        wanted = None if self.features is None else set(self.features)
        sample: dict[str, Any] = {}
        for number, value, at in _fields(data):
            if number == 1:
                for entry, feature, begin in _fields(_chunk(value, at), at):
                    if entry == 1:
                        name, values = _entry(_chunk(feature, begin), begin, wanted)
                        if values is not None:
                            sample[name] = values
        if self.features is not None:
            missing = [name for name in self.features if name not in sample]
            if missing:
                raise SampleError(f"there is no feature {missing[0]!r}")
        return sample


def _check(data: memoryview, stored: memoryview, of: str, at: int) -> None:
    computed, expected = masked_crc32c(data), int.from_bytes(stored, "little")
    if computed != expected:
        raise FormatError(
            f"the masked CRC-32C of the {of} of a record is {computed:#010x}, but the record says "
            f"{expected:#010x}",
            offset=at,
            length=len(data),
        )


def _entry(data: memoryview, base: int, wanted: set[str] | None) -> tuple[str, Any]:
    """Name and values of a feature; no values if it is not wanted."""
    name, value, value_at = "", memoryview(b""), base
    for number, found, at in _fields(data, base):
        if number == 1:
            try:
                name = str(_chunk(found, at), "utf-8")
            except UnicodeDecodeError:
                raise SampleError("the name of a feature is not UTF-8", at) from None
        elif number == 2:
            value, value_at = _chunk(found, at), at
    if wanted is not None and name not in wanted:
        return name, None
    return name, _feature(value, value_at)


def _feature(data: memoryview, base: int) -> Any:
    """The values of a feature: of the last of its lists, joined with those of the same kind."""
    kind = 0
    parts: list[tuple[memoryview, int]] = []
    for number, found, at in _fields(data, base):
        if number in (_BYTES, _FLOATS, _INTEGERS):
            if number != kind:
                kind, parts = number, []
            parts.append((_chunk(found, at), at))
    if kind == _BYTES:
        return [bytes(value) for part, at in parts for value in _byte_strings(part, at)]
    if kind == _FLOATS:
        return _joined([array for part, at in parts for array in _floats(part, at)], "<f4")
    if kind == _INTEGERS:
        return _joined([array for part, at in parts for array in _integers(part, at)], "<i8")
    return []


def _joined(arrays: list[Any], dtype: str) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _byte_strings(data: memoryview, base: int) -> Iterator[memoryview]:
    for number, found, at in _fields(data, base):
        if number == 1:
            yield _chunk(found, at)


def _floats(data: memoryview, base: int) -> Iterator[Any]:
    for number, found, at in _fields(data, base):
        if number != 1:
            continue
        if isinstance(found, int) or len(found) % 4:
            raise SampleError("a list of floats that are not 4 bytes each", at)
        yield np.frombuffer(found, "<f4")


def _integers(data: memoryview, base: int) -> Iterator[Any]:
    for number, found, at in _fields(data, base):
        if number == 1:
            if isinstance(found, int):
                yield np.array([found], "<u8").view("<i8")
            else:
                yield _varints(found, at)


def _varints(data: memoryview, at: int) -> Any:
    """Packed numbers: seven bits in each byte, the lowest first, and the last byte below 128."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80) + 1
    if len(raw) == 0:
        return np.empty(0, "<i8")
    if len(ends) == 0 or ends[-1] != len(raw):
        raise SampleError("a list of integers is cut off", at)
    begins = np.concatenate(([0], ends[:-1]))
    lengths = ends - begins
    if int(lengths.max()) > 10:
        raise SampleError("an integer of more than 10 bytes", at)
    shifts = (np.arange(len(raw)) - np.repeat(begins, lengths)) * 7
    bits = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(bits, begins).view(np.int64)


def _chunk(value: int | memoryview, at: int) -> memoryview:
    if isinstance(value, int):
        raise SampleError("a number, where a message or a string should be", at)
    return value


def _fields(data: memoryview, base: int = 0) -> Iterator[tuple[int, int | memoryview, int]]:
    """Number, value and place of each field of a message: a number, or bytes."""
    at = 0
    while at < len(data):
        begin = at
        tag, at = _varint(data, at, base)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise SampleError("a field has number 0: this is no protocol buffer", base + begin)
        if wire == _VARINT:
            found, at = _varint(data, at, base)
            yield number, found, base + begin
            continue
        if wire == _CHUNK:
            length, at = _varint(data, at, base)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise SampleError(f"a field of wire type {wire}, which is not known", base + begin)
        if length > len(data) - at:
            raise SampleError(
                f"a field of {length} bytes, and {len(data) - at} are left", base + begin
            )
        yield number, data[at : at + length], base + at
        at += length


def _varint(data: memoryview, at: int, base: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise SampleError("a number is cut off", base + at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise SampleError("a number of more than 10 bytes", base + at)
