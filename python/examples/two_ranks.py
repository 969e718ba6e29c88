"""Two ranks that read one epoch together.

    torchrun --nproc-per-node 2 two_ranks.py nvmf://192.0.2.10/nqn.2026-01.org.example:shards

`192.0.2.10` stands for the address of your target. Each sample is read once. Rank 0 prints how many there were.
"""

import sys

import torch
import torch.distributed as dist

import feedrail
import feedrail.torch


def main() -> None:
    dist.init_process_group("gloo")
    dataset = feedrail.torch.TokenDataset(feedrail.open(sys.argv[1]), 255)
    order = feedrail.torch.Order(len(dataset), seed=7, drop_last=True)
    seen = torch.zeros(len(dataset), dtype=torch.int64)
    with feedrail.torch.Loader(dataset, 16, sampler=order, drop_last=True) as loader:
        for batch in loader:
            seen[batch.indices] += 1
            total = batch.x.sum()
            dist.all_reduce(total)
    dist.all_reduce(seen)
    if dist.get_rank() == 0:
        print(f"{int(seen.sum())} of {len(dataset)} samples, none twice: {bool(seen.max() == 1)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
