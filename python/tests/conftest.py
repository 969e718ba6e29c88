"""Fixtures: daemons that serve files on addresses of their own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import feedrail

if TYPE_CHECKING:
    import pages

ROOT = Path(__file__).resolve().parents[2]
#: UDP port of RoCE v2.
ROCE_PORT = 4791


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rows", type=int, default=2000, help="rows that test_torch_rows.py compares in each cell"
    )
    parser.addoption(
        "--trials", type=int, default=24, help="files that test_changes.py changes in each test"
    )
    parser.addoption(
        "--exits", type=int, default=1, help="programs that test_torch_exit.py ends in each way"
    )
    parser.addoption(
        "--tokens", type=int, default=600_000, help="tokens in the file that the examples of pages read"
    )


def binary(name: str) -> Path:
    """A binary that `cargo build` made; `FEEDRAIL_BIN_DIR` names another folder."""
    folder = Path(os.environ.get("FEEDRAIL_BIN_DIR", ROOT / "out" / "debug"))
    found = folder / name
    if not found.exists():
        pytest.exit(f"{found} is missing: cargo build -p feedrail-target -p feedrail-cli", 4)
    return found


def loopback_address() -> str:
    """A random address in 127.0.0.0/8 on which nobody holds the port of RoCE now."""
    entropy = random.SystemRandom()
    for _ in range(64):
        parts = (entropy.randint(1, 254), entropy.randint(0, 255), entropy.randint(1, 254))
        address = "127.{}.{}.{}".format(*parts)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, ROCE_PORT))
            except OSError:
                continue
            return address
    raise RuntimeError("no free loopback address")


def stop_process(pid: int) -> None:
    """Stops a process, and returns once none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
        time.sleep(0.001)


class Daemon:
    """A `feedrail-target` that serves files."""

    def __init__(self, *arguments: str | Path, address: str | None = None) -> None:
        self.address = address or loopback_address()
        self.arguments = arguments
        self.start()

    def start(self) -> None:
        # A configuration says where to listen.
        listen = [] if "--config" in self.arguments else ["--listen", f"{self.address}:4420"]
        command = [binary("feedrail-target"), *listen, *self.arguments]
        environment = {k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said["event"] == "listening":
                self.nqn = said["nqn"]
                return
        raise RuntimeError(f"the daemon ended: {self.process.wait()}")

    @property
    def url(self) -> str:
        return f"nvmf://{self.address}:4420/{self.nqn}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        # A pipe left to the collector warns inside whichever test runs at that moment.
        self.process.stdout.close()

    def stop(self) -> None:
        """Holds the process as a hung machine would."""
        stop_process(self.process.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Served:
    """A daemon that serves a folder, and the path of the folder in the file system of fsspec.

    What it writes is in `scratch`, or else beside the folder.
    """

    def __init__(self, folder: Path, scratch: Path | None = None) -> None:
        self.folder = folder
        scratch = scratch or folder.parent
        self.nqn = "nqn.2026-01.org.example:folder"
        self.address = loopback_address()
        configuration = scratch / "feedrail.toml"
        configuration.write_text(
            f"""
            state_dir = "{scratch}/state"
            [[port]]
            address = "{self.address}:4420"
            [[subsystem]]
            nqn = "{self.nqn}"
            allow_any_host = true
            [[subsystem.directory]]
            path = "{folder}"
            """
        )
        self.daemon = Daemon("--config", configuration, address=self.address)

    @property
    def path(self) -> str:
        return f"{self.address}/{self.nqn}"

    @property
    def url(self) -> str:
        return self.daemon.url


Serve = Callable[..., Daemon]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts daemons, which end with the test."""
    daemons: list[Daemon] = []

    def start(*arguments: str | Path, **options: str) -> Daemon:
        daemons.append(Daemon(*arguments, **options))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.kill()


@pytest.fixture(scope="module")
def readers(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[pages.Readers]:
    """Readers of pages, whose folders are empty at first."""
    import pages

    running = pages.Readers(tmp_path_factory.mktemp("pages"), pytestconfig.getoption("--tokens"))
    yield running
    running.end()


@pytest.fixture(scope="session")
def content() -> np.ndarray:
    """The bytes of the file that `daemon` serves: random, and of no round size."""
    return np.random.default_rng(7).integers(0, 256, (8 << 20) + 1237, dtype=np.uint8)


@pytest.fixture(scope="session")
def shard_file(content: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "train.bin"
    path.write_bytes(content.tobytes())
    return path


@pytest.fixture(scope="session")
def daemon(shard_file: Path) -> Iterator[Daemon]:
    """A daemon with one shard, `train.bin`."""
    running = Daemon(shard_file)
    yield running
    running.kill()


@pytest.fixture
def source(daemon: Daemon) -> Iterator[feedrail.Source]:
    opened = feedrail.open(daemon.url)
    yield opened
    opened.close()
