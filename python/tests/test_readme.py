"""Every example of the README runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Daemon

README = Path(__file__).parents[1] / "README.md"
URL = "nvmf://192.0.2.10/nqn.2026-01.org.example:shards"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_examples_are_found() -> None:
    assert len(EXAMPLES) == 8 and all(URL in example or "fsspec" in example for example in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(daemon: Daemon, number: int) -> None:
    example = EXAMPLES[number].replace(URL, daemon.url)
    ended = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, ""), example
