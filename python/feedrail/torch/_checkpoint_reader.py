"""Reading checkpoints of `torch.distributed.checkpoint` from checkpoint volumes."""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from feedrail._checkpoints import Checkpoint, CheckpointStore, as_urls
from feedrail._errors import FormatError, NotFound
from feedrail.torch._checkpoint import (
    METADATA,
    PART_BYTES,
    CheckpointWriter,
    Place,
    as_bytes,
    is_plain,
)
from feedrail.torch._shared_chunks import (
    Offer,
    OfferedMemory,
    SharedChunks,
    Sharing,
    Wanted,
    plan_sharing,
)

if TYPE_CHECKING:
    import os

    from feedrail._checkpoint_stats import CheckpointStats
    from feedrail._checkpoints import Urls


class CheckpointReader(StorageReader):
    """Reads checkpoints that `CheckpointWriter` wrote, by any number of ranks.

    A rank reads the rows that it needs; of a tensor that is sharded by columns it reads whole rows,
    unless a row is longer than a unit of the volume, 1 MiB. All checksums are compared.

    As with torch's own readers, the structure of a checkpoint is a pickle: load checkpoints of
    volumes that you trust.
    """

    def __init__(
        self, urls: Urls, name: str | None = None, *, share: bool = True, **options: Any
    ) -> None:
        """Connects to nothing yet.

        Args:
            urls: As for `feedrail.CheckpointStore`.
            name: Name of the checkpoint, if `checkpoint_id` does not say it; the latest if `None`.
                Where another job may commit between, give the name, so that ranks agree.
            share: Read what several ranks of a machine need once, and copy it through 64 MiB of
                shared memory.
            options: As for `CheckpointStore`.
        """
        super().__init__()
        self._urls, self._name, self._options = urls, name, options
        self._share = share
        self._offered: OfferedMemory | None = None
        self._store: CheckpointStore | None = None
        self._checkpoint: Checkpoint | None = None
        self._metadata: Metadata | None = None
        #: What this rank read in its last load; `None` before.
        self.last_load: CheckpointStats | None = None
        # Types and sizes of what was saved, by name and offset.
        self._chunks: dict[tuple[str, torch.Size | None], tuple[torch.dtype, list[int]]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Sets the name of the checkpoint."""
        self._close()
        if checkpoint_id is not None:
            self._name = str(checkpoint_id)

    @property
    def checkpoint_id(self) -> str | None:
        """Name of the checkpoint; `None` if it is the latest."""
        return self._name

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint can have this name."""
        return CheckpointWriter.validate_checkpoint_id(checkpoint_id)

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Called on all ranks first. With an argument `kwargs`, torch would call it once more on a rank
        where it fails, and that rank would leave the collectives of the others if it succeeds then.

        Raises:
            NotFound: there is no such checkpoint.
            FormatError: `CheckpointWriter` did not write it.
        """
        self._close()
        self._store = CheckpointStore(self._urls, mode="r", **self._options)
        checkpoint = self._store.latest() if self._name is None else self._store[self._name]
        if METADATA not in checkpoint.entries:
            raise FormatError(f"{checkpoint.name!r} has no entry {METADATA!r}: read it by CheckpointStore")
        metadata = pickle.loads(checkpoint.read(METADATA))
        if not isinstance(metadata, Metadata):
            raise FormatError(f"the entry {METADATA!r} of {checkpoint.name!r} is no metadata of torch")
        self._checkpoint = checkpoint
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Called on all ranks."""
        self._metadata = metadata
        self._chunks = {}
        for name, saved in metadata.state_dict_metadata.items():
            for chunk in getattr(saved, "chunks", ()):
                found = saved.properties.dtype, list(chunk.sizes)
                self._chunks[name, chunk.offsets] = found
                self._chunks.setdefault((name, None), found)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Called on all ranks: offers memory to the others."""
        checkpoint, store = self._checkpoint, self._store
        if not self._share or checkpoint is None or store is None:
            return plan
        identity = store.summary["uuid"], checkpoint.name, checkpoint.created.isoformat()
        try:
            self._offered = OfferedMemory(identity)
        except OSError:
            return plan
        return replace(plan, storage_data=self._offered.offer)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Called on the coordinator: decides what ranks share."""
        offers = [plan.storage_data if isinstance(plan.storage_data, Offer) else None for plan in plans]
        places = [offer.place for offer in offers if offer is not None]
        if self._checkpoint is None or len(set(places)) == len(places):
            return plans
        wanted = [[self._wanted(item) for item in plan.items] for plan in plans]
        sharing = plan_sharing(offers, wanted, self._checkpoint.entries)
        return [replace(plan, storage_data=one) for plan, one in zip(plans, sharing, strict=True)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Called on all ranks: reads what the plan has into tensors, in the order of the bytes.

        Raises:
            Damaged: bytes do not have their checksum.
        """
        if self._checkpoint is None or self._metadata is None:
            raise NotFound("no checkpoint is open: torch calls read_metadata first")
        located = [(self._place(item.storage_index), item) for item in plan.items]
        located.sort(key=lambda pair: (pair[0].entry, pair[0].offset, tuple(pair[1].storage_offsets)))
        shared = self._shared_chunks(plan.storage_data)
        bytes_of = _EntryBytes(self._checkpoint, self._unit_bytes(), shared)
        try:
            for place, item in located:
                if item.type == LoadItemType.BYTE_IO:
                    content = bytearray(place.length)
                    bytes_of.read(place.entry, place.offset, memoryview(content))
                    planner.load_bytes(item, io.BytesIO(content))
                else:
                    self._read_tensor(item, planner, bytes_of)
        finally:
            if shared is not None:
                shared.close()
        if self._store is not None:
            self.last_load = self._store.stats()
        self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def __repr__(self) -> str:
        return f"<feedrail.torch.CheckpointReader {', '.join(as_urls(self._urls))}: {self._name}>"

    def _shared_chunks(self, sharing: Any) -> SharedChunks | None:
        if not isinstance(sharing, Sharing) or self._checkpoint is None:
            return None
        try:
            return SharedChunks(sharing, self._checkpoint.entries)
        except OSError:
            return None

    def _read_tensor(self, item: ReadItem, planner: LoadPlanner, bytes_of: _EntryBytes) -> None:
        target = planner.resolve_tensor(item).detach()
        block = self._block(item)
        if list(target.shape) != block.lengths:
            raise ValueError(f"{item.storage_index.fqn}: {block.lengths} into {list(target.shape)}")
        if target.numel() > 0:
            _read_block(target, block, bytes_of)
        planner.commit_tensor(item, target)

    def _place(self, index: MetadataIndex) -> Place:
        assert self._metadata is not None
        place: Place = self._metadata.storage_data[index]
        return place

    def _block(self, item: ReadItem) -> _Block:
        """What an item of a tensor is made of."""
        place, index = self._place(item.storage_index), item.storage_index
        try:
            dtype, sizes = self._chunks[index.fqn, index.offset]
        except KeyError:
            raise FormatError(f"{index.fqn} has no chunk at {index.offset}") from None
        return _Block(
            place.entry, place.offset, dtype, sizes, list(item.storage_offsets), list(item.lengths)
        )

    def _wanted(self, item: ReadItem) -> Wanted:
        """Bytes that an item is in."""
        if item.type == LoadItemType.BYTE_IO:
            place = self._place(item.storage_index)
            return Wanted(place.entry, place.offset, place.length)
        block = self._block(item)
        return Wanted(block.entry, *block.rows)

    def _unit_bytes(self) -> int:
        assert self._store is not None
        return int(self._store.summary["unit_bytes"])

    def _close(self) -> None:
        store, self._store, self._checkpoint = self._store, None, None
        if store is not None:
            store.close()
        offered, self._offered = self._offered, None
        if offered is not None:
            offered.close()


@dataclass(frozen=True)
class _Block:
    """Elements from `firsts` on, `lengths` of them, of a tensor that begins at a byte of an entry."""

    entry: str
    begin: int
    dtype: torch.dtype
    sizes: list[int]
    firsts: list[int]
    lengths: list[int]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the tensor that was saved."""
        return math.prod(self.sizes[1:]) * self.dtype.itemsize

    @property
    def rows(self) -> tuple[int, int]:
        """First byte and number of bytes of the rows with the elements."""
        count = self.lengths[0] if self.lengths else 1
        return self.begin + sum(self.firsts[:1]) * self.row_bytes, count * self.row_bytes

    def row(self, number: int) -> _Block:
        """Its elements in a row."""
        begin = self.begin + (self.firsts[0] + number) * self.row_bytes
        parts = self.sizes[1:], self.firsts[1:], self.lengths[1:]
        return _Block(self.entry, begin, self.dtype, *parts)


def _read_block(target: torch.Tensor, block: _Block, bytes_of: _EntryBytes) -> None:
    """Reads elements into a tensor of their shape: whole rows, unless these are long."""
    begin, nbytes = block.rows
    is_whole = block.lengths[1:] == block.sizes[1:]
    longest = PART_BYTES if is_whole else bytes_of.unit_bytes
    if is_whole and target.dtype == block.dtype and is_plain(target):
        bytes_of.read(block.entry, begin, _memory(target))
    elif block.row_bytes > longest and len(block.sizes) > 1:
        for number in range(block.lengths[0]):
            _read_block(target[number], block.row(number), bytes_of)
    elif not block.sizes:
        part = torch.empty(1, dtype=block.dtype)
        bytes_of.read(block.entry, begin, _memory(part))
        target.copy_(part[0])
    else:
        columns = [slice(at, at + n) for at, n in zip(block.firsts[1:], block.lengths[1:], strict=True)]
        step = max(PART_BYTES // block.row_bytes, 1)
        for row in range(0, block.lengths[0], step):
            rows = min(step, block.lengths[0] - row)
            part = torch.empty([rows, *block.sizes[1:]], dtype=block.dtype)
            bytes_of.read(block.entry, begin + row * block.row_bytes, _memory(part))
            target[row : row + rows].copy_(part[(slice(None), *columns)])


def _memory(tensor: torch.Tensor) -> memoryview:
    """The memory of a plain tensor as bytes."""
    return memoryview(as_bytes(tensor).numpy())


class _EntryBytes:
    """Reads of a checkpoint, in the order of the bytes.

    A unit is read as a whole to compare its checksum, so that the last is kept for small tensors.
    """

    def __init__(
        self, checkpoint: Checkpoint, unit_bytes: int, shared: SharedChunks | None
    ) -> None:
        self._checkpoint, self.unit_bytes, self._shared = checkpoint, unit_bytes, shared
        self._entry = ""
        self._first = 0
        self._unit = memoryview(b"")

    def read(self, entry: str, offset: int, into: memoryview) -> None:
        """Reads bytes from `offset` on."""
        if self._shared is None:
            self._read_alone(entry, offset, into)
        else:
            self._shared.read(entry, offset, into, self._read_alone)

    def _read_alone(self, entry: str, offset: int, into: memoryview) -> None:
        if len(into) >= self.unit_bytes:
            self._checkpoint.read(entry, offset, len(into), into)
            return
        at = 0
        while at < len(into):
            self._load(entry, offset + at)
            start = offset + at - self._first
            part = self._unit[start : start + len(into) - at]
            into[at : at + len(part)] = part
            at += len(part)

    def _load(self, entry: str, offset: int) -> None:
        first = offset - offset % self.unit_bytes
        if entry == self._entry and first == self._first and len(self._unit) > 0:
            return
        length = min(self.unit_bytes, self._checkpoint.entries[entry] - first)
        if length <= offset - first:
            raise FormatError(f"the metadata names bytes from {offset} of {entry!r}, which ends before")
        unit = bytearray(length)
        self._checkpoint.read(entry, first, length, unit)
        self._entry, self._first, self._unit = entry, first, memoryview(unit)
