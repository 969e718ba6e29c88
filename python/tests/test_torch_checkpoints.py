"""`torch.distributed.checkpoint` on checkpoint volumes: one and two ranks on gloo."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import checkpoint_jobs
import pytest
from conftest import Daemon, Serve
from test_checkpoints import MIB, daemon, random_bytes, volume

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
    world: int, job: str, urls: str | list[str], options: dict[str, Any] | None = None
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
    assert [rank.exitcode for rank in ranks] == [0] * world


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
    with feedrail.CheckpointStore(daemon.url) as store:
        assert [(one.name, one.step) for one in store] == [("step-1", 1), ("step-2", 2)]
        assert store.latest().metadata == {"run": 7} and store.verify()
        assert list(store.latest().entries) == ["rank0/tensors", "objects", ".metadata"]
    for name, seed in ((None, 2), ("step-1", 1)):
        state = checkpoint_jobs.tensors(9)
        dcp.load(state, storage_reader=ft.CheckpointReader(daemon.url, name))
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
