"""A loader of random windows of tokens, with the interface of nanoGPT's `get_batch`."""

import numpy as np
import torch

block_size, batch_size = 1024, 12


def open_tokens(path):
    return np.memmap(path, dtype=np.uint16, mode="r")


def get_batch(data):
    ix = torch.randint(len(data) - block_size, (batch_size,))
    rows = torch.stack([torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in ix])
    return rows[:, :-1], rows[:, 1:]
