"""Streams in `DataLoader` and in torchdata's `StatefulDataLoader`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import feedrail

torch = pytest.importorskip("torch")

import feedrail.torch as ft
import torch_jobs
from torch.utils.data import DataLoader

pytestmark = pytest.mark.torch
SAMPLES = 331


@pytest.fixture
def dataset(source: feedrail.Source, content: np.ndarray) -> ft.RangeDataset:
    return ft.RangeDataset(source, torch_jobs.random_index(len(content), SAMPLES))


def stream_of(dataset: ft.RangeDataset, rank: int = 0, world: int = 1) -> ft.StreamDataset:
    order = ft.Order(SAMPLES, seed=2, rank=rank, world_size=world)
    return ft.StreamDataset(dataset, 12 // world, order=order)


def loader_of(stream: ft.StreamDataset, workers: int, kind: Any = DataLoader) -> Any:
    timeout = 120 if workers else 0
    return kind(stream, batch_size=None, num_workers=workers, timeout=timeout)


def numbers(batches: Any) -> list[list[int]]:
    return [batch.indices.tolist() for batch in batches]


def cut(sequence: list[int], size: int) -> list[list[int]]:
    return [sequence[at : at + size] for at in range(0, len(sequence), size)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order(
    dataset: ft.RangeDataset, content: np.ndarray, workers: int
) -> None:
    records = torch_jobs.random_index(len(content), SAMPLES).records
    batches = list(loader_of(stream_of(dataset), workers))
    assert numbers(batches) == cut(list(ft.Order(SAMPLES, seed=2)), 12)
    for batch in batches:
        for number, sample in zip(batch.indices.tolist(), batch, strict=True):
            _, length, offset, _ = records[number].tolist()
            assert sample.numpy().tobytes() == content[offset : offset + length].tobytes()


def test_epochs_are_set(dataset: ft.RangeDataset) -> None:
    stream, order = stream_of(dataset), ft.Order(SAMPLES, seed=2)
    loader = loader_of(stream, 0)
    for epoch in (0, 0, 1, 5):
        stream.set_epoch(epoch)
        order.set_epoch(epoch)
        assert sum(numbers(loader), []) == list(order)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_epochs_are_set_in_workers_that_persist(dataset: ft.RangeDataset, start: str) -> None:
    stream, order = stream_of(dataset), ft.Order(SAMPLES, seed=2)
    loader = DataLoader(
        stream, None, num_workers=1, multiprocessing_context=start, persistent_workers=True, timeout=120
    )
    for epoch in (0, 1, 1, 3):
        stream.set_epoch(epoch)
        order.set_epoch(epoch)
        assert sum(numbers(loader), []) == list(order)


def test_a_stream_has_a_length(dataset: ft.RangeDataset) -> None:
    loader = loader_of(stream_of(dataset), 1)
    assert len(loader) == len(stream_of(dataset)) == 28 == len(list(loader))
    assert len(stream_of(dataset, 1, 6)) == 28


@pytest.mark.parametrize("workers", [0, 1])
def test_who_uses_tokens_casts_them(source: feedrail.Source, workers: int) -> None:
    """What is sent from a worker is the tokens as they are stored."""
    dataset = ft.TokenDataset(source, 999, dtype="uint8", transform=torch_jobs.is_cast)
    batches = loader_of(ft.StreamDataset(dataset, 4000), workers)
    assert {bool(was_cast) for was_cast in batches} == {workers == 0}


@pytest.mark.parametrize("stopped_after", [0, 1, 5])
def test_other_worlds_and_workers_go_on_where_one_stopped(
    dataset: ft.RangeDataset, stopped_after: int
) -> None:
    """World 4, 2, 6 with 0, 3, 1 workers."""
    expected, at, state = list(ft.Order(SAMPLES, seed=2)), 0, None
    for world, workers, steps in [(4, 0, stopped_after), (2, 3, 4), (6, 1, 99)]:
        ranks, states = [], []
        for rank in range(world):
            stream = stream_of(dataset, rank, world)
            if state is not None:
                stream.load_state_dict(state)
            pairs = zip(range(steps), loader_of(stream, workers), strict=False)
            ranks.append([batch for _, batch in pairs])
            states += [batch.state for batch in ranks[-1][-1:]]
        state = states[0] if states else state
        read = [numbers(batches) for batches in ranks]
        for step in range(max(map(len, read))):
            whole = expected[at : at + 12]
            got = [rank[step] if step < len(rank) else [] for rank in read]
            assert got == [whole[r::world] for r in range(world)]
            at += len(whole)
    assert at == SAMPLES


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("stopped_after", [1, 2, 7, 27])
def test_stateful_data_loaders(
    dataset: ft.RangeDataset, workers: int, stopped_after: int
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    expected = cut(list(ft.Order(SAMPLES, seed=2)), 12)
    loader = loader_of(stream_of(dataset), workers, stateful)
    batches = iter(loader)
    assert numbers(next(batches) for _ in range(stopped_after)) == expected[:stopped_after]
    state = loader.state_dict()
    del batches, loader
    other = loader_of(stream_of(dataset), workers, stateful)
    other.load_state_dict(state)
    assert numbers(other) == expected[stopped_after:]


def test_loaders_and_streams_have_the_same_states(dataset: ft.RangeDataset) -> None:
    stream = stream_of(dataset)
    batches = iter(stream)
    for _ in range(3):
        last = next(batches)
    assert last.state == stream.state_dict()
    with ft.Loader(dataset, 12, sampler=ft.Order(SAMPLES, seed=2)) as loader:
        loader.load_state_dict(last.state)
        assert numbers([next(loader), next(loader)]) == numbers([next(batches), next(batches)])
        stream.load_state_dict(loader.state_dict())
        assert numbers(stream) == numbers(loader)


def test_states_of_workers_are_theirs(dataset: ft.RangeDataset) -> None:
    state = {**stream_of(dataset).state_dict(), "worker": [1, 3]}
    with pytest.raises(ValueError, match="worker 1 of 3: load the state of a batch"):
        stream_of(dataset).load_state_dict(state)
    with pytest.raises(ValueError, match="seed"):
        stream_of(dataset).load_state_dict({**stream_of(dataset).state_dict(), "seed": 9})
