"""Writing checkpoints of `torch.distributed.checkpoint` to checkpoint volumes."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import re
import threading
import time
import warnings
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from feedrail import _core
from feedrail._checkpoint_errors import SaveFailed
from feedrail._checkpoint_stats import SaveStats
from feedrail._checkpoints import CheckpointStore, as_urls, connection_options
from feedrail._errors import FeedrailError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from feedrail._checkpoints import CheckpointSave, Urls

#: Entry with the pickled `Metadata`, as torch's own writers name their file.
METADATA = ".metadata"
#: Entry with what are no tensors, of all ranks.
_OBJECTS = "objects"
#: The result of a rank itself, among those of its items.
_RANK = MetadataIndex("feedrail.rank")
#: Largest part of a tensor that is copied at a time, where it cannot be read or written in place.
PART_BYTES = 16 << 20


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
    """What a rank gives the coordinator: the result of its writer, and the time that it took."""

    entry: str
    #: `None` if the rank has no tensors.
    written: str | None
    seconds: float


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
        #: Times of the last save that was committed; `None` before, and on other ranks than the
        #: coordinator.
        self.last_save: SaveStats | None = None

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
        urls = as_urls(self._urls)
        # All ranks of an earlier save that failed are here, and so write no longer.
        for saving in list(_SAVINGS):
            if saving.urls == urls and saving.was_given_up:
                saving.end(len(plans))
        name, step = str(self._name), self._step_of()
        store = CheckpointStore(urls, **self._store_options)
        try:
            save = store.begin(step, name=name, metadata=self._metadata, keep=self._keep)
        except BaseException:
            # Kept by the exception, it would keep the lease.
            _close(store)
            raise
        self._saving = _Saving(store, save, urls, len(plans))
        try:
            spaces = [self._saving.reserve(rank, plan) for rank, plan in enumerate(plans)]
        except BaseException:
            self._end_save(len(plans))
            raise
        return [replace(plan, storage_data=space) for plan, space in zip(plans, spaces, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Called on all ranks: writes and flushes their tensors. Objects go to the coordinator."""
        began = time.monotonic()
        space: _RankSpace = plan.storage_data
        results = []
        writer = None
        try:
            if space.reservation is not None:
                writer = self._rank_writer(space.reservation)
            for item, offset in zip(plan.items, space.offsets, strict=True):
                results.append(_write_item(item, offset, space.entry, planner, writer))
            written = None if writer is None else writer.finish()
            own = _RankWritten(space.entry, written, time.monotonic() - began)
            results.append(WriteResult(_RANK, 0, own))
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
            every = [result for rank in results for result in rank]
            saving.commit(metadata, every, self._name)
            self.last_save = SaveStats(
                str(self._name),
                sum(result.size_in_bytes for result in every),
                time.monotonic() - saving.began,
                tuple(_seconds(rank) for rank in results),
            )
        finally:
            self._end_save(len(results))

    def __repr__(self) -> str:
        return f"<feedrail.torch.CheckpointWriter {', '.join(as_urls(self._urls))}: {self._name}>"

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

    def __init__(
        self, store: CheckpointStore, save: CheckpointSave, urls: list[str], ranks: int
    ) -> None:
        self._store, self._save, self._ranks = store, save, ranks
        self.urls = urls
        self._thread = threading.current_thread()
        self.began = time.monotonic()
        self._reserved: set[str] = set()
        self._ended = threading.Event()
        pause = max(store._options["lease"] / 8, 0.05)
        arguments = (weakref.ref(self), self._ended, pause)
        threading.Thread(target=_keep_lease, args=arguments, daemon=True).start()
        _SAVINGS.add(self)

    @property
    def was_given_up(self) -> bool:
        """Whether its call of torch has ended: torch does not say so where a rank has failed."""
        return self._thread is threading.current_thread() or not self._thread.is_alive()

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
        self._store.renew()

    def commit(self, metadata: Metadata, results: list[WriteResult], name: str | None) -> None:
        places, objects = {}, bytearray()
        for result in results:
            data = result.storage_data
            if isinstance(data, _RankWritten):
                if data.written is not None:
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
        self._save.write(METADATA, pickle.dumps(metadata))
        self._ended.set()
        self._save.commit()
        for replica in self._store.replicas:
            if replica.state != "current":
                message = f"{name} is not on {replica.url}, which is {replica.state}: repair the store"
                warnings.warn(f"{message} ({replica.error})", RuntimeWarning, stacklevel=2)

    def end(self, ranks: int) -> None:
        self._ended.set()
        if ranks == self._ranks:
            for entry in list(self._reserved):
                self.withdraw(entry)
        self._save.abort()
        _close(self._store)
        _SAVINGS.discard(self)


#: Saves that have not ended.
_SAVINGS: weakref.WeakSet[_Saving] = weakref.WeakSet()


def _close(store: CheckpointStore) -> None:
    """Gives the lease back. If that fails it ends by its time."""
    with contextlib.suppress(FeedrailError):
        store.close()


def _seconds(results: list[WriteResult]) -> float:
    """Seconds that a rank took to write."""
    return sum(one.storage_data.seconds for one in results if one.index == _RANK)


def _keep_lease(saving: weakref.ref[_Saving], ended: threading.Event, pause: float) -> None:
    while not ended.wait(pause):
        alive = saving()
        if alive is None or alive.was_given_up:
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
    expected = _tensor_bytes(item)
    if data.nbytes != expected:
        raise ValueError(f"{item.index.fqn}: {data.nbytes} bytes, and {expected} in the plan")
    if writer is not None and expected > 0:
        for part in _parts(data.detach()):
            writer.append(as_bytes(part))
    return WriteResult(item.index, expected, Place(entry, offset, expected))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor as contiguous ones on the host, in order; what has to be copied is, in small parts."""
    if is_plain(tensor):
        yield tensor
    elif tensor.nbytes <= PART_BYTES:
        yield tensor.cpu().resolve_conj().resolve_neg().contiguous()
    elif len(tensor) == 1:
        yield from _parts(tensor[0])
    else:
        for part in tensor.split(max(PART_BYTES * len(tensor) // tensor.nbytes, 1)):
            yield from _parts(part)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor are in memory of the host, in order."""
    is_itself = not tensor.is_conj() and not tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and is_itself


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a plain tensor as bytes: DLPack does not know all types."""
    return tensor.reshape(-1).view(torch.uint8)
