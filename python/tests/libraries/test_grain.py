"""A source for grain's data sets and loaders."""

from __future__ import annotations

import numpy as np
import pytest

import feedrail
from feedrail.grain import RangeDataSource
from feedrail.index import Index

SAMPLES = 500


@pytest.fixture
def index(content: np.ndarray) -> Index:
    random = np.random.default_rng(17)
    lengths = random.integers(0, 5000, SAMPLES)
    return Index.of(random.integers(0, len(content) - lengths), lengths)


@pytest.fixture
def wanted(content: np.ndarray, index: Index) -> list[bytes]:
    return [
        content[offset : offset + length].tobytes()
        for _, length, offset, _ in index.records.tolist()
    ]


@pytest.fixture
def ranges(source: feedrail.Source, index: Index) -> RangeDataSource:
    return RangeDataSource(source, index)


def test_samples(ranges: RangeDataSource, wanted: list[bytes]) -> None:
    """This much needs no grain."""
    assert len(ranges) == SAMPLES
    assert [ranges[number] for number in (0, 499, np.int64(7))] == [
        wanted[number] for number in (0, 499, 7)
    ]
    assert ranges._getitems([3, 3, 1]) == [wanted[number] for number in (3, 3, 1)]
    assert ranges._getitems([]) == []
    for outside in (-1, SAMPLES):
        with pytest.raises(IndexError, match=f"sample {outside} of {SAMPLES}"):
            ranges[outside]


def test_map_datasets(ranges: RangeDataSource, wanted: list[bytes]) -> None:
    grain = pytest.importorskip("grain")
    assert isinstance(ranges, grain.sources.RandomAccessDataSource)
    dataset, local = (
        grain.MapDataset.source(each).shuffle(seed=3).map(len).batch(7) for each in (ranges, wanted)
    )
    assert [batch.tolist() for batch in dataset] == [batch.tolist() for batch in local]
    assert list(grain.MapDataset.source(ranges).shuffle(seed=3)) == list(
        grain.MapDataset.source(wanted).shuffle(seed=3)
    )


def test_a_batch_is_one_read(
    ranges: RangeDataSource, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    grain = pytest.importorskip("grain")
    reads = []
    read_many = feedrail.Source.read_many
    monkeypatch.setattr(
        feedrail.Source,
        "read_many",
        lambda self, plan, out: reads.append(len(plan)) or read_many(self, plan, out),
    )
    dataset = grain.MapDataset.source(ranges)
    assert dataset._getitems(list(range(20, 60))) == wanted[20:60]
    assert reads == [40]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders(ranges: RangeDataSource, wanted: list[bytes], workers: int) -> None:
    grain = pytest.importorskip("grain")

    def read(source: object) -> list[bytes]:
        sampler = grain.samplers.IndexSampler(SAMPLES, shuffle=True, seed=5, num_epochs=1)
        return list(
            grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)
        )

    assert read(ranges) == read(wanted)
