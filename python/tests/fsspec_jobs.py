"""What tests of files of checkpoint volumes run on ranks of gloo, each a process."""

from __future__ import annotations

import multiprocessing
import socket
from typing import Any

from checkpoint_jobs import sharded

LONG = 240
_PROCESSES = multiprocessing.get_context("forkserver")


def run_ranks(world: int, job: str, *arguments: Any) -> None:
    """Runs a job of this module on all ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        _PROCESSES.Process(target=run_rank, args=(rank, world, port, job, *arguments))
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LONG)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * world


def run_rank(rank: int, world: int, port: int, job: str, *arguments: Any) -> None:
    """A rank. Runs in a child."""
    import torch.distributed as dist

    method = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    try:
        globals()[job](world, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def write(path: str) -> None:
    """Writes a file, and ends as processes of multiprocessing do. Runs in a child."""
    import fsspec

    fsspec.filesystem("nvmf").pipe_file(path, b"x")


def save(world: int, path: str) -> None:
    """Saves twice to one path, the second over the first."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.fsspec_filesystem import FsspecWriter

    for seed in (3, 4):
        # `close` is durable; the writer has no descriptor for fsync, and would sync all file systems.
        dcp.save(sharded(seed, world), storage_writer=FsspecWriter(path, sync_files=False))


def load(world: int, path: str) -> None:
    """Loads with tensors sharded in another way."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader

    wanted, state = sharded(4, world, (1, 0)), sharded(99, world, (1, 0))
    dcp.load(state, storage_reader=FsspecReader(path))
    for name in ("rows", "columns", "same"):
        assert torch.equal(state[name].full_tensor(), wanted[name].full_tensor()), name
    assert torch.equal(state["plain"], wanted["plain"]) and state["seed"] == 4
