"""Programs that end while batches are read ahead: their exit status, and what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from conftest import Daemon

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class ProgramEnd(NamedTuple):
    """How a program ended: its exit status, negative for a signal, and what it wrote."""

    status: int
    stdout: str
    stderr: str


Run = Callable[[str], ProgramEnd]

#: To import torch takes seconds. This does so once, and ends as a program in one child for each.
PROGRAMS = """
import json, os, sys
import numpy, torch, feedrail, feedrail.torch
for line in sys.stdin:
    program = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(status), flush=True)
else:
    sys.exit()
for number, path in [(1, program["stdout"]), (2, program["stderr"])]:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
exec(program["script"], {"__name__": "__main__"})
"""

#: How a loop is left, the exit status, and the last line on standard error.
WAYS = {
    "break": ("break", 0, ""),
    "exit": ("sys.exit(3)", 3, ""),
    "exception": ("raise ValueError(5)", 1, "ValueError: 5"),
}
#: `TokenDataset` casts what it has read, `RangeDataset` does not.
DATA_SETS = {
    "cast": "ft.TokenDataset(source, 1024, stride=64)",
    "as stored": "ft.RangeDataset(source, Index.of(np.arange(100_000) * 64, 2050))",
}
LOADERS = {
    "anonymous": "for step, batch in enumerate({loader}):",
    "named": "loader = {loader}\nfor step, batch in enumerate(loader):",
    "stream": "for step, batch in enumerate(ft.StreamDataset(dataset, 480)):",
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    path: Path = tmp_path_factory.mktemp("exit") / "train.bin"
    np.zeros(25_000_000, np.uint16).tofile(path)
    running = Daemon(path)
    yield running
    running.kill()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("programs")
    out, err, pipe = folder / "stdout", folder / "stderr", subprocess.PIPE
    programs = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS], stdin=pipe, stdout=pipe, text=True, bufsize=1
    )
    assert programs.stdin is not None and programs.stdout is not None

    def run(script: str) -> ProgramEnd:
        program = {"script": script, "stdout": str(out), "stderr": str(err)}
        print(json.dumps(program), file=programs.stdin, flush=True)
        return ProgramEnd(json.loads(programs.stdout.readline()), out.read_text(), err.read_text())

    yield run
    programs.communicate()


@pytest.mark.parametrize("provider", ["shm", "soft"])
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("dataset", DATA_SETS)
@pytest.mark.parametrize("way", WAYS)
def test_programs_end_as_they_say(
    tokens: Daemon,
    run: Run,
    pytestconfig: pytest.Config,
    way: str,
    dataset: str,
    loader: str,
    provider: str,
) -> None:
    leave, status, said = WAYS[way]
    loop = LOADERS[loader].format(loader="ft.Loader(dataset, 480, sampler=order)")
    head = f"""
        import sys
        import numpy as np
        import feedrail, feedrail.torch as ft
        from feedrail.index import Index
        source = feedrail.open({tokens.url!r}, provider={provider!r})
        dataset = {DATA_SETS[dataset]}
        order = ft.Order(len(dataset), seed=1)
    """
    script = f"{textwrap.dedent(head)}{loop}\n    if step == 20: {leave}\n"
    for _ in range(pytestconfig.getoption("--exits")):
        ended = run(script)
        lines = ended.stderr.splitlines()
        assert (ended.status, "".join(lines[-1:])) == (status, said), ended.stderr
        assert lines == [] or lines[0].startswith("Traceback"), ended.stderr


def test_threads_begin_none_when_the_interpreter_ends(tokens: Daemon, run: Run) -> None:
    script = f"""
        import atexit
        import feedrail, feedrail.torch as ft
        dataset = ft.TokenDataset(feedrail.open({tokens.url!r}), 1024)
        loader = ft.Loader(dataset, 480)
        next(loader)

        @atexit.register
        def end():
            try:
                while True: next(loader)
            except RuntimeError as error:
                print(error)
    """
    ended = run(textwrap.dedent(script))
    said = "batches cannot be read ahead: the interpreter is ending\n"
    assert ended == ProgramEnd(0, said, "")
