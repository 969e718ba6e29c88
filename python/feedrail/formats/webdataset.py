"""Samples of WebDataset, and its own loader over `nvmf:` URLs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from feedrail import _core
from feedrail._errors import FormatError
from feedrail._open import open as open_source
from feedrail.formats._batch import SampleDecoder, SampleError, picklable

#: Makes a value of the bytes of a member.
Decode = Callable[[memoryview], Any]


def register() -> None:
    """Makes `webdataset.WebDataset("nvmf://...")` read shards of targets.

    Raises:
        ImportError: webdataset is not installed.
    """
    from webdataset.gopen import gopen_schemes

    gopen_schemes["nvmf"] = open_url


def open_url(url: str, mode: str = "rb", bufsize: int = 1 << 20, **_: Any) -> io.BufferedReader:
    """A shard as a file, read `bufsize` bytes at a time.

    Raises:
        ValueError: the mode is not `"rb"`.
        FileNotFoundError: there is no such shard.
    """
    if mode not in ("r", "rb"):
        raise ValueError(f"mode {mode!r}: shards are read, in mode 'rb'")
    return io.BufferedReader(open_source(url).open(0), max(bufsize, 1 << 20))


class Decoder(SampleDecoder[dict[str, Any]]):
    """Makes a dictionary of each sample, which is a piece of a tar archive: a value for each member.

    `sample["__key__"]` is the key, `sample["jpg"]` the value of the member of that extension. The
    last part of an extension tells what the value is, as in WebDataset (`seg.png` is a `png`):

    | extension | value |
    |---|---|
    | `txt`, `text`, `transcript` | `str` |
    | `cls`, `cls2`, `class`, `count`, `index`, `inx`, `id` | `int` |
    | `json`, `jsn` | what `json.loads` makes of it |
    | `npy` | an array of numpy's in the memory of the batch, not copied |
    | others | `bytes` |

    Nothing is unpickled.

    Args:
        decoders: Functions that make values of a `memoryview` of bytes in the batch, by the last
            part of the extension; they come before the table. An image: `{"jpg": lambda data: Image.open(io.BytesIO(data))}`.
    """

    def __init__(self, decoders: Mapping[str, Decode] | None = None) -> None:
        self._decoders = {**_DECODERS, **(decoders or {})}

    def decode(self, data: memoryview) -> dict[str, Any]:
        """One sample: the headers and data of its members."""
        try:
            key, members = _core.webdataset_members(data, 0, len(data))
        except FormatError as error:
            raise SampleError(str(error), error.offset or 0) from None
        sample: dict[str, Any] = {"__key__": key}
        for name, begin, length in members:
            decoder = self._decoders.get(name.rpartition(".")[2], _same)
            try:
                sample[name] = picklable(decoder(data[begin : begin + length]))
            except Exception as error:
                raise SampleError(f"member {name!r}: {error}", begin) from error
        return sample


def _same(data: memoryview) -> memoryview:
    return data


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _int(data: memoryview) -> int:
    return int(_text(data))


def _json(data: memoryview) -> Any:
    return json.loads(_text(data))


def _npy(data: memoryview) -> Any:
    """An array in place; `numpy.load` would copy it."""
    header = io.BytesIO(data[: 1 << 16])
    if npy_format.read_magic(header) == (1, 0):
        shape, is_fortran, dtype = npy_format.read_array_header_1_0(header)
    else:
        shape, is_fortran, dtype = npy_format.read_array_header_2_0(header)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which are not unpickled")
    array = np.frombuffer(data[header.tell() :], dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


_DECODERS: dict[str, Decode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _int),
    **dict.fromkeys(("json", "jsn"), _json),
    "npy": _npy,
}
