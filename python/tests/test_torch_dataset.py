"""Data sets of `feedrail.torch`, and `DataLoader`s over them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Daemon, Serve

import feedrail
from feedrail.index import Index

torch = pytest.importorskip("torch")

import feedrail.torch as ft
import torch_jobs
from torch.utils.data import DataLoader

pytestmark = pytest.mark.torch
BLOCK = 255


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens above 32,767 too; a size that is no multiple of a block."""
    path = tmp_path_factory.mktemp("tokens") / "train.bin"
    np.random.default_rng(3).integers(0, 50257, 200_123, dtype=np.uint16).tofile(path)
    return path


def samples_of(content: np.ndarray, index: Index) -> list[bytes]:
    return [
        content[offset : offset + length].tobytes()
        for _, length, offset, _ in index.records.tolist()
    ]


def as_bytes(batch: ft.Batch) -> list[bytes]:
    return [sample.numpy().tobytes() for sample in batch]


def test_the_package_does_not_import_torch() -> None:
    script = "import sys, feedrail, feedrail.index; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_batches_have_the_samples_of_the_index(
    source: feedrail.Source, content: np.ndarray
) -> None:
    index = torch_jobs.random_index(len(content), 100)
    dataset, wanted = ft.RangeDataset(source, index), samples_of(content, index)
    assert len(dataset) == 100
    batch = dataset.__getitems__([5, 99, 5, -1, 0])
    assert as_bytes(batch) == [wanted[i] for i in (5, 99, 5, 99, 0)]
    assert batch.indices.tolist() == [5, 99, 5, 99, 0]
    assert [batch[i].numpy().tobytes() for i in range(-5, 5)] == 2 * as_bytes(batch)
    assert dataset[7].numpy().tobytes() == wanted[7]
    assert batch.data.nbytes == batch.nbytes == sum(len(wanted[i]) for i in (5, 99, 5, 99, 0))
    assert len(dataset.__getitems__([])) == 0


def test_elements_have_a_dtype(source: feedrail.Source, content: np.ndarray) -> None:
    index = Index.of([0, 8, 100], [8, 24, 16])
    batch = ft.RangeDataset(source, index, dtype="<f8").__getitems__([2, 0])
    assert batch.data.dtype == torch.float64 and batch.lengths.tolist() == [2, 1]
    assert batch[0].view(torch.uint8).tolist() == content[100:116].tolist()
    with pytest.raises(ValueError, match="different lengths"):
        batch.stacked()


@pytest.mark.parametrize("dtype", [">u2", "M8[s]", "U3"])
def test_dtypes_that_torch_lacks(source: feedrail.Source, dtype: str) -> None:
    with pytest.raises(TypeError, match="torch has no"):
        ft.RangeDataset(source, Index.of([0], [8]), dtype=dtype)


def test_what_does_not_fit_is_refused(source: feedrail.Source, content: np.ndarray) -> None:
    dataset = ft.RangeDataset(source, Index.of([0, 5, len(content) - 4], [8, 7, 8]), dtype="u4")
    with pytest.raises(ValueError, match="sample 1 has 7 bytes"):
        dataset[1]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"sample {wrong} of 3"):
            dataset.__getitems__([0, wrong])
    with pytest.raises(feedrail.RangeError, match="entry 1: 8 bytes"):
        dataset.__getitems__([0, 2])
    with pytest.raises(TypeError, match="INDEX_DTYPE"):
        Index(np.zeros(3))
    with pytest.raises(IndexError):
        dataset.__getitems__([0])[1]


def test_an_index_is_saved_and_mapped(tmp_path: Path) -> None:
    index = torch_jobs.random_index(1 << 20, 1000)
    index.save(tmp_path / "index.npy")
    loaded = Index.load(tmp_path / "index.npy")
    pickled = pickle.dumps(loaded)
    assert len(pickled) < 500
    for other in (loaded, pickle.loads(pickled), pickle.loads(pickle.dumps(index))):
        assert np.array_equal(other.records, index.records)


@pytest.mark.parametrize("stride", [None, 1, 100])
def test_tokens_are_windows(serve: Serve, tokens: Path, stride: int | None) -> None:
    daemon = serve(tokens)
    local = np.fromfile(tokens, np.uint16)
    dataset = ft.TokenDataset(feedrail.open(daemon.url), BLOCK, stride=stride)
    step = stride or BLOCK
    assert len(dataset) == (len(local) - BLOCK - 1) // step + 1
    if stride == 1:
        assert len(dataset) == len(local) - BLOCK
    numbers = [0, 17, len(dataset) - 1]
    batch = dataset.__getitems__(numbers)
    assert batch.x.dtype == batch.y.dtype == torch.int64
    assert batch.x.shape == batch.y.shape == (3, BLOCK)
    for row, number in enumerate(numbers):
        window = local[number * step :][: BLOCK + 1].astype(np.int64)
        assert np.array_equal(batch.x[row].numpy(), window[:-1])
        assert np.array_equal(batch.y[row].numpy(), window[1:])
    assert batch.tokens.dtype == torch.uint16
    assert batch.y.data_ptr() == batch.x.data_ptr() + 8


def test_tokens_of_many_shards_behind_headers(serve: Serve, tmp_path: Path) -> None:
    local, paths = [], []
    for number, count in enumerate([1000, 3, 0, 517]):
        local.append(np.arange(count, dtype=np.uint32) + 10_000 * number)
        paths.append(tmp_path / f"{number}.bin")
        paths[-1].write_bytes(b"h" * 1024 + local[-1].tobytes())
    daemon = serve(*paths)
    source = feedrail.open(daemon.url)
    dataset = ft.TokenDataset(source, 9, dtype="uint32", stride=10, header_bytes=1024)
    windows = [
        shard[at : at + 10] for shard in local for at in range(0, len(shard) - 9, 10)
    ]
    batch = dataset.__getitems__(range(len(dataset)))
    assert len(dataset) == len(windows) and np.array_equal(batch.tokens.numpy(), windows)


def test_token_shards_that_do_not_fit(source: feedrail.Source) -> None:
    with pytest.raises(ValueError, match="no whole number"):
        ft.TokenDataset(source, 8)
    with pytest.raises(ValueError, match="stride 0"):
        ft.TokenDataset(source, 8, dtype="uint8", stride=0)


def test_fingerprints_differ(source: feedrail.Source) -> None:
    made = [
        ft.TokenDataset(source, block, dtype="uint8", stride=stride).fingerprint
        for block, stride in [(8, None), (8, 1), (9, None), (8, None)]
    ]
    assert len(set(made)) == 3 and made[0] == made[3]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("opened", ["before", "after"])
def test_data_loaders(
    daemon: Daemon, content: np.ndarray, method: str, workers: int, opened: str
) -> None:
    index = torch_jobs.random_index(len(content), 403)
    dataset: Any = torch_jobs.Reopened(daemon.url, index)
    if opened == "before":
        dataset = ft.RangeDataset(feedrail.open(daemon.url), index)
        dataset[0]
    loader = DataLoader(
        dataset,
        batch_size=50,
        num_workers=workers,
        collate_fn=ft.collate,
        multiprocessing_context=method if workers else None,
        timeout=120 if workers else 0,
    )
    got = [sample for batch in loader for sample in as_bytes(batch)]
    assert got == samples_of(content, index)


def test_workers_read_into_shared_memory(source: feedrail.Source, content: np.ndarray) -> None:
    dataset = ft.TokenDataset(source, 63, dtype="uint8", stride=64)
    loader = DataLoader(dataset, 100, num_workers=1, collate_fn=ft.collate, timeout=120)
    at = 0
    for batch in loader:
        assert batch.data.is_shared() and batch.data.untyped_storage().nbytes() == batch.nbytes
        assert np.array_equal(batch.data.numpy(), content[at : at + batch.nbytes])
        at += batch.nbytes
    assert at == 64 * len(dataset)


def test_transforms_run_in_workers(source: feedrail.Source, content: np.ndarray) -> None:
    index = torch_jobs.random_index(len(content), 50)
    dataset = ft.RangeDataset(source, index, transform=torch_jobs.total)
    loader = DataLoader(dataset, 20, num_workers=2, collate_fn=ft.collate, timeout=120)
    got = [total for batch in loader for total in batch]
    assert got == [sum(sample) for sample in samples_of(content, index)]
    assert dataset[3] == (got[3],)


def test_errors_of_workers_keep_their_class(source: feedrail.Source, content: np.ndarray) -> None:
    dataset = ft.RangeDataset(source, Index.of([len(content)], [1]))
    with pytest.raises(feedrail.RangeError, match="entry 0: 1 bytes"):
        list(DataLoader(dataset, 1, num_workers=1, collate_fn=ft.collate, timeout=120))


def test_tensors_are_dropped_amid_a_call(daemon: Daemon) -> None:
    """torch frees them with the interpreter detached, here while a call of ours makes errors."""
    script = f"""
        import gc, torch, numpy as np, feedrail
        source = feedrail.open({daemon.url!r})
        beyond = feedrail.make_plan(np.full(64, source.nbytes), 1)
        for _ in range(50):
            gc.disable()
            cycle = [torch.from_dlpack(source.rows(0, [0], 1 << 20)) for _ in range(5)]
            cycle.append(cycle)
            del cycle
            gc.set_threshold(1)
            gc.enable()
            try:
                source.read_many(beyond, bytearray(64))
            except feedrail.RangeError:
                pass
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_forgotten_collate_fn_is_named(source: feedrail.Source, workers: int) -> None:
    dataset = ft.TokenDataset(source, 999, dtype="uint8")
    with pytest.raises(TypeError, match="collate_fn=feedrail.torch.collate"):
        next(iter(DataLoader(dataset, 4, num_workers=workers)))
