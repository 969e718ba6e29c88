"""The shards of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

from feedrail._errors import NotFound

if TYPE_CHECKING:
    from feedrail import _core
    from feedrail._manifest import Manifest


@dataclass(frozen=True)
class Replica:
    """A shard on a target of a manifest.

    Attributes:
        target: Name of the target in the manifest.
        state: `"used"`: it is read from. `"away"`: the target has no connection, and is used when it
            has. `"out"`: its bytes are not those of the shard, and it is no longer read from.
        reason: Why it is not read from.
        generation: A number that differs when the bytes may differ, if the target told one.
    """

    target: str
    state: Literal["used", "away", "out"]
    reason: str | None
    generation: int | None


class Replicas:
    """The replicas of all shards of a manifest, as this process sees them.

    It can be pickled: another process compares the generations with what it finds.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._numbers = {target.name: number for number, target in enumerate(manifest.targets)}
        self._seen: list[tuple[Replica, ...]] = []
        self._session: _core.Session | None = None

    def attach(self, session: _core.Session, shards: int) -> None:
        """The session has opened the manifest."""
        self._seen = [_of(session, shard) for shard in range(shards)]
        self._session = session

    def detach(self) -> None:
        """The session is gone, or belongs to another process."""
        self._session = None

    def of(self, shard: int) -> tuple[Replica, ...]:
        """The replicas of a shard, in the order of the manifest."""
        session = self._session
        if session is not None:
            self._seen[shard] = _of(session, shard)
        return self._seen[shard]

    def known(self) -> list[list[tuple[int, int]]]:
        """The generations of each shard that were seen, by the number of the target."""
        return [
            [(self._numbers[it.target], it.generation) for it in replicas if it.generation is not None]
            for replicas in self._seen
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_session": None}


def _of(session: _core.Session, shard: int) -> tuple[Replica, ...]:
    return tuple(Replica(*replica) for replica in session.replicas(shard))


@dataclass(frozen=True)
class Shard:
    """A namespace, as its target described it when it was opened.

    Attributes:
        name: Name of the file behind it; its number in digits if the target tells no name.
        nbytes: Number of bytes that can be read.
        nsid: Namespace identifier in its subsystem; 0 for a shard of a manifest, whose replicas may
            have different ones.
        uuid: Its UUID as text, if it has one.
        generation: A number that differs when the bytes may differ, if the target tells. Writes
            through the target leave it as it is.
        writable: Whether the target let hosts write it; false for a shard of a manifest or a file.
    """

    name: str
    nbytes: int
    nsid: int
    uuid: str | None
    generation: int | None
    _number: int = field(default=0, compare=False, repr=False)
    _replicas: Replicas | None = field(default=None, compare=False, repr=False)
    writable: bool = field(default=False, compare=False)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Its replicas as they are now, in the order of the manifest; none without a manifest."""
        return () if self._replicas is None else self._replicas.of(self._number)

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
            writable=properties["writable"],
        )


class Shards(Sequence[Shard]):
    """The shards of a source, by number (`shards[0]`) and by name (`shards["train.bin"]`)."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._all = tuple(shards)
        self._numbers: dict[str, int] = {}
        for number, shard in enumerate(self._all):
            self._numbers.setdefault(shard.name, number)

    def number(self, shard: str | int) -> int:
        """The number of the (first) shard of a name; a number is checked.

        Raises:
            NotFound: there is no such shard.
        """
        if isinstance(shard, str):
            found = self._numbers.get(shard)
        else:
            found = shard if 0 <= shard < len(self._all) else None
        if found is None:
            raise NotFound(f"no shard {shard!r} among {len(self._all)}")
        return found

    @classmethod
    def of_manifest(cls, manifest: Manifest, replicas: Replicas) -> Shards:
        """The shards of a manifest."""
        shards = enumerate(manifest.shards)
        return cls(
            [
                Shard(it.name, it.nbytes, 0, it.uuid, it.generation, number, replicas)
                for number, it in shards
            ]
        )

    @property
    def hash(self) -> str:
        """A hash of names, sizes, identities and generations."""
        digest = hashlib.blake2b(digest_size=32)
        for shard in self._all:
            digest.update(repr((shard.name, shard.nbytes, shard.uuid, shard.generation)).encode())
        return f"blake2b:{digest.hexdigest()}"

    @overload
    def __getitem__(self, index: int | str) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Shard]: ...
    def __getitem__(self, index: int | str | slice) -> Shard | Sequence[Shard]:
        return self._all[self.number(index) if isinstance(index, str) else index]

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shards) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"Shards({list(self._all)!r})"
