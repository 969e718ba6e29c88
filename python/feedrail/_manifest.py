"""Manifests: which shards a data set has, and which targets have them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feedrail import _core
from feedrail._url import SCHEME

if TYPE_CHECKING:
    from feedrail._source import Source


@dataclass(frozen=True)
class ManifestTarget:
    """A subsystem of a target.

    Attributes:
        name: The name that the manifest has for it.
        url: Where the target listens: `nvmf://host[:port]`.
        nqn: NVMe qualified name of the subsystem.
    """

    name: str
    url: str
    nqn: str


@dataclass(frozen=True)
class ManifestShard:
    """A shard, as the manifest has it.

    Attributes:
        name: Name of the file, and of its namespaces.
        nbytes: Number of bytes.
        uuid: UUID of its namespaces in hexadecimal digits, if it is the same on all targets.
        generation: The generation that all targets reported, if they did.
        crc32c: CRC-32C of all its bytes, if it was computed.
        replicas: Names of the targets that have it.
    """

    name: str
    nbytes: int
    uuid: str | None
    generation: int | None
    crc32c: int | None
    replicas: tuple[str, ...]


@dataclass(frozen=True)
class ManifestIndex:
    """The index of a data set.

    Attributes:
        file: Path from the folder of the manifest.
        hash: BLAKE3 hash of its bytes.
        samples: Number of samples.
    """

    file: str
    hash: str
    samples: int


class Manifest:
    """What `feedrail manifest` wrote: shards, the targets that have them, and the index.

    Attributes:
        text: The JSON text.
        base: The folder of the manifest, or the URL of the subsystem that exports it; `None` if
            that is not known. Its index is looked for there.
        name: Name of the data set.
        hash: BLAKE3 hash of the manifest without its hash.
        content_hash: BLAKE3 hash of what the samples follow from: names, sizes and checksums of the
            shards, and the index. It stays the same when a replica is added or moves.
        targets: The targets, in the order of their names.
        shards: The shards, in the order in which samples count them.
        index: The index, if there is one.
    """

    def __init__(self, text: str | bytes, base: str | os.PathLike[str] | None = None) -> None:
        """Reads the text of a manifest.

        Raises:
            ValueError: it is no manifest, its parts do not fit together, or its hash is wrong.
        """
        encoded = text.encode() if isinstance(text, str) else text
        self._core = _core.Manifest(encoded)
        self.text = encoded.decode()
        self.base = None if base is None else os.fspath(base)
        self.name = self._core.name
        self.hash = self._core.hash
        self.content_hash = self._core.content_hash
        self.targets = tuple(ManifestTarget(*target) for target in self._core.targets())
        names = [target.name for target in self.targets]
        self.shards = tuple(
            ManifestShard(**{**shard, "replicas": tuple(names[it] for it in shard["replicas"])})
            for shard in self._core.shards()
        )
        index = self._core.index()
        self.index = None if index is None else ManifestIndex(*index)

    @classmethod
    def load(cls, path: str | os.PathLike[str], /, **options: Any) -> Manifest:
        """Reads a manifest from a file, or from the namespace that exports it.

        Args:
            path: A path, or `nvmf://host[:port]/<nqn>/<name or nsid:N>`.
            options: For a namespace: how to connect, as `feedrail.open` takes it.

        Raises:
            ValueError: it is no manifest, its parts do not fit together, or its hash is wrong.
            OSError: it cannot be read; `TargetLost` if nothing answers at the address.
        """
        text = os.fspath(path)
        if not text.startswith(f"{SCHEME}:"):
            with open(text, "rb") as file:
                return cls._named(text, file.read(), os.path.dirname(os.path.abspath(text)))
        if options.get("replicas") is not None:
            raise TypeError("replicas= is for feedrail.open: a namespace is read here")
        from feedrail._open import open as open_source

        with open_source(text, **options) as source:
            if len(source.shards) != 1:
                raise ValueError(f"{text}: add /<name or nsid:N>, as in {text.rstrip('/')}/manifest.json")
            return cls._named(text, _whole(source, 0), text.rpartition("/")[0])

    @classmethod
    def _named(cls, path: str, text: bytes, base: str) -> Manifest:
        try:
            return cls(text, base)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def read_index(self, /, **options: Any) -> bytes:
        """The bytes of the index, which are those that the manifest names.

        Args:
            options: Where the manifest is a namespace: how to connect, as `feedrail.open` takes it.

        Raises:
            ValueError: the manifest has no index, or it is not known where the manifest is.
            ChecksumError: the bytes are not those of the index that the manifest names.
            OSError: the index cannot be read.
        """
        from feedrail._errors import ChecksumError

        if self.index is None:
            raise ValueError(f"manifest {self.name} has no index: write one with `feedrail index`")
        if self.base is None:
            raise ValueError("the index is beside the manifest: give Manifest its `base`, or use load")
        if self.base.startswith(f"{SCHEME}:"):
            from feedrail._open import open as open_source

            with open_source(f"{self.base}/{_quoted(self.index.file)}", **options) as source:
                data = _whole(source, 0)
        else:
            with open(os.path.join(self.base, *self.index.file.split("/")), "rb") as file:
                data = file.read()
        try:
            self._core.check_index(data)
        except ValueError as error:
            raise ChecksumError(f"{self.index.file}: {error}") from error
        return data

    def __reduce__(self) -> tuple[object, ...]:
        return Manifest, (self.text, self.base)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and (self.text, self.base) == (other.text, other.base)

    def __hash__(self) -> int:
        return hash((self.text, self.base))

    def __repr__(self) -> str:
        return (
            f"<feedrail.Manifest {self.name}: {len(self.shards)} shards, {len(self.targets)} targets>"
        )


def _quoted(file: str) -> str:
    from urllib.parse import quote

    return quote(file)


def _whole(source: Source, shard: int) -> bytes:
    with source.open(shard) as file:
        return file.pread(file.size, 0)
