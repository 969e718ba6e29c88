"""The notebook of the examples, run as Jupyter runs it: in an empty folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT, binary
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = ROOT / "python" / "examples" / "tour.ipynb"
_LONG = 240


def read() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; kernels find the programs under test, and no settings of a user."""
    for name in ["JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "TMPDIR"]:
        monkeypatch.setenv(name, str(tmp_path / name))
        (tmp_path / name).mkdir()
    for name in ["JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "MPLBACKEND"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEEDRAIL_BIN_DIR", str(binary("feedrail").parent))
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=_LONG, startup_timeout=_LONG, resources=resources).execute()


def said(cell: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that run in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd") == str(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def wait_until_no_process_is_in(folder: Path) -> None:
    for _ in range(10 * _LONG):
        if not processes_in(folder):
            return
        time.sleep(0.1)
    pytest.fail(f"left: {processes_in(folder)}")


@dataclass
class Kernel:
    """A kernel in which cells run one after the other.

    Attributes:
        manager: What starts, interrupts and ends it.
        client: What sends it cells.
    """

    manager: Any
    client: Any

    def run(self, source: str, on_output: Callable[[dict[str, Any]], None] = lambda message: None) -> str:
        """Runs a cell; the name of the exception that ended it, or nothing."""
        reply = self.client.execute_interactive(
            source, allow_stdin=False, output_hook=on_output, timeout=_LONG
        )
        return str(reply["content"].get("ename", ""))


@pytest.fixture
def kernel(folder: Path) -> Iterator[Kernel]:
    kernel = Kernel(*start_new_kernel(startup_timeout=_LONG, cwd=str(folder)))
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def test_it_is_kept_without_results() -> None:
    """`jupyter nbconvert --clear-output --inplace` removes them."""
    notebook = read()
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for cell in code_cells(notebook).values():
        assert cell.outputs == [] and cell.execution_count is None, cell.id


def test_a_sentence_is_before_each_cell() -> None:
    for before, cell in itertools.pairwise(read().cells):
        assert cell.cell_type == "markdown" or before.cell_type == "markdown", cell.id


def test_every_cell_runs(folder: Path) -> None:
    notebook = read()
    execute(notebook, folder)
    cells = code_cells(notebook)
    assert "300/300" in said(cells["train"])
    found = re.search(r"loss (\S+) at first, (\S+) after 300 steps", said(cells["train"]))
    assert found is not None
    first, last = map(float, found.groups())
    validation = float(said(cells["validation"]).split()[-1])
    # Logits of 0 have a loss of 5.55, the logarithm of 256, and the best possible ones 0.80.
    assert 5.5 < first < 5.6 and 0.7 < last < 0.9 and 0.7 < validation < 0.9
    assert any("image/png" in output.get("data", {}) for output in cells["plot"].outputs)
    assert said(cells["end"]) == "the target ended with 0\n"
    assert processes_in(folder) == []
    assert list(folder.iterdir()) == [] and list(Path(os.environ["TMPDIR"]).iterdir()) == []


def test_a_cell_that_fails_leaves_no_target(folder: Path) -> None:
    notebook = read()
    place = [cell.id for cell in notebook.cells].index("open") + 1
    notebook.cells.insert(place, nbformat.v4.new_code_cell("print(target.pid)\nraise RuntimeError('on purpose')"))
    with pytest.raises(CellExecutionError, match="on purpose"):
        execute(notebook, folder)
    assert said(notebook.cells[place]).strip().isdecimal()
    wait_until_no_process_is_in(folder)


def test_training_that_was_interrupted_goes_on(kernel: Kernel) -> None:
    cells = {name: cell.source for name, cell in code_cells(read()).items()}
    # The second time, all cells run again in a kernel that has run them.
    for train_id in ["train", "none"]:
        for name, source in cells.items():
            if name == train_id:
                interrupt_training(kernel, source)
            assert kernel.run(source) == "", name


def interrupt_training(kernel: Kernel, source: str) -> None:
    endless = source.replace("TRAINING_STEPS = 300", "TRAINING_STEPS = 10**9")
    assert endless != source
    bars = itertools.count()

    def interrupt(message: dict[str, Any]) -> None:
        # The first bar is drawn before the first step.
        if message["msg_type"] == "stream" and next(bars) == 1:
            kernel.manager.interrupt_kernel()

    assert kernel.run(endless, interrupt) == "KeyboardInterrupt"
    # Less than all steps are done, and the target still serves.
    assert kernel.run("assert losses and target.poll() is None\ndel losses[200:]") == ""


def test_a_killed_kernel_leaves_no_target(kernel: Kernel, folder: Path) -> None:
    for name, cell in code_cells(read()).items():
        assert kernel.run(cell.source) == "", name
        if name == "open":
            break
    assert any("feedrail serve" in line for line in processes_in(folder))
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    wait_until_no_process_is_in(folder)
