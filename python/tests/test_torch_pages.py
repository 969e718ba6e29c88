"""Every block of every page that needs torch runs, and loaders with any number of workers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from pages import PAGES, Block, Readers, blocks, blocks_of_pages

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

#: Gives each `DataLoader` another number of workers, started in another way.
WORKERS = """
from torch.utils.data import DataLoader
made = DataLoader.__init__
def make(self, dataset, **options):
    options["num_workers"] = {workers}
    options["persistent_workers"] = {workers} > 0 and options.get("persistent_workers", False)
    made(self, dataset, **options, multiprocessing_context={start!r}, timeout={timeout})
DataLoader.__init__ = make
"""
WITH_WORKERS = [
    pytest.param(page, block, id=f"{page}-{block.number}")
    for page in PAGES
    for block in blocks(page)
    if "DataLoader(" in block.text
]


@pytest.mark.parametrize(("page", "block"), blocks_of_pages(with_torch=True))
def test_block(readers: Readers, page: str, block: Block) -> None:
    readers.of(page).run(block)


@pytest.mark.parametrize(("workers", "start"), [(0, None), *itertools.product((1, 2), ("fork", "spawn"))])
@pytest.mark.parametrize(("page", "block"), WITH_WORKERS)
def test_data_loaders_with_workers(
    readers: Readers, page: str, block: Block, workers: int, start: str | None
) -> None:
    prefix = WORKERS.format(workers=workers, start=start, timeout=120 if workers else 0)
    readers.of(page).run(replace(block, prefix=prefix))
