"""Keys and members of the samples of an index."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

#: The arrays of the file, and their types.
_ARRAYS = {
    "key_offsets": "<i8",
    "key_bytes": "|u1",
    "member_rows": "<i8",
    "member_name": "<u4",
    "member_begin": "<u8",
    "member_length": "<u8",
    "name_offsets": "<i8",
    "name_bytes": "|u1",
}


class Keys:
    """The key of each sample, and the ranges of its members: `keys.npz`.

    Keys are those of WebDataset, and names of tensors and arrays. Members are those of a tar archive
    by extension, and the column chunks of a row group by the path of the column. Other formats have
    neither: their keys are empty.

    `keys[i]` is the key of sample `i`, `keys.members(i)` its members, and `keys.find(key)` the
    number of a sample.

    Raises:
        ValueError: the arrays are not those of one file.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        for name, dtype in _ARRAYS.items():
            found = arrays.get(name)
            if found is None or found.dtype != np.dtype(dtype) or found.ndim != 1:
                raise ValueError(f"no keys of samples: array {name!r} of {dtype} is missing")
        self._arrays = {name: arrays[name] for name in _ARRAYS}
        rows = len(arrays["member_name"])
        _check("key_offsets", arrays["key_offsets"], len(arrays["key_bytes"]))
        _check("name_offsets", arrays["name_offsets"], len(arrays["name_bytes"]))
        _check("member_rows", arrays["member_rows"], rows)
        if len(arrays["key_offsets"]) != len(arrays["member_rows"]):
            raise ValueError("no keys of samples: there are more keys than samples, or fewer")
        if rows and int(arrays["member_name"].max()) >= len(arrays["name_offsets"]) - 1:
            raise ValueError("no keys of samples: a member has a name that is not there")
        if not rows == len(arrays["member_begin"]) == len(arrays["member_length"]):
            raise ValueError("no keys of samples: members lack a begin or a length")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Keys:
        """Reads a `keys.npz` that `save` or `feedrail index --keys` wrote.

        Raises:
            ValueError: it is none.
        """
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError(f"{path}: an array, and no archive of arrays")
            return cls({name: file[name] for name in _ARRAYS if name in file})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a `keys.npz`, which has the ending `.npz`."""
        arrays: dict[str, Any] = self._arrays
        np.savez(path, **arrays)

    def members(self, i: int) -> dict[str, tuple[int, int]]:
        """First byte in the shard, and number of bytes, of each member of a sample, by its name.

        Raises:
            IndexError: there is no such sample.
        """
        begin, end = self._bounds("member_rows", i)
        names = (self._names[number] for number in self._arrays["member_name"][begin:end])
        begins = self._arrays["member_begin"][begin:end].tolist()
        lengths = self._arrays["member_length"][begin:end].tolist()
        return dict(zip(names, zip(begins, lengths, strict=True), strict=True))

    def find(self, key: str) -> int:
        """The number of the first sample with a key.

        Raises:
            KeyError: no sample has the key.
        """
        return self._numbers[key]

    def to_arrow(self) -> Any:
        """A table of pyarrow's, for Parquet: `key`, and `members` of `name`, `begin`, `length`.

        Raises:
            ImportError: pyarrow is not installed.
        """
        import pyarrow as pa

        arrays = self._arrays
        names = pa.array(self._names, pa.string())
        members = pa.StructArray.from_arrays(
            [
                pa.DictionaryArray.from_arrays(arrays["member_name"].astype(np.int32), names),
                pa.array(arrays["member_begin"]),
                pa.array(arrays["member_length"]),
            ],
            ["name", "begin", "length"],
        )
        keys = pa.LargeStringArray.from_buffers(
            len(self), pa.py_buffer(arrays["key_offsets"]), pa.py_buffer(arrays["key_bytes"])
        )
        of_samples = pa.LargeListArray.from_arrays(pa.array(arrays["member_rows"]), members)
        return pa.table({"key": keys, "members": of_samples})

    def __len__(self) -> int:
        return len(self._arrays["key_offsets"]) - 1

    def __getitem__(self, i: int) -> str:
        begin, end = self._bounds("key_offsets", i)
        return self._arrays["key_bytes"][begin:end].tobytes().decode()

    def _bounds(self, offsets: str, i: int) -> tuple[int, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        begin, end = self._arrays[offsets][i % len(self) :][:2].tolist()
        return begin, end

    @cached_property
    def _names(self) -> list[str]:
        text = self._arrays["name_bytes"].tobytes()
        offsets = self._arrays["name_offsets"].tolist()
        return [text[begin:end].decode() for begin, end in zip(offsets, offsets[1:], strict=False)]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {self[i]: i for i in reversed(range(len(self)))}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and all(
            np.array_equal(self._arrays[name], other._arrays[name]) for name in _ARRAYS
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return Keys, (self._arrays,)

    def __repr__(self) -> str:
        return f"<feedrail.index.Keys: of {len(self)} samples>"


def _check(name: str, offsets: NDArray[Any], end: int) -> None:
    """Offsets begin at 0, rise, and end at the end."""
    if (
        len(offsets) == 0
        or int(offsets[0]) != 0
        or int(offsets[-1]) != end
        or bool((offsets[1:] < offsets[:-1]).any())
    ):
        raise ValueError(f"no keys of samples: {name} does not rise from 0 to {end}")
