"""What a type checker says of a program that uses the package: `mypy` checks this file.

Without torch its own types are `Any`, and those that hold them are checked all the same.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import feedrail
import feedrail.torch as ft
from feedrail.formats import Decoded, RawBatch, npy, safetensors, webdataset
from feedrail.index import Index, build


def programs(source: feedrail.Source, index: Index) -> None:
    assert_type(build(source), Index)
    assert_type(source.rows("train.bin", [0], 8).as_tensor(torch.int64), torch.Tensor)
    assert_type(source.rows("train.bin", [0], 8).as_numpy("u2"), NDArray[Any])
    assert_type(safetensors.load_file("model.safetensors"), dict[str, torch.Tensor])
    rank = safetensors.shard_slices(0, 2, {"up": 0}.get)
    for name, tensor in safetensors.stream(source, torch.device("cpu"), slices=rank, names={"up"}):
        assert_type(name, str)
        assert_type(tensor, torch.Tensor)
    half: dict[str, safetensors.Spec] = {"up": np.s_[..., :8], "down": slice(8)}
    with safetensors.stream("model.safetensors", shard=["a", 1], slices=half) as tensors:
        assert_type(next(tensors), tuple[str, torch.Tensor])

    plan = feedrail.make_plan([0], [8])
    assert_type(source.write_many(plan, b"eight by"), NDArray[np.void])
    assert_type(source.submit_write(plan, memoryview(b"eight by")), feedrail.Ticket)
    assert_type(source.pwrite(torch.zeros(2), 0, durable=True), int)
    assert_type(source.open(0, "r+b").write(b"eight by"), int)

    tokens = ft.TokenDataset(source, 8)
    assert_type(tokens, ft.TokenDataset[ft.TokenBatch, torch.Tensor])
    assert_type(tokens[0], torch.Tensor)
    assert_type(tokens.__getitems__([0]), ft.TokenBatch)
    loader = ft.Loader(tokens, 12)
    assert_type(loader, ft.Loader[ft.TokenBatch])
    assert_type(next(loader), ft.TokenBatch)
    for batch in loader:
        assert_type(batch, ft.TokenBatch)
        assert_type(batch.x, torch.Tensor)

    ranges = ft.RangeDataset(source, index)
    assert_type(ranges[0], torch.Tensor)
    assert_type(next(ft.Loader(ranges, 4)), ft.Batch)
    for some in ft.StreamDataset(ranges, 4):
        assert_type(some, ft.Batch)

    decoded = ft.RangeDataset(source, index, transform=webdataset.Decoder())
    assert_type(decoded[0], Decoded[dict[str, Any]])
    assert_type(next(ft.Loader(decoded, 4)), Decoded[dict[str, Any]])
    for samples in ft.StreamDataset(decoded, 4):
        assert_type(samples, Decoded[dict[str, Any]])
    assert_type(ft.RangeDataset(source, index, transform=size)[0], int)
    assert_type(ft.TokenDataset(source, 8, transform=size)[0], int)

    raw = RawBatch.read(source, index, np.arange(3))
    assert_type(npy.Decoder("u2")(raw), NDArray[Any])
    assert_type(webdataset.Decoder()(raw)[0], dict[str, Any])


def size(batch: ft.Batch) -> int:
    return len(batch)


def checkpoints(weights: NDArray[np.float32], state: dict[str, torch.Tensor]) -> None:
    url = "nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt"
    assert_type(feedrail.CheckpointStore.format(url), str)
    with feedrail.CheckpointStore([url], write_quorum=1) as store:
        with store.begin(step=1, metadata={"loss": 0.5}, keep=2) as save:
            assert_type(save, feedrail.CheckpointSave)
            save.write("weights", weights)
            save.write("config", b"")
            save.commit()
        for one in store:
            assert_type(one, feedrail.Checkpoint)
        store["step-1"].read_into(state)
        assert_type(store.verify().damaged, tuple[feedrail.DamagedUnit, ...])
        assert_type(store.repair(), tuple[feedrail.RepairReport, ...])
        assert_type(store.replicas, tuple[feedrail.CheckpointReplica, ...])
