"""Every block of every page runs: those that need torch in `test_torch_pages.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT
from pages import ADDRESS, OTHER_ADDRESS, PAGES, Block, Readers, blocks, blocks_of_pages


def test_no_page_with_examples_is_forgotten() -> None:
    folders = [ROOT, ROOT / "python", ROOT / "docs", ROOT / "docs" / "decisions"]
    pages = [path for folder in folders for path in folder.glob("*.md")]
    found = {str(path.relative_to(ROOT)) for path in pages if "```python" in path.read_text()}
    assert found == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_which_address_to_replace(page: str) -> None:
    text = (ROOT / page).read_text()
    found = {address for block in blocks(page) for address in re.findall(r"\d+\.\d+\.\d+\.\d+", block.text)}
    assert found - {OTHER_ADDRESS} == {ADDRESS}
    assert all(re.search(rf"`{address}` stands for [^.]* replace it", text) for address in found)


@pytest.mark.parametrize(("page", "block"), blocks_of_pages(with_torch=False))
def test_block(readers: Readers, page: str, block: Block) -> None:
    readers.of(page).run(block)
