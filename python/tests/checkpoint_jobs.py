"""What tests of checkpoints run in other processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import feedrail


def write_until_killed(url: str) -> None:
    """Saves `step-2`, and prints a line once bytes of it are on the volume. It never commits."""
    store = feedrail.CheckpointStore(url, lease=5.0)
    save = store.begin(2)
    for number in range(8):
        save.write(f"part.{number}", np.full(1 << 20, number, np.uint8))
    print("writing", flush=True)
    sys.stdin.read()


def tensors(seed: int, rows: int = 1000) -> dict[str, Any]:
    """A state with tensors of several types and sizes, an odd one, and objects."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(rows, 700, generator=generator),
        "half": torch.randn(33, 17, generator=generator).to(torch.bfloat16),
        "scalar": torch.tensor(seed),
        "empty": torch.zeros(0, 3),
        "flags": torch.rand(7, generator=generator) < 0.5,
        "turned": torch.randn(40, 60, generator=generator).T,
        "nested": {"step": seed, "name": "adam"},
    }


def run_rank(
    rank: int, world: int, port: int, job: str, urls: str | list[str], options: dict[str, Any]
) -> None:
    """A rank on gloo. Runs in a child."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    try:
        globals()[job](rank, world, urls, options)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def sharded(seed: int, world: int, dims: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    """A state of DTensors, sharded by rows and by columns, and a plain tensor."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(1003, 501, generator=generator)
    columns = torch.randn(310, 407, generator=generator)
    same = torch.randn(64, 64, generator=generator)
    return {
        "rows": distribute_tensor(rows, mesh, [Shard(dims[0])]),
        "columns": distribute_tensor(columns, mesh, [Shard(dims[1])]),
        "same": distribute_tensor(same, mesh, [Replicate()]),
        "plain": torch.full((5,), float(seed)),
        "seed": seed,
    }


def save_sharded(rank: int, world: int, urls: str | list[str], options: dict[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    for seed in (3, 4):
        writer = ft.CheckpointWriter(urls, **options)
        dcp.save(sharded(seed, world), checkpoint_id=f"step-{seed}", storage_writer=writer)
        last = writer.last_save
        assert (last is not None) == (rank == 0)
        assert last is None or (len(last.rank_seconds) == world and min(last.rank_seconds) > 0)


def async_save_sharded(
    rank: int, world: int, urls: str | list[str], options: dict[str, Any]
) -> None:
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    state = sharded(3, world)
    writer = ft.CheckpointWriter(urls, "step-3", **options)
    saved = dcp.async_save(state, storage_writer=writer)
    # What training changes now is not what is saved.
    state["rows"].to_local().zero_()
    saved.result()


def load_sharded(rank: int, world: int, urls: str | list[str], options: dict[str, Any]) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    seed = options["seed"]
    for dims in ((0, 1), (1, 0)):
        wanted, state = sharded(seed, world, dims), sharded(99, world, dims)
        dcp.load(state, storage_reader=ft.CheckpointReader(urls, options.get("name")))
        for name in ("rows", "columns", "same"):
            assert torch.equal(state[name].full_tensor(), wanted[name].full_tensor()), name
        assert torch.equal(state["plain"], wanted["plain"]) and state["seed"] == seed


def fail_on_last_rank(
    rank: int, world: int, urls: str | list[str], options: dict[str, Any]
) -> None:
    """The last rank cannot resolve its data; the next save, by another writer, need not wait."""
    import pytest
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    import feedrail.torch as ft

    class Failing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if rank == world - 1:
                raise RuntimeError("it cannot be resolved")
            return super().resolve_data(write_item)

    writer = ft.CheckpointWriter(urls, **options)
    with pytest.raises(CheckpointException):
        dcp.save(sharded(5, world), checkpoint_id="bad", storage_writer=writer, planner=Failing())
    other = ft.CheckpointWriter(urls, wait=0.0, **options)
    dcp.save(sharded(6, world), checkpoint_id="good", storage_writer=other)


def kill_rank(rank: int, world: int, urls: str | list[str], options: dict[str, Any]) -> None:
    """A rank is killed while it writes; the others get an error of gloo, and end with 3."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    import feedrail.torch as ft

    class Killed(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if rank == options["victim"]:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_data(write_item)

    writer = ft.CheckpointWriter(urls, "killed", lease=2.0)
    try:
        dcp.save(sharded(7, world), storage_writer=writer, planner=Killed())
    except RuntimeError:
        sys.exit(3)


def of_rank(rank: int, value: float) -> dict[str, Any]:
    """A state of 24 MiB that only this rank has."""
    import torch

    return {f"rank{rank}": torch.full((6 << 20,), value, dtype=torch.float32)}


def train(rank: int, world: int, urls: str | list[str], options: dict[str, Any]) -> None:
    """Saves in the background, step after step, until something ends it."""
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    # A shell starts programs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    writer = ft.CheckpointWriter(urls, lease=2.0, keep=2)
    for step in range(1, 10_000):
        state = of_rank(rank, step)
        saved = dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer)
        print(f"saving {step}", flush=True)
        saved.result()
        print(f"saved {step}", flush=True)


def resume(rank: int, world: int, urls: str | list[str], options: dict[str, Any]) -> None:
    """Loads the newest checkpoint, prints its step, and saves the next one."""
    import torch
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    state = of_rank(rank, 0)
    dcp.load(state, storage_reader=ft.CheckpointReader(urls))
    step = int(state[f"rank{rank}"][0])
    assert torch.equal(state[f"rank{rank}"], of_rank(rank, step)[f"rank{rank}"])
    print(f"loaded {step}", flush=True)
    writer = ft.CheckpointWriter(urls, keep=2)
    dcp.save(of_rank(rank, step + 1), checkpoint_id=f"step-{step + 1}", storage_writer=writer)


def load_the_same(rank: int, world: int, urls: str | list[str], options: dict[str, Any]) -> None:
    """All ranks load all of a checkpoint, and write down how many bytes they read themselves."""
    import torch
    import torch.distributed.checkpoint as dcp

    import feedrail.torch as ft

    read, own = feedrail.Checkpoint.read, 0

    def count(self: Any, entry: str, offset: int = 0, length: Any = None, into: Any = None) -> Any:
        nonlocal own
        own += length or 0
        return read(self, entry, offset, length, into)

    feedrail.Checkpoint.read = count  # type: ignore[method-assign]
    wanted, state = large(1), large(2)
    # One converts.
    if rank == 1:
        wanted["first"], state["first"] = wanted["first"].double(), state["first"].double()
    dcp.load(state, storage_reader=ft.CheckpointReader(urls, "large", share=options["share"]))
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    Path(options["folder"], f"{rank}").write_text(str(own))


def large(seed: int) -> dict[str, Any]:
    """A state of 42 MiB, of three chunks that ranks share, with small tensors between."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        "first": torch.randn(3_000_001, generator=generator),
        "narrow": torch.randn(3, generator=generator),
        "second": torch.randn(1000, 3000, generator=generator),
        "third": torch.randn(5, 1_000_000, generator=generator),
    }


def main(arguments: list[str]) -> None:
    """`URL` writes until it is killed; `JOB RANK WORLD PORT URL` is a rank."""
    if len(arguments) == 1:
        write_until_killed(arguments[0])
        return
    job, rank, world, port, url = arguments
    run_rank(int(rank), int(world), int(port), job, url, {})


if __name__ == "__main__":
    main(sys.argv[1:])
