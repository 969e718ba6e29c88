"""A GPT of two small layers that learns a file of tokens: GPT-2's, or fewer kinds.

    python tiny_gpt.py train.bin
    python tiny_gpt.py nvmf://192.0.2.10/nqn.2026-01.org.example:shards/train.bin

`192.0.2.10` stands for the address of your target. With a file of fewer kinds of tokens, such as the
256 values of a byte, `--vocabulary 256` makes the model smaller.

The losses are the same to the bit, wherever the tokens come from.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import feedrail
import feedrail.torch

#: Kinds of tokens of GPT-2.
VOCABULARY = 50257
BLOCK, WIDTH, HEADS, LAYERS = 32, 32, 4, 2
BATCH = 16
Batches = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyGpt(nn.Module):
    """Logits of the next token at each position."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(torch.randn(BLOCK, WIDTH) * 0.02)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.tokens(x) + self.positions) @ self.tokens.weight.T


def local(path: str) -> tuple[int, Batches]:
    """Number of windows of a local file, and what reads them: as nanoGPT does it."""
    data = np.memmap(path, np.uint16, "r")

    def batch(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [torch.from_numpy(data[i : i + BLOCK + 1].astype(np.int64)) for i in starts.tolist()]
        windows = torch.stack(rows)
        return windows[:, :-1], windows[:, 1:]

    return len(data) - BLOCK, batch


def remote(url: str) -> tuple[int, Batches]:
    """Number of windows of a remote file, and what reads them: one call for each batch."""
    dataset = feedrail.torch.TokenDataset(feedrail.open(url), BLOCK, stride=1)

    def batch(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        read = dataset.__getitems__(starts.numpy())
        return read.x, read.y

    return len(dataset), batch


def train(path_or_url: str, steps: int = 200, vocabulary: int = VOCABULARY) -> list[float]:
    """Losses of each step."""
    torch.manual_seed(1)
    windows, batch = (remote if "://" in path_or_url else local)(path_or_url)
    model = TinyGpt(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(steps):
        x, y = batch(torch.randint(windows, (BATCH,)))
        if (largest := max(x.max().item(), y.max().item())) >= vocabulary:
            raise SystemExit(f"token {largest} is not below the vocabulary of {vocabulary}")
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path_or_url")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    curve = train(**vars(parser.parse_args()))
    print(f"loss {curve[0]:.4f} -> {curve[-1]:.4f} in {len(curve)} steps")
