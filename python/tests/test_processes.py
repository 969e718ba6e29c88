"""Sources in processes that were forked or spawned, and at the interpreter's end."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import children
import numpy as np
import pytest
from conftest import Daemon, Serve

import feedrail

#: Seconds that nothing here takes; what hangs fails then.
LONG = 120

METHODS = ["fork", "forkserver", "spawn"]


def wanted(content: np.ndarray, seed: int) -> int:
    offsets = np.random.default_rng(seed).integers(
        0, len(content) - children.LENGTH, children.COUNT
    )
    rows = np.stack([content[offset : offset + children.LENGTH] for offset in offsets])
    return children.digest(offsets, rows)


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked process, which must end well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    killer = threading.Timer(LONG, os.kill, (child, 9))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    assert status == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("opened", ["before", "after"])
def test_workers_read_the_right_bytes(
    daemon: Daemon, content: np.ndarray, method: str, workers: int, opened: str
) -> None:
    context = multiprocessing.get_context(method)
    source = feedrail.open(daemon.url)
    source.rows(0, [0], 10)
    with context.Pool(workers) as pool:
        if opened == "before":
            jobs = [pool.apply_async(children.digest_of, (source, i)) for i in range(2 * workers)]
        else:
            jobs = [
                pool.apply_async(children.digest_of_url, (daemon.url, i))
                for i in range(2 * workers)
            ]
        # The parent reads while they do.
        assert children.digest_of(source, 99) == wanted(content, 99)
        for seed, job in enumerate(jobs):
            assert job.get(LONG) == wanted(content, seed)
    assert children.digest_of(source, 100) == wanted(content, 100)


def test_a_child_inherits_the_source(source: feedrail.Source, content: np.ndarray) -> None:
    """Nothing is pickled: the child has the parent's object."""
    source.rows(0, [0], 10)

    def read_in_grandchild() -> None:
        assert children.digest_of(source, 1) == wanted(content, 1)
        in_child(lambda: check(2))
        check(3)

    def check(seed: int) -> None:
        assert children.digest_of(source, seed) == wanted(content, seed)

    in_child(read_in_grandchild)
    check(4)


def test_handles_of_the_parent_are_refused(source: feedrail.Source, content: np.ndarray) -> None:
    pool = source.pool(1 << 16)
    buffer = pool.take(100)
    plan = feedrail.make_plan([5], [100])
    source.read_many(plan, buffer)
    ticket = source.submit(plan, bytearray(100))

    def use_them() -> None:
        for use in (
            lambda: pool.take(1),
            lambda: source.read_many(plan, buffer),
            lambda: source.submit(plan, buffer),
            ticket.done,
            ticket.wait,
            ticket.cancel,
            ticket.fileno,
        ):
            with pytest.raises(feedrail.ForkedHandleError):
                use()
        # What was read before the fork is in memory of the child's own.
        assert bytes(buffer) == content[5:105].tobytes()

    in_child(use_them)
    ticket.wait(LONG)
    source.read_many(plan, pool.take(100))


def test_a_fork_amid_a_batch(source: feedrail.Source, content: np.ndarray) -> None:
    """The child's copy of a batch in flight can be dropped, and the parent's continues."""
    plan = feedrail.make_plan(np.arange(800) * 10_000, 9_000)
    for _ in range(5):
        out = bytearray(800 * 9_000)
        ticket = source.submit(plan, out)
        held = [ticket]

        def leave() -> None:
            held.clear()
            assert bytes(source.rows(0, [7], 9)) == content[7:16].tobytes()

        del ticket
        in_child(leave)
        held[0].wait(LONG)
        assert out[-9_000:] == content[7_990_000:7_999_000].tobytes()


def test_a_fork_while_threads_read(source: feedrail.Source, content: np.ndarray) -> None:
    """Locks that a thread holds at the fork do not hang the child."""
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            source.rows(0, range(0, 100_000, 1000), 999)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(10):
            in_child(lambda seed=seed: _check(source, content, seed))
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _check(source: feedrail.Source, content: np.ndarray, seed: int) -> None:
    assert children.digest_of(source, seed) == wanted(content, seed)


def test_a_source_that_changed_is_not_reopened(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "shard.bin"
    path.write_bytes(bytes(5000))
    daemon = serve(path)
    source = feedrail.open(daemon.url)
    daemon.kill()
    path.write_bytes(b"\1" * 5000)
    daemon.start()

    def read() -> None:
        with pytest.raises(feedrail.DatasetChanged):
            source.rows(0, [0], 10)

    in_child(read)


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "sys.exit(0)",
        "threading.Thread(target=source.read_many, args=(plan, out), daemon=True).start()",
        "del source",
        "sys.modules['kept'] = ticket",
        "source.cycle = source; ticket.cycle = ticket",
        "held = np.from_dlpack(source.rows(0, [0], 10)) if not hang else None",
    ],
)
@pytest.mark.parametrize("hang", [True, False])
def test_the_interpreter_ends_amid_batches(
    serve: Serve, shard_file: Path, ending: str, *, hang: bool
) -> None:
    daemon = serve(shard_file)
    script = f"""
        import os, signal, sys, threading, numpy as np, feedrail
        source = feedrail.open({daemon.url!r}, io_timeout=600, loss_timeout=600)
        pool = source.pool(1 << 20)
        plan = feedrail.make_plan(np.arange(500) * 10_000, 9_000)
        out = np.zeros(500 * 9_000, np.uint8)
        hang = {hang}
        if hang:
            os.kill({daemon.process.pid}, signal.SIGSTOP)
        ticket = source.submit(plan, out)
        {ending}
    """
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
