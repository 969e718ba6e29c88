"""Which rank of how many this process is."""

from __future__ import annotations

import os

import torch.distributed


def rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, of `torch.distributed`, of torchrun's environment, or 0 of 1.

    Raises:
        ValueError: the rank is not below the world size, or the environment has no numbers.
    """
    found = _found()
    rank = found[0] if rank is None else rank
    world_size = found[1] if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is none of {world_size}, counted from 0")
    return rank, world_size


def _found() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
