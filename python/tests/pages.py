"""The pages that have examples, and what runs these as a reader would: in order, in one folder."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from conftest import ROOT, Daemon, binary, loopback_address

PAGES = ["python/README.md", "docs/data-loaders.md", "docs/checkpoints.md"]
#: The address that pages have, and that readers replace.
ADDRESS = "192.0.2.10"
#: That of a second target.
OTHER_ADDRESS = "192.0.2.11"
#: How many tokens the pages write.
TOKENS = "600_000"
_LONG = 240
_WITH_TORCH = multiprocessing.get_context("forkserver")
_WITH_TORCH.set_forkserver_preload(["torch", "torch.utils.data", "feedrail.torch"])
#: What these do is done before tests run.
_INSTALLERS = ("pip", "cargo")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        prefix: What a test has the program do before.
    """

    number: int
    kind: Literal["python", "console"]
    text: str
    prefix: str = ""

    @property
    def needs_torch(self) -> bool:
        return "torch" in re.sub("#.*", "", self.text)

    @property
    def is_preparation(self) -> bool:
        """Whether blocks behind it need what it leaves."""
        return self.kind == "console" or "feedrail" not in self.text


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(python|console)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [Block(number, kind, text) for number, (kind, text) in enumerate(found)]


def blocks_of_pages(*, with_torch: bool) -> list[object]:
    """All blocks, each as a parameter of a test."""
    return [
        pytest.param(page, block, id=f"{Path(page).stem}-{block.number}")
        for page in PAGES
        for block in blocks(page)
        if block.needs_torch == with_torch
    ]


@dataclass
class Reader:
    """Somebody who types what a page has.

    Attributes:
        folder: Where it is typed: an empty folder at first.
        tokens: How many the page's file of tokens gets.
    """

    page: str
    folder: Path
    tokens: int
    address: str = field(default_factory=loopback_address)
    other_address: str = field(default_factory=loopback_address)
    _done: set[int] = field(default_factory=set)
    _targets: list[Daemon] = field(default_factory=list)

    def run(self, block: Block) -> None:
        """Runs a block, after those before it that prepare something and did not run yet."""
        for earlier in blocks(self.page)[: block.number]:
            if earlier.is_preparation and earlier.number not in self._done:
                self._run(earlier)
        self._run(block)

    def end(self) -> None:
        for target in self._targets:
            target.kill()

    def _run(self, block: Block) -> None:
        self._done.add(block.number)
        text = block.text.replace(ADDRESS, self.address).replace(OTHER_ADDRESS, self.other_address)
        text = text.replace(TOKENS, str(self.tokens))
        if block.kind == "python":
            script = self.folder / "example.py"
            script.write_text(block.prefix + text)
            run = self._fork if block.needs_torch else self._start_python
            assert run(script) == (0, ""), block.text
            return
        for line in text.splitlines():
            program, *arguments = shlex.split(line, comments=True)
            if program == "feedrail-target":
                self._targets.append(Target(self.folder, *arguments))
            elif program not in _INSTALLERS:
                ended = self._start(binary(program), *arguments)
                assert ended.returncode == 0, ended.stderr

    def _start_python(self, script: Path) -> tuple[int | None, str]:
        ended = self._start(sys.executable, script)
        return ended.returncode, ended.stderr

    def _fork(self, script: Path) -> tuple[int | None, str]:
        """Runs a script in a process that has imported torch already, which takes seconds."""
        said = self.folder / "stderr"
        process = _WITH_TORCH.Process(target=run_script, args=(script, said))
        process.start()
        process.join(_LONG)
        process.kill()
        return process.exitcode, said.read_text()

    def _start(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_LONG, check=False, cwd=self.folder
        )


def run_script(script: Path, said: Path) -> None:
    """Runs in the child."""
    os.chdir(script.parent)
    # That of a program, and not of what was forked.
    multiprocessing.set_start_method(None, force=True)
    with said.open("w") as stderr:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
    runpy.run_path(str(script), run_name="__main__")


class Target(Daemon):
    """A target that is started by a line of a page, in the folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        listen = arguments.index("--listen")
        address = arguments[listen + 1]
        others = [*arguments[:listen], *arguments[listen + 2 :]]
        files = [folder / it if (folder / it).exists() else it for it in others]
        super().__init__(*files, address=address)


class Readers:
    """A reader for each page."""

    def __init__(self, folder: Path, tokens: int) -> None:
        self._folder, self._tokens = folder, tokens
        self._readers: dict[str, Reader] = {}

    def of(self, page: str) -> Reader:
        if page not in self._readers:
            folder = self._folder / Path(page).stem
            folder.mkdir()
            self._readers[page] = Reader(page, folder, self._tokens)
        return self._readers[page]

    def end(self) -> None:
        for reader in self._readers.values():
            reader.end()
