"""The shards of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload


@dataclass(frozen=True)
class Shard:
    """A namespace, as its target described it when it was opened.

    Attributes:
        name: Name of the file behind it; its number in digits if the target tells no name.
        nbytes: Number of bytes that can be read.
        nsid: Namespace identifier in its subsystem.
        uuid: Its UUID as text, if it has one.
        generation: A number that differs when the bytes may differ, if the target tells.
    """

    name: str
    nbytes: int
    nsid: int
    uuid: str | None
    generation: int | None

    @classmethod
    def of(cls, properties: dict[str, Any]) -> Shard:
        """A shard with the properties that `_core.Session.open` returned."""
        nsid, uuid = properties["nsid"], properties["uuid"]
        return cls(
            name=properties["name"] or str(nsid),
            nbytes=properties["nbytes"],
            nsid=nsid,
            uuid=None if uuid is None else bytes(uuid).hex(),
            generation=properties["generation"],
        )


class Shards(Sequence[Shard]):
    """The shards of a source, by number; names can be looked up."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._all = tuple(shards)
        self._numbers: dict[str, int] = {}
        for number, shard in enumerate(self._all):
            self._numbers.setdefault(shard.name, number)

    def number(self, shard: str | int) -> int:
        """The number of the (first) shard of a name; a number is checked.

        Raises:
            FileNotFoundError: there is no such shard.
        """
        if isinstance(shard, str):
            found = self._numbers.get(shard)
        else:
            found = shard if 0 <= shard < len(self._all) else None
        if found is None:
            raise FileNotFoundError(f"no shard {shard!r} among {len(self._all)}")
        return found

    @property
    def hash(self) -> str:
        """A hash of names, sizes, identities and generations."""
        digest = hashlib.blake2b(digest_size=32)
        for shard in self._all:
            digest.update(repr((shard.name, shard.nbytes, shard.uuid, shard.generation)).encode())
        return f"blake2b:{digest.hexdigest()}"

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | Sequence[Shard]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shards) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"Shards({list(self._all)!r})"
