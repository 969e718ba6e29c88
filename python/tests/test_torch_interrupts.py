"""Ranks that are interrupted or killed while they save in the background."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon
from test_checkpoints import MIB, volume

import feedrail

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

__all__ = ["volume"]
JOBS = Path(__file__).with_name("checkpoint_jobs.py")
LONG = 240
WORLD = 2
Ranks = list["subprocess.Popen[str]"]


@pytest.fixture
def daemon(volume: Any) -> Daemon:
    running: Daemon = volume(256 * MIB)
    feedrail.CheckpointStore.format(running.url)
    with feedrail.CheckpointStore(running.url) as store, store.begin(0) as save:
        save.write("x", b"0")
        save.commit()
    return running


def start(job: str, url: str) -> Ranks:
    """Starts the ranks of a job of `checkpoint_jobs`, as `torchrun` does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    of_rank = [[job, str(rank), str(WORLD), port, url] for rank in range(WORLD)]
    return [
        subprocess.Popen(
            [sys.executable, JOBS, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in of_rank
    ]


def end(ranks: Ranks) -> tuple[list[int], list[str], list[str]]:
    """Exit statuses, and what the ranks wrote to standard output and error."""
    try:
        written = [rank.communicate(timeout=LONG) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], [out for out, _ in written], [err for _, err in written]


def taken(url: str) -> int:
    """Bytes that are neither free nor those of checkpoints."""
    with feedrail.CheckpointStore(url, mode="r") as store:
        assert store.verify()
        facts = store.summary
        lengths = [length for one in store for length in one.entries.values()]
        units = sum(-(-length // MIB) for length in lengths)
        return int(facts["capacity_bytes"] - facts["free_bytes"] - units * MIB)


# A pause lets the ranks begin to wait: a signal at the moment in which `Future.result` takes its
# lock leaves the lock taken (CPython), and torch's executor then never ends.
@pytest.mark.parametrize(
    ("victims", "pause"), [("all", 0.02), ("all", 0.05), ("coordinator", 0.03), ("other", 0.03)]
)
def test_the_newest_whole_checkpoint_is_loaded(daemon: Daemon, victims: str, pause: float) -> None:
    url = daemon.url
    before = taken(url)
    ranks = start("train", url)
    assert ranks[0].stdout is not None
    while ranks[0].stdout.readline().strip() != "saving 3":
        assert ranks[0].poll() is None, ranks[0].communicate()
    time.sleep(pause)
    if victims == "all":
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
    else:
        ranks[victims == "other"].kill()
    statuses, outputs, errors = end(ranks)
    if victims == "all":
        assert statuses == [-signal.SIGINT] * WORLD, errors
        lines = [error.rstrip().splitlines() for error in errors]
        assert all(each[-1].endswith("KeyboardInterrupt") for each in lines), errors
    else:
        survivor = int(victims != "other")
        assert statuses[1 - survivor] == -signal.SIGKILL
        assert statuses[survivor] == 1, errors
        assert "RuntimeError" in errors[survivor], errors
    assert not any("panicked" in error or "Fatal" in error for error in errors), errors

    saved = [int(line.split()[1]) for line in outputs[0].splitlines() if line.startswith("saved")]
    with feedrail.CheckpointStore(url, mode="r") as store:
        newest = store.latest().step
    assert newest >= max(saved, default=2)
    # It waits for the lease of the job before, loads what that has saved last, and saves.
    statuses, outputs, errors = end(start("resume", url))
    assert statuses == [0] * WORLD, errors
    assert all(f"loaded {newest}\n" in output for output in outputs), outputs
    with feedrail.CheckpointStore(url, mode="r") as store:
        assert [one.step for one in store] == [newest, newest + 1]
    assert taken(url) == before
