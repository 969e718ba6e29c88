"""The examples that need torch, each as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT, Serve, binary

import feedrail

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
EXAMPLES = ROOT / "python" / "examples"
LONG = 250


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens below 256 that can be learned: each depends on the one before."""
    random = np.random.default_rng(5)
    steps = random.choice([1, 3, 7], 60_123, p=[0.7, 0.2, 0.1])
    path = tmp_path_factory.mktemp("tokens") / "train.bin"
    (np.cumsum(steps) % 256).astype(np.uint16).tofile(path)
    return path


def module(path: Path, source: str | None = None) -> ModuleType:
    made = ModuleType(path.stem)
    text = path.read_text() if source is None else source
    exec(compile(text, str(path), "exec"), vars(made))
    return made


def run(*command: str | Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LONG, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_gpt_learns_the_same_from_afar(serve: Serve, tokens: Path) -> None:
    """Every loss is equal to the bit, and the model learns."""
    example = module(EXAMPLES / "tiny_gpt.py")
    local = example.train(str(tokens), 200, vocabulary=256)
    remote = example.train(f"{serve(tokens).url}/train.bin", 200, vocabulary=256)
    assert local == remote
    assert local[-1] < local[0] - 1


def test_a_gpt_takes_the_tokens_of_gpt_2(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    np.random.default_rng(5).integers(0, 50257, 60_123, dtype=np.uint16).tofile(path)
    url = f"{serve(path).url}/train.bin"
    said = [run(sys.executable, EXAMPLES / "tiny_gpt.py", data, "--steps", "3") for data in (path, url)]
    assert said[0] == said[1] and said[0].endswith("in 3 steps\n")
    with pytest.raises(SystemExit, match="is not below the vocabulary of 256"):
        module(EXAMPLES / "tiny_gpt.py").train(str(path), 1, vocabulary=256)


def test_nanogpt_changes_four_lines(serve: Serve, tokens: Path, tmp_path: Path) -> None:
    diff = EXAMPLES / "nanogpt.diff"
    lines = diff.read_text().splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    removed = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    assert len(added) <= 4 and len(removed) <= 4
    local, remote = EXAMPLES / "nanogpt_local.py", tmp_path / "nanogpt_remote.py"
    run("patch", "--quiet", "-o", remote, local, diff)
    batches = []
    for path, data in [(local, str(tokens)), (remote, serve(tokens).url)]:
        loader = module(path)
        opened = loader.open_tokens(data)
        torch.manual_seed(3)
        batches.append([loader.get_batch(opened) for _ in range(5)])
    for (x, y), (far_x, far_y) in zip(*batches, strict=True):
        assert x.dtype == far_x.dtype and torch.equal(x, far_x) and torch.equal(y, far_y)


def test_two_ranks_read_each_sample_once(serve: Serve, tokens: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    said = run(*torchrun, "--nproc-per-node", "2", EXAMPLES / "two_ranks.py", serve(tokens).url)
    whole = (60_123 - 256) // 255 + 1
    assert said == f"{whole - whole % 32} of {whole} samples, none twice: True\n"


def test_the_quick_start() -> None:
    said = run(sys.executable, EXAMPLES / "quickstart.py", binary("feedrail-target"))
    assert said.startswith("torch: 480 rows") and said.endswith("all as in the file\n")


def test_the_cell_of_the_tour_learns(
    serve: Serve, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    source = "".join(next(cell["source"] for cell in cells if cell["id"] == "torch"))
    names = {"feedrail": feedrail, "url": serve(tokens).url, "BATCH": 8, "WINDOW": 64, "VOCABULARY": 256}
    exec(compile(source, "tour.ipynb", "exec"), names)
    first, *_, last = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert last < first - 1


def test_weights_are_loaded(serve: Serve, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    path = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.ones(3, 2), "b": torch.zeros(4, dtype=torch.bfloat16)}, path)
    said = run(sys.executable, EXAMPLES / "load_safetensors.py", serve(path).url)
    assert sorted(said.splitlines()) == [
        "a.weight (3, 2) torch.float32",
        "b (4,) torch.bfloat16",
    ]
