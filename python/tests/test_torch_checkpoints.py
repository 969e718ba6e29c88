"""`torch.distributed.checkpoint` on checkpoint volumes: one and two ranks on gloo."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoint_jobs
import pytest
from conftest import ROOT, Daemon, binary
from test_checkpoints import LOSS, MIB, daemon, random_bytes, volume

import feedrail

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

__all__ = ["daemon", "volume"]
LONG = 240
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "feedrail.torch"])


def run_ranks(
    world: int,
    job: str,
    urls: str | list[str],
    options: dict[str, Any] | None = None,
    statuses: list[int] | None = None,
) -> None:
    """Runs a job of `checkpoint_jobs` on all ranks, each a process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        _PROCESSES.Process(
            target=checkpoint_jobs.run_rank, args=(rank, world, port, job, urls, options or {})
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LONG)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == (statuses or [0] * world)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return bool(left == right)


def test_a_state_without_ranks(daemon: Daemon) -> None:
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    writer = ft.CheckpointWriter(daemon.url, keep=2, metadata={"run": 7})
    for seed in range(3):
        dcp.save(checkpoint_jobs.tensors(seed), checkpoint_id=f"step-{seed}", storage_writer=writer)
    last = writer.last_save
    assert last is not None and (last.name, last.slowest_rank) == ("step-2", 0)
    assert len(last.rank_seconds) == 1 and 0 < last.rank_seconds[0] <= last.seconds
    with feedrail.CheckpointStore(daemon.url) as store:
        entries = store.latest().entries
        assert last.nbytes == entries["rank0/tensors"] + entries["objects"]
        assert [(one.name, one.step) for one in store] == [("step-1", 1), ("step-2", 2)]
        assert store.latest().metadata == {"run": 7} and store.verify()
        assert list(store.latest().entries) == ["rank0/tensors", "objects", ".metadata"]
    for name, seed in ((None, 2), ("step-1", 1)):
        state = checkpoint_jobs.tensors(9)
        reader = ft.CheckpointReader(daemon.url, name)
        assert reader.last_load is None
        dcp.load(state, storage_reader=reader)
        loaded = reader.last_load
        assert loaded is not None and loaded.read_nbytes > 0 and loaded.failed_reads == 0
        wanted = checkpoint_jobs.tensors(seed)
        assert all(same(state[key], wanted[key]) for key in wanted)


def test_what_is_no_checkpoint_of_torch(daemon: Daemon) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    import feedrail.torch as ft

    with feedrail.CheckpointStore(daemon.url) as store, store.begin(1) as save:
        save.write("x", b"1")
        save.commit()
    reader = ft.CheckpointReader(daemon.url)
    with pytest.raises(feedrail.FormatError):
        reader.read_metadata()
    with pytest.raises(feedrail.NotFound):
        ft.CheckpointReader(daemon.url, "step-9").read_metadata()
    with pytest.raises(ValueError, match="no name"):
        ft.CheckpointWriter(daemon.url).set_up_storage_writer(True)
    # A state that is larger than the volume: the old checkpoint stays, and the lease is given back.
    with pytest.raises(CheckpointException, match="bytes are needed"):
        dcp.save(
            {"x": torch.zeros(100 * MIB, dtype=torch.uint8)},
            checkpoint_id="large",
            storage_writer=ft.CheckpointWriter(daemon.url),
        )
    with feedrail.CheckpointStore(daemon.url) as store:
        assert [one.name for one in store] == ["step-1"]


def test_a_plain_state_dict(daemon: Daemon) -> None:
    model = torch.nn.Linear(300, 20)
    with feedrail.CheckpointStore(daemon.url) as store, store.begin(5) as save:
        for name, tensor in model.state_dict().items():
            save.write(name, tensor)
        save.write("parameter", model.weight)
        save.commit()
    other = torch.nn.Linear(300, 20)
    with feedrail.CheckpointStore(daemon.url, mode="r") as store:
        store.latest().read_into(other.state_dict())
        assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)
        store.latest().read_into({"parameter": other.weight})


@pytest.mark.parametrize(("world", "loaders"), [(1, 1), (2, 2), (2, 1), (1, 2)])
def test_ranks_save_and_load(daemon: Daemon, world: int, loaders: int) -> None:
    run_ranks(world, "save_sharded", daemon.url)
    with feedrail.CheckpointStore(daemon.url, mode="r") as store:
        assert [one.name for one in store] == ["step-3", "step-4"] and store.verify()
        entries = list(store.latest().entries)
        assert [f"rank{rank}/tensors" for rank in range(world)] == entries[:world]
    run_ranks(loaders, "load_sharded", daemon.url, {"seed": 4})
    run_ranks(loaders, "load_sharded", daemon.url, {"seed": 3, "name": "step-3"})


def test_ranks_save_in_the_background(daemon: Daemon) -> None:
    run_ranks(2, "async_save_sharded", daemon.url)
    run_ranks(1, "load_sharded", daemon.url, {"seed": 3})


def test_ranks_save_on_replicas(volume: Any) -> None:
    urls = [volume().url for _ in range(2)]
    feedrail.CheckpointStore.format(urls)
    run_ranks(2, "save_sharded", urls)
    with feedrail.CheckpointStore(urls, mode="r") as store:
        assert store.verify() and len(store) == 2
    run_ranks(2, "load_sharded", urls, {"seed": 4})


def test_a_rank_that_fails_leaves_nothing(daemon: Daemon) -> None:
    run_ranks(2, "fail_on_last_rank", daemon.url)
    with feedrail.CheckpointStore(daemon.url) as store:
        assert [one.name for one in store] == ["good"]


def test_a_reservation_of_another_save_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    from feedrail import _core
    from feedrail._checkpoints import connection_options

    options = connection_options()
    with feedrail.CheckpointStore(daemon.url) as store:
        save = store.begin(1)
        reservation = save._save.reserve("x", 3 * MIB + 5)
        writer = _core.RankWriter([daemon.url], reservation, options)
        data = random_bytes(1, 3 * MIB + 5)
        for at in range(0, len(data), 700_001):
            writer.append(data[at : at + 700_001])
        with pytest.raises(feedrail.RangeError):
            writer.append(b"1")
        with pytest.raises(feedrail.SaveFailed):
            save.commit()
        # The commit failed, since the entry was not accepted; the lease is left to its end.
        with pytest.raises(feedrail.FeedrailError):
            store.begin(2)
        writer.close()
    with pytest.raises(feedrail.Leased):
        feedrail.CheckpointStore(daemon.url)


def test_a_committed_entry_is_not_written_again(daemon: Daemon) -> None:
    from feedrail import _core
    from feedrail._checkpoints import connection_options

    options = connection_options()
    data = random_bytes(1, 2 * MIB + 5)
    with feedrail.CheckpointStore(daemon.url) as store:
        save = store.begin(1)
        reservation = save._save.reserve("x", len(data))
        writer = _core.RankWriter([daemon.url], reservation, options)
        writer.append(data)
        written = writer.finish()
        save._save.accept("x", written)
        save.commit()
        assert bytes(store["step-1"].read("x")) == data.tobytes()
        with pytest.raises(feedrail.SaveFailed):
            _core.RankWriter([daemon.url], reservation, options)
        # Nor is its result that of an entry of another save.
        other = store.begin(2)
        other._save.reserve("x", len(data))
        with pytest.raises(feedrail.SaveFailed):
            other._save.accept("x", written)
        other.abort()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_leaves_the_old_checkpoint(daemon: Daemon, victim: int) -> None:
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    dcp.save(checkpoint_jobs.tensors(1), storage_writer=ft.CheckpointWriter(daemon.url, "old"))
    with feedrail.CheckpointStore(daemon.url, mode="r") as store:
        free = store.summary["free_bytes"]
    statuses = [-9 if rank == victim else 3 for rank in range(2)]
    run_ranks(2, "kill_rank", daemon.url, {"victim": victim}, statuses)
    with feedrail.CheckpointStore(daemon.url, mode="r") as store:
        assert [one.name for one in store] == ["old"] and store.verify()
        assert store.summary["free_bytes"] == free
    # The next writer waits for the end of the lease.
    dcp.save(checkpoint_jobs.tensors(2), storage_writer=ft.CheckpointWriter(daemon.url, "new"))
    state = checkpoint_jobs.tensors(9)
    dcp.load(state, storage_reader=ft.CheckpointReader(daemon.url))
    assert all(same(state[key], value) for key, value in checkpoint_jobs.tensors(2).items())


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, "object"])
def test_a_save_that_failed_holds_up_no_other(daemon: Daemon, failure: Any) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    import feedrail.torch as ft

    class Failing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if failure != "object" and write_item.index.fqn == "weight":
                raise failure
            return super().resolve_data(write_item)

    state = checkpoint_jobs.tensors(1) | ({"x": lambda: 1} if failure == "object" else {})
    writer = ft.CheckpointWriter(daemon.url, "bad", wait=0.0)
    # The exception and the writer are kept, as by a program that logs it later.
    with pytest.raises(CheckpointException) as raised:
        dcp.save(state, storage_writer=writer, planner=Failing())
    other = ft.CheckpointWriter(daemon.url, "good", wait=0.0)
    dcp.save(checkpoint_jobs.tensors(2), storage_writer=other)
    with pytest.raises(CheckpointException, match="good") as again:
        dcp.save(checkpoint_jobs.tensors(2), storage_writer=other)
    assert isinstance(again.value.failures[0][0], feedrail.CheckpointExists)
    with feedrail.CheckpointStore(daemon.url) as store:
        assert [one.name for one in store] == ["good"] and store.verify()
    assert raised.value.failures and writer.checkpoint_id == "bad"


def test_what_does_not_fit_is_refused(daemon: Daemon) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    import feedrail.torch as ft

    writer = ft.CheckpointWriter(daemon.url)
    dcp.save({"x": torch.ones(4, 3)}, checkpoint_id=Path("step-7"), storage_writer=writer)
    with feedrail.CheckpointStore(daemon.url, mode="r") as store:
        assert store.latest().step == 7
    reader = ft.CheckpointReader(daemon.url)
    dcp.load({"x": torch.ones(4, 3)}, checkpoint_id=Path("step-7"), storage_reader=reader)
    for state, name, message in (
        ({"x": torch.ones(4, 3)}, "step-8", "no checkpoint 'step-8'"),
        ({"x": torch.ones(3, 3)}, "step-7", "[Ss]ize mismatch"),
        ({"y": torch.ones(4, 3)}, "step-7", "y"),
    ):
        with pytest.raises(CheckpointException, match=message):
            dcp.load(state, checkpoint_id=name, storage_reader=reader)
    for name in ("a/b", ".."):
        with pytest.raises(CheckpointException, match="not allowed"):
            dcp.save({"x": torch.ones(1)}, checkpoint_id=name, storage_writer=writer)
    feedrail.CheckpointStore(daemon.url).close()


@pytest.mark.parametrize("provider", ["soft", "shm"])
def test_tensors_of_all_kinds(daemon: Daemon, provider: str) -> None:
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    def state(seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        wide = torch.randn(3000, 2100, generator=generator)
        tied = torch.nn.Parameter(wide[:50, :50].clone())
        return {
            "bf16": wide[:9].to(torch.bfloat16),
            "fp8": wide[:9].to(torch.float8_e4m3fn),
            "fp8 scales": wide[:2].abs().to(torch.float8_e8m0fnu),
            "bool": wide[0] > 0,
            "int8": (wide[1] * 9).to(torch.int8),
            "complex": torch.view_as_complex(wide[:2].reshape(-1, 2)).conj(),
            "negative": torch.view_as_complex(wide[:2].reshape(-1, 2)).conj().imag,
            "no dimensions": wide[0, 0],
            "no elements": wide[:0],
            "turned": wide.T,
            "every other": wide[::2, ::3],
            "view": wide[5:7],
            "one row": wide[None, ::2],
            "tied": tied,
            "tied too": tied,
            "many": wide[0, :64].reshape(2, 2, 2, 2, 2, 2),
        }

    saved, read = state(1), state(2)
    writer = ft.CheckpointWriter(daemon.url, "of all kinds", provider=provider)
    dcp.save(saved, storage_writer=writer)
    dcp.load(read, storage_reader=ft.CheckpointReader(daemon.url, provider=provider))
    for name, tensor in saved.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        bytes_of = [
            one.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            for one in (read[name], tensor)
        ]
        assert torch.equal(*bytes_of), name


def test_of_long_rows_only_the_units_that_are_needed_are_read(
    volume: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

    import feedrail.torch as ft

    url = volume().url
    feedrail.CheckpointStore.format(url, unit_bytes=4096)
    saved = torch.arange(7 * 3 * 9000, dtype=torch.float32).reshape(7, 3, 9000)
    dcp.save({"x": saved}, checkpoint_id="a", storage_writer=ft.CheckpointWriter(url))
    count, read = 0, feedrail.Checkpoint.read

    def counted(self: Any, entry: str, offset: int = 0, length: Any = None, into: Any = None) -> Any:
        nonlocal count
        count += length or 0
        return read(self, entry, offset, length, into)

    monkeypatch.setattr(feedrail.Checkpoint, "read", counted)

    class Planner:
        def resolve_tensor(self, item: ReadItem) -> Any:
            return target

        def commit_tensor(self, item: ReadItem, tensor: Any) -> None:
            assert tensor.data_ptr() == target.data_ptr()

    for dtype in (torch.float32, torch.float64):
        reader = ft.CheckpointReader(url)
        reader.set_up_storage_reader(reader.read_metadata(), True)
        count, target = 0, torch.zeros(4, 2, 1500, dtype=dtype)
        item = ReadItem(
            type=LoadItemType.TENSOR,
            dest_index=MetadataIndex("x"),
            dest_offsets=torch.Size([0, 0, 0]),
            storage_index=MetadataIndex("x", torch.Size([0, 0, 0])),
            storage_offsets=torch.Size([2, 1, 7000]),
            lengths=torch.Size([4, 2, 1500]),
        )
        reader.read_data(LoadPlan([item]), Planner()).wait()
        assert torch.equal(target, saved[2:6, 1:3, 7000:8500].to(dtype))
        if dtype == torch.float32:
            assert count <= target.nbytes + 8 * 2 * 4096


def test_what_all_ranks_need_is_read_once(daemon: Daemon, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    state = checkpoint_jobs.large(1)
    dcp.save(state, storage_writer=ft.CheckpointWriter(daemon.url, "large"))
    nbytes = sum(tensor.nbytes for tensor in state.values())
    for share, times in ((True, 1), (False, 3)):
        run_ranks(3, "load_the_same", daemon.url, {"folder": str(tmp_path), "share": share})
        own = [int((tmp_path / f"{rank}").read_text()) for rank in range(3)]
        assert times * nbytes <= sum(own) <= times * nbytes + (6 << 20), own


def test_a_rank_that_ends_leaves_its_chunks_to_the_others() -> None:
    from feedrail.torch import _shared_chunks as sharing

    content = random_bytes(1, 3 * sharing.CHUNK_BYTES + 5)
    lengths = {"x": len(content)}
    memory = sharing.OfferedMemory(["checkpoint"])
    whole = [sharing.Wanted("x", 0, len(content))]
    first, second = sharing.plan_sharing([memory.offer] * 2, [whole] * 2, lengths)
    assert first is not None and second is not None and len(first.chunks) == 4
    # Where rows of one rank end and those of another begin, nothing is read twice.
    halves = [[sharing.Wanted("x", 0, 10)], [sharing.Wanted("x", 10, len(content) - 10)]]
    assert sharing.plan_sharing([memory.offer] * 2, halves, lengths) == [None, None]
    assert sharing.plan_sharing([memory.offer, None], [whole] * 2, lengths) == [None, None]

    def run(given: Any, end: int) -> list[int]:
        """Reads up to a byte, and returns which bytes it had to load itself."""
        loaded = []
        chunks = sharing.SharedChunks(given, lengths)

        def load(entry: str, begin: int, into: memoryview) -> None:
            loaded.append(begin)
            into[:] = memoryview(content)[begin : begin + len(into)]

        into = bytearray(end)
        for at in range(0, end, 3 << 20):
            part = memoryview(into)[at : at + (3 << 20)]
            chunks.read("x", at, part, load)
        assert into == content[:end].tobytes()
        if end == len(content):
            chunks.close()
        return loaded

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(run(second, sharing.CHUNK_BYTES)[:1]))
        os._exit(0)
    try:
        # The first chunk is loaded by one of them, and the others by this one.
        loaded = run(first, len(content))
        assert os.waitpid(child, 0)[1] == 0
        assert loaded[-3:] == [number * sharing.CHUNK_BYTES for number in (1, 2, 3)]
    finally:
        memory.close()
        os.close(reader)
        os.close(writer)


def test_a_target_that_is_killed_in_a_save_is_told(volume: Any) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    import feedrail.torch as ft

    daemons = [volume() for _ in range(3)]
    urls = [daemon.url for daemon in daemons]
    feedrail.CheckpointStore.format(urls)

    class Killing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            daemons[2].kill()
            return super().resolve_data(write_item)

    writer = ft.CheckpointWriter(urls, "a", loss_timeout=LOSS)
    with pytest.warns(RuntimeWarning, match=urls[2]):
        dcp.save(checkpoint_jobs.tensors(1), storage_writer=writer, planner=Killing())
    state = checkpoint_jobs.tensors(2)
    dcp.load(state, storage_reader=ft.CheckpointReader(urls, loss_timeout=LOSS))
    assert all(same(state[key], value) for key, value in checkpoint_jobs.tensors(1).items())


def test_a_program_that_ends_finishes_its_save(daemon: Daemon) -> None:
    program = f"""
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, feedrail.torch as ft
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
writer = ft.CheckpointWriter({daemon.url!r}, "a")
dcp.async_save({{"x": torch.ones(9_000_000)}}, storage_writer=writer)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    with feedrail.CheckpointStore(daemon.url) as store:
        assert [one.name for one in store] == ["a"] and store.verify()


def test_ranks_of_fsdp_in_bounded_memory(tmp_path: Path) -> None:
    script = ROOT / "python" / "benches" / "checkpoint_ranks.py"
    chosen = ["--target", binary("feedrail-target"), "--mib", "64", "--no-counts", "--providers", "shm"]
    command = [sys.executable, script, *chosen, "--folder", tmp_path, "--loaders", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(results) == 2 + 3
    assert all(one["equal"] and one["added_mib"] <= 192 for one in results)
