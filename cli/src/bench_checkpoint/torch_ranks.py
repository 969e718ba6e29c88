"""A rank of `feedrail bench-checkpoint --python`: saves and loads by torch's own classes.

Each line on stdin is a job, each line on stdout its answer, as JSON.
"""

import json
import sys
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

TENSOR_BYTES = 64 << 20
UNREAD = 0xA5


def seeded_bytes(seed: int, count: int) -> np.ndarray:
    """The numbers of SplitMix64 in little-endian order."""
    with np.errstate(over="ignore"):
        gamma = np.uint64(0x9E3779B97F4A7C15)
        words = np.arange(1, (count + 7) // 8 + 1, dtype=np.uint64) * gamma + np.uint64(seed)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
    return words.astype("<u8").view(np.uint8)[:count]


def tensors(rank: int, memory: np.ndarray) -> dict[str, torch.Tensor]:
    """The memory of a rank as a state, in tensors of 64 MiB."""
    parts = range(0, len(memory), TENSOR_BYTES)
    return {f"rank{rank}.{at}": torch.from_numpy(memory[at : at + TENSOR_BYTES]) for at in parts}


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def save(state: dict[str, torch.Tensor], folder: str) -> float:
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    dist.barrier()
    began = time.monotonic()
    dcp.save(state, storage_writer=writer)
    return time.monotonic() - began


def load(state: dict[str, torch.Tensor], folder: str) -> float:
    dist.barrier()
    began = time.monotonic()
    dcp.load(state, storage_reader=FileSystemReader(folder))
    return time.monotonic() - began


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    setup = json.loads(sys.stdin.readline())
    rank, ranks, count = setup["rank"], setup["ranks"], setup["bytes"]
    began = time.monotonic()
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    # What is saved stays; what is loaded goes to memory of its own.
    saved = seeded_bytes(setup["seed"], count)
    loaded = np.full(count, UNREAD, np.uint8)
    answer(answer="ready", connect_seconds=time.monotonic() - began)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if job["job"] == "save_file":
                answer(answer="done", seconds=save(tensors(rank, saved), job["folder"]))
            elif job["job"] == "load_file":
                answer(answer="done", seconds=load(tensors(rank, loaded), job["folder"]))
            else:
                wrong = np.flatnonzero(saved != loaded)[:1]
                loaded.fill(UNREAD)
                answer(answer="compared", wrong_byte=int(wrong[0]) if len(wrong) else None)
        except (Exception, CheckpointException) as error:
            # The last line of what torch collects from all ranks names the cause.
            cause = str(error).strip().splitlines()[-1:] or [""]
            answer(answer="failed", error=f"{type(error).__name__}: {cause[0]}")


main()
