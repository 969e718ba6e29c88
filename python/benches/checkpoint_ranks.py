#!/usr/bin/env python3
"""Ranks save a state of FSDP with Adam and load it again, also with other numbers of ranks.

Each rank fills its shards with numbers that depend on name and position alone, and compares every byte
after it has loaded them into a fresh model. It prints, as a line of JSON for each rank:

- `added_mib`: growth of the peak of resident memory (VmHWM) during the call, the state itself excluded
- `rate`: counts of a Python thread beside, relative to the same thread while the main thread sleeps.
  Time in which the thread waits for a core (run delay in schedstat) is left out of both, since the
  target and the ranks may have fewer cores than they use; time in which it waits for the GIL is not,
  also where the thread that has the GIL waits for a core: other programs make it less

    python benches/checkpoint_ranks.py --target out/release/feedrail-target --mib 1024
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import feedrail
import feedrail.torch as ft

#: Seconds for which the thread counts beside a main thread that sleeps.
IDLE = 2.0


class Counter:
    """A Python thread that counts."""

    def __init__(self) -> None:
        self._count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            self._count += 1

    def rate_in(self, call: Callable[[], object]) -> float:
        """Counts in a second of a call in which the thread does not wait for a core."""
        begin = self._count, time.monotonic(), self._core_wait()
        call()
        count, seconds, waited = self._count, time.monotonic(), self._core_wait()
        return (count - begin[0]) / (seconds - begin[1] - waited + begin[2])

    def _core_wait(self) -> float:
        path = Path(f"/proc/self/task/{self._thread.native_id}/schedstat")
        return int(path.read_text().split()[1]) / 1e9

    def end(self) -> None:
        self._is_over = True
        self._thread.join()


def memory_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def measured(call: Callable[[], object], counts: bool) -> dict[str, float]:
    """Calls a function, and measures it."""
    gc.collect()
    # What the allocator keeps would hide what the call adds.
    ctypes.CDLL(None).malloc_trim(0)
    figures = {}
    counter = Counter() if counts else None
    idle = counter.rate_in(lambda: time.sleep(IDLE)) if counter else 0.0
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    begin = time.monotonic()
    if counter:
        figures["rate"] = round(counter.rate_in(call) / idle, 3)
        counter.end()
    else:
        call()
    figures["seconds"] = round(time.monotonic() - begin, 2)
    figures["added_mib"] = round(memory_mib("VmHWM") - before, 1)
    return figures


def model_and_optimizer(mib: int, seed: int, full: bool) -> tuple[Any, Any]:
    """A model with a state of about `mib` MiB: parameters, and two moments of each."""
    torch.manual_seed(seed)
    width = 2048 if mib >= 256 else 1024
    layers = [torch.nn.Linear(width, width) for _ in range(max(mib * (1 << 20) // (12 * width**2), 1))]
    model = torch.nn.Sequential(*layers)
    if not full:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer, options=StateDictOptions())
    return {"model": of_model, "optimizer": of_optimizer}


def shards(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All tensors of a state, by name."""
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from shards(value, f"{name}.{key}")


def expected(name: str, tensor: Any, seed: int) -> tuple[Any, Any]:
    """The part of a tensor that this rank has, and the numbers that it should have."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    whole = torch.rand(tensor.shape, generator=generator)
    if not hasattr(tensor, "to_local"):
        return tensor, whole
    local = tensor.to_local()
    (chunk,) = tensor.__create_chunk_list__() if local.numel() > 0 else (None,)
    if chunk is None:
        return local, local
    places = zip(chunk.offsets, chunk.sizes, strict=True)
    return local, whole[tuple(slice(at, at + size) for at, size in places)]


def fill(state: dict[str, Any], seed: int) -> None:
    for name, tensor in shards(state):
        local, wanted = expected(name, tensor, seed)
        local.detach().copy_(wanted)


def is_equal(state: dict[str, Any], seed: int) -> bool:
    """Whether every byte is as it was filled."""

    def same(name: str, tensor: Any) -> bool:
        local, wanted = expected(name, tensor, seed)
        left, right = (one.detach().reshape(-1).contiguous().view(torch.uint8) for one in (local, wanted))
        return torch.equal(left, right)

    return all(same(name, tensor) for name, tensor in shards(state))


def local_mib(state: dict[str, Any]) -> float:
    """MiB of this rank's part."""
    parts = (getattr(one, "to_local", lambda one=one: one)() for _, one in shards(state))
    return sum(part.nbytes for part in parts) / (1 << 20)


def run_rank(rank: int, world: int, port: int, job: dict[str, Any], results: Any) -> None:
    """Runs in a child."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    model, optimizer = model_and_optimizer(job["mib"], rank, job["full"])
    state = state_of(model, optimizer)
    is_save = job["call"] == "save"
    fill(state, seed=1 if is_save else 2)
    dist.barrier()
    if is_save:
        writer = ft.CheckpointWriter(job["url"], provider=job["provider"])
        call = lambda: dcp.save(state, checkpoint_id=job["name"], storage_writer=writer)
    else:
        reader = ft.CheckpointReader(job["url"], provider=job["provider"], share=job["share"])
        call = lambda: dcp.load(state, checkpoint_id=job["name"], storage_reader=reader)
    result = {**job, "rank": rank, "ranks": world, **measured(call, job["counts"])}
    if not is_save:
        options = StateDictOptions()
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=options,
        )
    result["equal"] = is_equal(state_of(model, optimizer), seed=1)
    result["state_mib"] = round(local_mib(state), 1)
    results.put(result)
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(world: int, job: dict[str, Any]) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["__main__"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = processes.SimpleQueue()
    ranks = [
        processes.Process(target=run_rank, args=(rank, world, port, job, results))
        for rank in range(world)
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    if [one.exitcode for one in ranks] != [0] * world:
        raise SystemExit(f"{job}: ranks ended with {[one.exitcode for one in ranks]}")
    for _ in ranks:
        print(json.dumps({**results.get(), "load": os.getloadavg()[0]}), flush=True)


def serve(program: Path, image: Path) -> tuple[subprocess.Popen[str], str]:
    """Starts a target, and returns its URL."""
    entropy = random.SystemRandom()
    address = f"127.{entropy.randint(1, 254)}.{entropy.randint(0, 255)}.{entropy.randint(1, 254)}"
    command = [program, "--listen", f"{address}:4420", "--writable", image]
    target = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert target.stdout is not None
    for line in target.stdout:
        said = json.loads(line)
        if said["event"] == "listening":
            return target, f"nvmf://{address}:4420/{said['nqn']}"
    raise SystemExit("the target has ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="the program feedrail-target")
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the state of all ranks")
    parser.add_argument("--ranks", type=int, default=2, help="ranks that save")
    parser.add_argument("--loaders", type=int, nargs="+", default=[2, 1, 3], help="ranks that load")
    parser.add_argument("--providers", nargs="+", default=["soft", "shm"])
    parser.add_argument("--full", action="store_true", help="each rank has the whole state, as for DDP")
    parser.add_argument("--no-share", action="store_true", help="each rank reads all that it needs")
    parser.add_argument("--no-counts", action="store_true", help="no thread that counts")
    parser.add_argument("--folder", type=Path, help="where the volume's file is made")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        image = Path(folder) / "volume.img"
        with image.open("wb") as file:
            file.truncate((chosen.mib * 5 // 4 + 64) << 20)
        target, url = serve(chosen.target, image)
        try:
            for provider in chosen.providers:
                feedrail.CheckpointStore.format(url, force=True)
                job = {"url": url, "provider": provider, "mib": chosen.mib, "full": chosen.full}
                job |= {"counts": not chosen.no_counts, "share": not chosen.no_share, "name": "step-1"}
                run_ranks(chosen.ranks, {**job, "call": "save"})
                for world in chosen.loaders:
                    run_ranks(world, {**job, "call": "load"})
        finally:
            target.kill()
            target.wait()


if __name__ == "__main__":
    main()
