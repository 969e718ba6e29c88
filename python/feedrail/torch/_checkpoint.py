"""Checkpoints of `torch.distributed.checkpoint` on checkpoint volumes."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import re
import threading
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from feedrail import _core
from feedrail._checkpoint_errors import SaveFailed
from feedrail._checkpoints import Checkpoint, CheckpointStore, as_urls, connection_options
from feedrail._errors import FeedrailError, FormatError, NotFound

if TYPE_CHECKING:
    import os

    from feedrail._checkpoints import CheckpointSave, Urls

#: Entry with the pickled `Metadata`, as torch's own writers name their file.
_METADATA = ".metadata"
#: Entry with what are no tensors, of all ranks.
_OBJECTS = "objects"
#: The result of a rank itself, among those of its items.
_RANK = MetadataIndex("feedrail.rank")
#: Largest part that is read by one call where a rank needs some columns only.
_PART_BYTES = 16 << 20


@dataclass(frozen=True)
class Place:
    """Bytes of an item in an entry of the checkpoint."""

    entry: str
    offset: int
    length: int


@dataclass(frozen=True)
class _RankSpace:
    """What the coordinator gives a rank: where its tensors lie in its entry, and the reservation."""

    entry: str
    offsets: tuple[int, ...]
    reservation: str | None


@dataclass(frozen=True)
class _RankWritten:
    """What a rank gives the coordinator: the result of its writer."""

    entry: str
    written: str


class CheckpointWriter(StorageWriter):
    """Writes checkpoints of `torch.distributed.checkpoint` to a checkpoint volume.

    Each rank writes its tensors itself, to space that the coordinator has reserved for it; the
    coordinator, which has the lease of the volume, commits when all ranks have flushed. A checkpoint
    is there as a whole, or not at all. `checkpoint_id` is the name of the checkpoint.

    A save that fails on any rank is not committed. If ranks may still be writing then, the next
    writer waits until the lease has ended, at most `lease` and 30 seconds later.
    """

    def __init__(
        self,
        urls: Urls,
        name: str | None = None,
        *,
        step: int | None = None,
        metadata: Any = None,
        keep: int | None = None,
        wait: float = 120.0,
        **options: Any,
    ) -> None:
        """Connects to nothing yet.

        Args:
            urls: As for `feedrail.CheckpointStore`; the same on all ranks.
            name: Name of the checkpoint, if `checkpoint_id` does not say it.
            step: Training step; the number at the end of the name, or 0, if `None`.
            metadata: As for `CheckpointStore.begin`.
            keep: The commit deletes all checkpoints but the last `keep`.
            wait: Seconds to wait for the end of another writer's lease.
            options: As for `CheckpointStore`.
        """
        super().__init__()
        self._urls, self._name = urls, name
        self._step, self._metadata, self._keep = step, metadata, keep
        self._store_options = {"wait": wait, **options}
        self._is_coordinator = False
        self._saving: _Saving | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Sets the name of the next checkpoint."""
        if checkpoint_id is not None:
            self._name = str(checkpoint_id)

    @property
    def checkpoint_id(self) -> str | None:
        """Name of the checkpoint."""
        return self._name

    def storage_meta(self) -> StorageMeta | None:
        """Name of the checkpoint, for planners."""
        return StorageMeta(checkpoint_id=self._name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint can have this name."""
        return re.fullmatch(r"[^/\x00-\x1f\x7f]+", str(checkpoint_id)) is not None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called on all ranks first.

        Raises:
            ValueError: there is no name, or ranks save without collectives.
        """
        if self._name is None:
            raise ValueError("the checkpoint has no name: pass checkpoint_id, or name to the writer")
        if not kwargs.get("use_collectives", True):
            raise ValueError("use_collectives=False: ranks must save one checkpoint together")
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Called on all ranks."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Called on the coordinator: takes the lease, and reserves space for each rank.

        Raises:
            Leased: another writer has the lease.
            CapacityExceeded: the volume has not that much space.
            ValueError: the planner caches plans.
        """
        if not all(plan.usable for plan in plans):
            raise ValueError("the planner caches plans: use one without enable_plan_caching")
        # All ranks of an earlier save that failed are here, and so write no longer.
        self._end_save(len(plans))
        name, step = str(self._name), self._step_of()
        store = CheckpointStore(self._urls, **self._store_options)
        save = store.begin(step, name=name, metadata=self._metadata, keep=self._keep)
        self._saving = _Saving(store, save, len(plans))
        try:
            spaces = [self._saving.reserve(rank, plan) for rank, plan in enumerate(plans)]
        except BaseException:
            self._end_save(len(plans))
            raise
        return [replace(plan, storage_data=space) for plan, space in zip(plans, spaces, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Called on all ranks: writes and flushes their tensors. Objects go to the coordinator."""
        space: _RankSpace = plan.storage_data
        results = []
        writer = None
        try:
            if space.reservation is not None:
                writer = self._rank_writer(space.reservation)
            for item, offset in zip(plan.items, space.offsets, strict=True):
                results.append(_write_item(item, offset, space.entry, planner, writer))
            if writer is not None:
                written = _RankWritten(space.entry, writer.finish())
                results.append(WriteResult(_RANK, 0, written))
        except BaseException:
            if writer is not None:
                writer.close()
            if self._saving is not None:
                self._saving.withdraw(space.entry)
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Called on the coordinator when all ranks have written: commits.

        Raises:
            SaveFailed: a rank did not write, or a target lost bytes. Save again.
            CommitUnknown: the target was lost, and it is unknown whether the checkpoint is there.
        """
        saving = self._saving
        if saving is None:
            raise SaveFailed("the save has ended: save again")
        try:
            saving.commit(metadata, [result for rank in results for result in rank], self._name)
        finally:
            self._end_save(len(results))

    def _step_of(self) -> int:
        if self._step is not None:
            return self._step
        number = re.search(r"(\d+)$", str(self._name))
        return int(number[1]) if number else 0

    def _rank_writer(self, reservation: str) -> _core.RankWriter:
        options = {name: value for name, value in self._store_options.items() if name != "wait"}
        return _core.RankWriter(as_urls(self._urls), reservation, connection_options(**options))

    def _end_save(self, ranks: int) -> None:
        """Ends a save, after so many of its ranks have stopped writing."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.end(ranks)


class _Saving:
    """A save of the coordinator, whose lease a thread renews while ranks write."""

    def __init__(self, store: CheckpointStore, save: CheckpointSave, ranks: int) -> None:
        self._store, self._save, self._ranks = store, save, ranks
        self._reserved: set[str] = set()
        self._ended = threading.Event()
        pause = max(store._options["lease"] / 8, 0.05)
        arguments = (weakref.ref(self), self._ended, pause)
        threading.Thread(target=_keep_lease, args=arguments, daemon=True).start()

    def reserve(self, rank: int, plan: SavePlan) -> _RankSpace:
        entry = f"rank{rank}/tensors"
        offsets, at = [], 0
        for item in plan.items:
            offsets.append(at)
            at += _tensor_bytes(item)
        reservation = None
        if at > 0:
            reservation = self._save._save.reserve(entry, at)
            self._reserved.add(entry)
        return _RankSpace(entry, tuple(offsets), reservation)

    def withdraw(self, entry: str) -> None:
        """Notes that a rank has ended without success."""
        if entry in self._reserved:
            self._reserved.remove(entry)
            self._save._save.withdraw(entry)

    def renew(self) -> None:
        self._save._save.renew()

    def commit(self, metadata: Metadata, results: list[WriteResult], name: str | None) -> None:
        places, objects = {}, bytearray()
        for result in results:
            data = result.storage_data
            if isinstance(data, _RankWritten):
                self._reserved.discard(data.entry)
                self._save._save.accept(data.entry, data.written)
            elif isinstance(data, bytes):
                places[result.index] = Place(_OBJECTS, len(objects), len(data))
                objects += data
            else:
                places[result.index] = data
        if self._reserved:
            raise SaveFailed(f"{sorted(self._reserved)} were not written: save again")
        metadata.storage_data = places
        metadata.storage_meta = StorageMeta(checkpoint_id=name)
        self._save.write(_OBJECTS, objects)
        self._save.write(_METADATA, pickle.dumps(metadata))
        self._ended.set()
        self._save.commit()

    def end(self, ranks: int) -> None:
        self._ended.set()
        if ranks == self._ranks:
            for entry in list(self._reserved):
                self.withdraw(entry)
        self._save.abort()
        # If the lease cannot be given back it ends by its time.
        with contextlib.suppress(FeedrailError):
            self._store.close()


def _keep_lease(saving: weakref.ref[_Saving], ended: threading.Event, pause: float) -> None:
    while not ended.wait(pause):
        alive = saving()
        if alive is None:
            return
        try:
            alive.renew()
        except (FeedrailError, ValueError):
            # The commit fails for the same reason, and says so.
            return
        del alive


def _tensor_bytes(item: WriteItem) -> int:
    """Bytes of an item in the entry of its rank; 0 for an object."""
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return 0
    data = item.tensor_data
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def _write_item(
    item: WriteItem, offset: int, entry: str, planner: SavePlanner, writer: _core.RankWriter | None
) -> WriteResult:
    data = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        content = data.getvalue()
        return WriteResult(item.index, len(content), content)
    tensor = data.detach().cpu()
    expected = _tensor_bytes(item)
    if tensor.nbytes != expected:
        raise ValueError(f"{item.index.fqn}: {tensor.nbytes} bytes, and {expected} in the plan")
    if writer is not None and expected > 0:
        writer.append(_as_bytes(tensor.contiguous()))
    return WriteResult(item.index, expected, Place(entry, offset, expected))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as bytes: DLPack does not know all types."""
    return tensor.reshape(-1).view(torch.uint8)


class CheckpointReader(StorageReader):
    """Reads checkpoints that `CheckpointWriter` wrote, by any number of ranks.

    A rank reads the rows that it needs; of a tensor that is sharded by columns it reads whole rows.
    All checksums are compared.

    As with torch's own readers, the structure of a checkpoint is a pickle: load checkpoints of
    volumes that you trust.
    """

    def __init__(self, urls: Urls, name: str | None = None, **options: Any) -> None:
        """Connects to nothing yet.

        Args:
            urls: As for `feedrail.CheckpointStore`.
            name: Name of the checkpoint, if `checkpoint_id` does not say it; the latest if `None`.
                Where another job may commit between, give the name, so that ranks agree.
            options: As for `CheckpointStore`.
        """
        super().__init__()
        self._urls, self._name, self._options = urls, name, options
        self._store: CheckpointStore | None = None
        self._checkpoint: Checkpoint | None = None
        self._metadata: Metadata | None = None

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

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Called on all ranks first.

        Raises:
            NotFound: there is no such checkpoint.
            FormatError: `CheckpointWriter` did not write it.
        """
        self._close()
        self._store = CheckpointStore(self._urls, mode="r", **self._options)
        checkpoint = self._store.latest() if self._name is None else self._store[self._name]
        if _METADATA not in checkpoint.entries:
            raise FormatError(f"{checkpoint.name!r} has no entry {_METADATA!r}: read it by CheckpointStore")
        metadata = pickle.loads(checkpoint.read(_METADATA))
        if not isinstance(metadata, Metadata):
            raise FormatError(f"the entry {_METADATA!r} of {checkpoint.name!r} is no metadata of torch")
        self._checkpoint = checkpoint
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Called on all ranks."""
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Called on all ranks."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Called on the coordinator."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Called on all ranks: reads what the plan has into tensors, in the order of the bytes.

        Raises:
            Damaged: bytes do not have their checksum.
        """
        if self._checkpoint is None or self._metadata is None:
            raise NotFound("no checkpoint is open: torch calls read_metadata first")
        places: dict[MetadataIndex, Place] = self._metadata.storage_data
        located = [(places[item.storage_index], item) for item in plan.items]
        located.sort(key=lambda pair: (pair[0].entry, pair[0].offset))
        units = _Units(self._checkpoint, int(self._unit_bytes()))
        for place, item in located:
            if item.type == LoadItemType.BYTE_IO:
                content = bytearray(place.length)
                units.read(place.entry, place.offset, content)
                planner.load_bytes(item, io.BytesIO(content))
            else:
                self._read_tensor(item, place, planner, units)
        self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_tensor(
        self, item: ReadItem, place: Place, planner: LoadPlanner, units: _Units
    ) -> None:
        target = planner.resolve_tensor(item).detach()
        dtype, sizes = self._saved(item.storage_index)
        lengths = list(item.lengths)
        if list(target.shape) != lengths:
            raise ValueError(f"{item.storage_index.fqn}: {lengths} into {list(target.shape)}")
        # Rows that have the wanted bytes; a tensor without dimensions is one row.
        first, count = (item.storage_offsets[0], lengths[0]) if sizes else (0, 1)
        row_bytes = math.prod(sizes[1:]) * dtype.itemsize
        columns = [slice(at, at + n) for at, n in zip(item.storage_offsets[1:], lengths[1:], strict=True)]
        is_whole = lengths[1:] == sizes[1:]
        begin = place.offset + first * row_bytes
        if is_whole and _is_plain(target, dtype):
            if target.nbytes > 0:
                units.read(place.entry, begin, _as_bytes(target))
        else:
            step = max(_PART_BYTES // max(row_bytes, 1), 1)
            for row in range(0, count, step):
                rows = min(step, count - row)
                part = torch.empty([rows, *sizes[1:]] if sizes else [], dtype=dtype)
                if part.nbytes > 0:
                    units.read(place.entry, begin + row * row_bytes, _as_bytes(part))
                if sizes:
                    target[row : row + rows].copy_(part[(slice(None), *columns)])
                else:
                    target.copy_(part)
        planner.commit_tensor(item, target)

    def _saved(self, index: MetadataIndex) -> tuple[torch.dtype, list[int]]:
        """Type and sizes of the chunk that was saved."""
        assert self._metadata is not None
        saved: Any = self._metadata.state_dict_metadata[index.fqn]
        for chunk in saved.chunks:
            if index.offset is None or chunk.offsets == index.offset:
                return saved.properties.dtype, list(chunk.sizes)
        raise FormatError(f"{index.fqn} has no chunk at {index.offset}")

    def _unit_bytes(self) -> int:
        assert self._store is not None
        return int(self._store.summary["unit_bytes"])

    def _close(self) -> None:
        store, self._store, self._checkpoint = self._store, None, None
        if store is not None:
            store.close()


def _is_plain(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the bytes of a tensor can be read in place."""
    return target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous()


class _Units:
    """Reads of a checkpoint, in the order of the bytes.

    A unit is read as a whole to compare its checksum, so that the last is kept for small tensors.
    """

    def __init__(self, checkpoint: Checkpoint, unit_bytes: int) -> None:
        self._checkpoint, self._unit_bytes = checkpoint, unit_bytes
        self._entry = ""
        self._first = 0
        self._unit = memoryview(b"")

    def read(self, entry: str, offset: int, into: Any) -> None:
        """Reads bytes from `offset` on into a byte array or a tensor of bytes."""
        length = into.nbytes if isinstance(into, torch.Tensor) else len(into)
        if length >= self._unit_bytes:
            self._checkpoint.read(entry, offset, length, into)
            return
        target = into.numpy() if isinstance(into, torch.Tensor) else into
        at = 0
        while at < length:
            self._load(entry, offset + at)
            start = offset + at - self._first
            part = self._unit[start : start + length - at]
            memoryview(target).cast("B")[at : at + len(part)] = part
            at += len(part)

    def _load(self, entry: str, offset: int) -> None:
        first = offset - offset % self._unit_bytes
        if entry == self._entry and first == self._first and len(self._unit) > 0:
            return
        length = min(self._unit_bytes, self._checkpoint.entries[entry] - first)
        if length <= offset - first:
            raise FormatError(f"the metadata names bytes from {offset} of {entry!r}, which ends before")
        unit = bytearray(length)
        self._checkpoint.read(entry, first, length, unit)
        self._entry, self._first, self._unit = entry, first, memoryview(unit)
