"""Every example of the README runs."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon, binary

from feedrail.index import build

README = Path(__file__).parents[1] / "README.md"
URL = "nvmf://192.0.2.10/nqn.2026-01.org.example:shards"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def needs_torch(number: int) -> bool:
    return "torch" in re.sub("#.*", "", EXAMPLES[number])


def cases() -> Iterator[object]:
    for number in range(len(EXAMPLES)):
        missing = needs_torch(number) and find_spec("torch") is None
        skip = pytest.mark.skipif(missing, reason="torch is not installed")
        yield pytest.param(number, marks=[pytest.mark.torch, skip] if needs_torch(number) else [])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the shards that the examples name."""
    folder = tmp_path_factory.mktemp("readme")
    tokens, random = folder / "train.bin", np.random.default_rng(3)
    random.integers(0, 50257, 600_123, dtype=np.uint16).tofile(tokens)
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for number in range(40):
            for extension, data in [("cls", str(number).encode()), ("bin", random.bytes(3000))]:
                member = tarfile.TarInfo(f"{number:06}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    running = Daemon(tokens, folder / "samples.tar")
    yield running
    running.kill()


def test_examples_are_found() -> None:
    opened = [URL, "fsspec", "manifest.json"]
    assert len(EXAMPLES) == 17 and sum(map(needs_torch, range(len(EXAMPLES)))) == 4
    assert all(any(it in example for it in opened) for example in EXAMPLES)


@pytest.mark.parametrize("number", cases())
def test_example(shards: Daemon, tmp_path: Path, number: int) -> None:
    example = EXAMPLES[number].replace(URL, shards.url)
    if "manifest.json" in example:
        write_manifest(shards, tmp_path)
    script = tmp_path / "example.py"
    script.write_text(example)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (0, ""), example


#: Gives each `DataLoader` another number of workers, started in another way.
WORKERS = """
from torch.utils.data import DataLoader
made = DataLoader.__init__
def make(self, dataset, **options):
    options["num_workers"] = {workers}
    made(self, dataset, **options, multiprocessing_context={start!r}, timeout={timeout})
DataLoader.__init__ = make
"""


@pytest.mark.torch
@pytest.mark.parametrize(("workers", "start"), [(0, None), *itertools.product((1, 2), ("fork", "spawn"))])
@pytest.mark.parametrize("number", [n for n, text in enumerate(EXAMPLES) if "DataLoader(" in text])
def test_data_loaders_with_workers(
    shards: Daemon, tmp_path: Path, number: int, workers: int, start: str | None
) -> None:
    pytest.importorskip("torch")
    patch = WORKERS.format(workers=workers, start=start, timeout=120 if workers else 0)
    # What `spawn` starts does not run what comes by `-c` again.
    script = patch + EXAMPLES[number].replace(URL, shards.url)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), script


def write_manifest(daemon: Daemon, folder: Path) -> None:
    """A manifest and its index, as the example has them in the current folder."""
    build(f"{daemon.url}/train.bin", block_size=5_000).save(folder / "index.npy")
    command = [binary("feedrail"), "manifest", "--name=set", "--index=index.npy"]
    command += ["--output=manifest.json", daemon.url]
    subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=folder)
