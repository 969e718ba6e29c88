"""Rows at any offset by each way of starting workers; `--rows 1000000` compares more of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Daemon
from numpy.lib.stride_tricks import sliding_window_view

import feedrail
from feedrail.index import Windows

torch = pytest.importorskip("torch")

import feedrail.torch as ft
import torch_jobs
from torch.utils.data import DataLoader

pytestmark = pytest.mark.torch
#: A row of nanoGPT: 1,025 tokens.
ROW_BYTES = 2050
BATCH = 480


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("opened", ["before", "after"])
def test_rows(
    daemon: Daemon,
    content: np.ndarray,
    pytestconfig: pytest.Config,
    method: str,
    workers: int,
    opened: str,
) -> None:
    rows = pytestconfig.getoption("--rows")
    windows = Windows([len(content)], ROW_BYTES, 1)
    dataset: Any = torch_jobs.Reopened(daemon.url, windows)
    if opened == "before":
        dataset = ft.RangeDataset(feedrail.open(daemon.url), windows)
        dataset[0]
    numbers = np.random.default_rng(workers).integers(0, len(windows), rows)
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=numbers.tolist(),
        num_workers=workers,
        collate_fn=ft.collate,
        multiprocessing_context=method if workers else None,
        timeout=120 if workers else 0,
    )
    wanted, at = sliding_window_view(content, ROW_BYTES), 0
    for batch in loader:
        assert np.array_equal(batch.stacked().numpy(), wanted[numbers[at : at + len(batch)]])
        at += len(batch)
    assert at == rows
    print(f"{method}, {workers} workers, opened {opened}: {rows} rows equal")
