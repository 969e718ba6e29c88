"""The tensors of files, as their headers have them."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from feedrail import _core
from feedrail._errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from feedrail._source import Source
    from feedrail.formats.safetensors._entries import EntrySource

#: Longest index of a checkpoint of several files: 64 MiB have a million tensors.
_INDEX_BYTES = 64 << 20
_INDEX_SUFFIX = ".safetensors.index.json"


class FileTensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        shard: Number of the shard that is the file.
        name: Name in the file.
        dtype: Type of its values as the format names it.
        shape: Number of values in each dimension.
        offset: First byte in the shard.
        nbytes: Number of bytes.
    """

    shard: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def tensors_of(
    source: Source | EntrySource, shard: str | int | Sequence[str | int]
) -> list[FileTensor]:
    """The tensors of one file or several, by name or number, in the order of their bytes.

    Raises:
        FormatError: a file is not what its format says, or two have a tensor of the same name.
        NotFound: there is no such shard.
    """
    shards = [shard] if isinstance(shard, str | int) else shard
    found: dict[str, FileTensor] = {}
    for one in shards:
        if isinstance(one, str) and one.endswith(_INDEX_SUFFIX):
            _add(found, _tensors_of_index(source, one))
        else:
            _add(found, _tensors_of_file(source, source.shards.number(one)))
    return list(found.values())


def _add(found: dict[str, FileTensor], tensors: Iterable[FileTensor]) -> None:
    for tensor in tensors:
        if found.setdefault(tensor.name, tensor) is not tensor:
            raise FormatError(f"two files have a tensor {tensor.name!r}", shard=tensor.shard)


def _tensors_of_file(source: Source | EntrySource, number: int) -> list[FileTensor]:
    with source.open(number) as file:
        read = lambda offset, length: file.pread(length, offset)  # noqa: E731
        found = _core.safetensors_tensors(number, source.shards[number].nbytes, read)
    return [
        FileTensor(number, name, dtype, tuple(shape), offset, nbytes)
        for name, dtype, shape, offset, nbytes in found
    ]


def _tensors_of_index(source: Source | EntrySource, index: str) -> list[FileTensor]:
    """The tensors of the files that an index of Hugging Face's lists, in the order of their names.

    Raises:
        FormatError: it is no index, or a tensor is not in the file that it names.
        NotFound: a file is not there.
    """
    number = source.shards.number(index)
    files = _weight_map(source, number)
    folder = posixpath.dirname(index)
    found: dict[str, FileTensor] = {}
    for file in sorted(set(files.values())):
        tensors = _tensors_of_file(source, source.shards.number(posixpath.join(folder, file)))
        _add(found, tensors)
        there = {tensor.name for tensor in tensors}
        missing = [name for name, where in files.items() if where == file and name not in there]
        if missing:
            raise FormatError(f"{index} has tensor {missing[0]!r} in {file}, which has none", shard=number)
    return list(found.values())


def _weight_map(source: Source | EntrySource, number: int) -> dict[str, str]:
    """The files of an index by the names of their tensors."""
    nbytes, name = source.shards[number].nbytes, source.shards[number].name
    if nbytes > _INDEX_BYTES:
        raise FormatError(f"{name} has {nbytes} bytes: an index has at most {_INDEX_BYTES}", shard=number)
    with source.open(number) as file:
        text = file.pread(nbytes, 0)
    try:
        files = json.loads(text)["weight_map"]
        if all(isinstance(file, str) for file in files.values()):
            return dict(files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise FormatError(f"{name} has no weight_map of file names, as an index has", shard=number)
