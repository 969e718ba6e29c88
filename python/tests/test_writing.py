"""Writing: what arrives, what is refused, and what is known of it when a target hangs or dies."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import gc
import io
import mmap
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Daemon, Serve, binary
from test_ownership import Dlpack, OnDevice
from test_processes import in_child

import feedrail

#: Bytes of the file that is written: a multiple of its blocks.
DISK_BYTES = 1 << 20
#: Seconds that nothing here takes; what hangs ends then.
LONG = 60


@dataclass
class Disk:
    """A file that a daemon lets hosts write, and a source of it."""

    path: Path
    daemon: Daemon
    source: feedrail.Source

    def bytes(self) -> np.ndarray:
        """Content of the file."""
        return np.fromfile(self.path, np.uint8)


def fresh(nbytes: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def disk_of(serve: Serve, folder: Path, **options: Any) -> Disk:
    path = folder / "scratch.img"
    path.write_bytes(fresh(DISK_BYTES, seed=0).tobytes())
    daemon = serve("--writable", path)
    return Disk(path, daemon, feedrail.open(daemon.url, **options))


@pytest.fixture(params=["soft", "shm"])
def disk(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Iterator[Disk]:
    made = disk_of(serve, tmp_path, provider=request.param)
    yield made
    made.source.close()


@pytest.fixture
def stopped(serve: Serve, tmp_path: Path) -> Iterator[Disk]:
    """A daemon that hangs."""
    made = disk_of(serve, tmp_path, io_timeout=600, loss_timeout=600)
    made.daemon.stop()
    yield made
    # A test may have replaced the process.
    with contextlib.suppress(ProcessLookupError):
        made.daemon.resume()


def mixed_plan(nbytes: int, seed: int = 2) -> np.ndarray:
    """Ranges of odd lengths at odd places that share no bytes, in random order."""
    random = np.random.default_rng(seed)
    cuts = np.unique(random.integers(1, nbytes, 60))
    starts, ends = np.r_[0, cuts], np.r_[cuts, nbytes]
    offsets = starts + 12_345 + np.arange(len(starts)) * 1111
    return random.permutation(feedrail.make_plan(offsets, ends - starts, dst=starts))


def after(before: np.ndarray, plan: np.ndarray, data: np.ndarray) -> np.ndarray:
    disk = before.copy()
    for _, length, offset, dst in plan.tolist():
        disk[offset : offset + length] = data[dst : dst + length]
    return disk


def read_only(data: np.ndarray) -> np.ndarray:
    view = data.view()
    view.flags.writeable = False
    return view


def mapped(data: np.ndarray, folder: Path) -> np.ndarray:
    """A mapping that the processor lets nobody write to."""
    data.tofile(folder / "mapped")
    with (folder / "mapped").open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)


MEMORY: dict[str, Callable[[np.ndarray], object]] = {
    "numpy": lambda data: data.reshape(-1, 10),
    "read-only": read_only,
    "big-endian": lambda data: data.view(">u2"),
    "bytes": lambda data: data.tobytes(),
    "bytearray": lambda data: bytearray(data.tobytes()),
    "memoryview": lambda data: memoryview(data.tobytes()),
    "array": lambda data: array.array("H", data.tobytes()),
    "dlpack": lambda data: Dlpack(data.view(np.float32)),
    "dlpack-0": lambda data: Dlpack(data, versioned=False),
}


@pytest.mark.parametrize("kind", MEMORY)
def test_what_is_written_is_there(disk: Disk, kind: str) -> None:
    data = fresh(300_000)
    plan = mixed_plan(len(data))
    expected = after(disk.bytes(), plan, data)
    assert disk.source.writable and disk.source.shards[0].writable
    other = feedrail.open(disk.daemon.url)
    results = disk.source.write_many(plan, MEMORY[kind](data), durable=kind == "numpy")
    assert results.dtype == feedrail.RESULT_DTYPE and not results["status"].any()
    # A reader sees the new bytes as soon as the write has returned.
    for source in (disk.source, other):
        out = np.zeros_like(data)
        source.read_many(plan, out)
        assert np.array_equal(out, data)
    disk.source.flush()
    assert np.array_equal(disk.bytes(), expected)


def test_memory_that_is_mapped_read_only(disk: Disk, tmp_path: Path) -> None:
    data = mapped(fresh(40_960), tmp_path)
    disk.source.pwrite(data, 8192)
    disk.source.pwrite(data[:1000], 777)
    disk.source.flush(0)
    assert np.array_equal(disk.bytes()[8192:][:40_960], data)
    assert np.array_equal(disk.bytes()[777:1777], data[:1000])


def test_registered_memory_and_pools(disk: Disk) -> None:
    pool = disk.source.pool(1 << 16)
    pool.take(4096)
    buffer = pool.take(8192)
    buffer.as_numpy()[:] = data = fresh(8192)
    # Several entries may take the same bytes.
    plan = feedrail.make_plan([0, 100_000, 200_001], [8192, 4096, 8192], dst=[0, 4096, 0])
    disk.source.submit_write(plan, buffer).wait(LONG)
    disk.source.flush("scratch.img")
    for offset, part in ((0, data), (100_000, data[4096:]), (200_001, data)):
        assert np.array_equal(disk.bytes()[offset:][: len(part)], part)
    out = disk.source.rows(0, [0], 8192, out=buffer)
    assert np.array_equal(out.as_numpy(), data)


def test_ranges_of_any_alignment(disk: Disk) -> None:
    expected = disk.bytes()
    offsets = (0, 1, 511, 4095, 4096, 100_001, DISK_BYTES - 30_000)
    for seed, (offset, length) in enumerate(product(offsets, (0, 1, 512, 513, 4096, 30_000))):
        data = fresh(length, seed)
        assert disk.source.pwrite(data, offset) == length
        disk.source.flush()
        expected[offset : offset + length] = data
        assert np.array_equal(disk.bytes(), expected), (offset, length)


def test_a_ticket_of_a_write_is_awaited(disk: Disk) -> None:
    data, told = fresh(100_000), []

    async def write() -> np.ndarray:
        return await disk.source.submit_write(feedrail.make_plan([7], [len(data)]), data, priority=-1)

    assert not asyncio.run(write())["status"].any()
    disk.source.pwrite(data, 7, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (100_000, 100_000)
    assert disk.source.rows(0, [7], 100_000).as_numpy().tobytes() == data.tobytes()


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (feedrail.make_plan([0, DISK_BYTES - 9], [10, 10]), feedrail.RangeError),
        (feedrail.make_plan([0, DISK_BYTES], [10, 1]), feedrail.RangeError),
        (feedrail.make_plan([0, 0], [10, 10], dst=[0, 11]), ValueError),
        (feedrail.make_plan([0, 0], [10, 10], shard=[0, 1]), ValueError),
        (np.zeros(3), TypeError),
    ],
)
def test_plans_that_are_refused_whole(disk: Disk, plan: np.ndarray, error: type[Exception]) -> None:
    before = disk.bytes()
    for write in (disk.source.write_many, disk.source.submit_write):
        with pytest.raises(error):
            write(plan, bytes(20))
    with pytest.raises(feedrail.RangeError):
        disk.source.pwrite(bytes(2), DISK_BYTES - 1)
    with pytest.raises(ValueError, match="from 0"):
        disk.source.pwrite(bytes(2), -1)
    with pytest.raises(feedrail.NotFound):
        disk.source.pwrite(bytes(2), 0, shard="other")
    disk.source.flush()
    assert np.array_equal(disk.bytes(), before)


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (np.zeros((4, 4))[:, ::2], BufferError, "C-contiguous"),
        (np.zeros((4, 4), order="F"), BufferError, "C-contiguous"),
        (memoryview(bytes(64))[::2], BufferError, "C-contiguous"),
        (Dlpack(np.zeros((4, 4)).T), BufferError, "C-contiguous"),
        (np.full(64, "text", dtype=object), BufferError, "not plain numbers"),
        (OnDevice(), BufferError, "memory of the host only"),
        ("text", TypeError, "buffer protocol"),
        ([1, 2], TypeError, "buffer protocol"),
    ],
)
def test_memory_that_cannot_be_written(
    disk: Disk, data: object, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        disk.source.write_many(feedrail.make_plan([0], [16]), data)


def test_memory_is_forgotten_once_it_is_written(disk: Disk) -> None:
    data = fresh(50_000)
    reference = weakref.ref(data)
    disk.source.pwrite(data, 0)
    del data
    gc.collect()
    while reference() is not None:
        disk.source.rows(0, [0], 1)


def test_a_namespace_that_is_only_read(daemon: Daemon, source: feedrail.Source) -> None:
    assert not source.writable and not source.shards[0].writable
    plan = feedrail.make_plan([0, 513], [512, 5])
    with pytest.raises(feedrail.ReadOnly, match="read_only = false") as raised:
        source.write_many(plan, bytes(600))
    error = raised.value
    assert isinstance(error, PermissionError) and isinstance(error, feedrail.BatchError)
    assert (error.errno, error.status, error.retryable) == (errno.EROFS, 0x20, False)
    assert error.tried[0].startswith(daemon.nqn) and len(error.indices) == 2
    assert source.write_many(plan, bytes(600), errors="return")["status"].all()
    with pytest.raises(feedrail.ReadOnly, match="protect --undo"):
        source.open(0, "r+b")
    with pytest.raises(io.UnsupportedOperation, match="r\\+b"):
        source.open(0).pwrite(b"x", 0)


def test_files_and_manifests_are_not_written(disk: Disk, tmp_path: Path) -> None:
    before, path = disk.bytes(), tmp_path / "manifest.json"
    command = [binary("feedrail"), "manifest", "--name", "set", "--output", path, disk.daemon.url]
    subprocess.run(command, check=True, capture_output=True)
    for opened, said in ((feedrail.open(disk.path), "Python's open"), (feedrail.open(path), "one namespace")):
        assert not opened.writable and not opened.shards[0].writable
        for use in (
            lambda: opened.pwrite(b"x", 0),
            lambda: opened.submit_write(feedrail.make_plan([0], [1]), b"x"),
            lambda: opened.flush(),
            lambda: opened.open(0, "r+b"),
        ):
            with pytest.raises(feedrail.ReadOnly, match=said) as raised:
                use()
            assert raised.value.errno == errno.EROFS
    assert np.array_equal(disk.bytes(), before)


def test_a_shard_as_a_file_that_is_written(disk: Disk) -> None:
    expected = disk.bytes()
    with disk.source.open("scratch.img", "r+b") as file:
        assert file.writable() and file.mode == "rb+"
        file.seek(1000)
        assert file.write(b"first") == 5 and file.tell() == 1005
        assert file.pwrite(memoryview(b"second"), 2000) == 6 and file.tell() == 1005
        file.flush()
        assert bytes(disk.bytes()[1000:1005]) == b"first"
        with pytest.raises(feedrail.RangeError):
            file.pwrite(b"xx", DISK_BYTES - 1)
        file.pwrite(b"durable", 3000, durable=True)
    with io.BufferedRandom(disk.source.open(0, "r+b")) as buffered:
        for number in range(1000):
            buffered.write(number.to_bytes(4, "little"))
        buffered.seek(8)
        assert buffered.read(4) == (2).to_bytes(4, "little")
    expected[:4000] = np.arange(1000, dtype="<u4").view(np.uint8)
    assert np.array_equal(disk.bytes(), expected)
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    with pytest.raises(ValueError, match="r\\+b"):
        disk.source.open(0, "wb")


def test_other_threads_run_while_a_write_waits(stopped: Disk) -> None:
    data = fresh(200_000)
    waiting = threading.Thread(target=stopped.source.pwrite, args=(data, 5))
    waiting.start()
    count = sum(1 for _ in range(100_000))
    assert waiting.is_alive()
    stopped.daemon.resume()
    waiting.join(LONG)
    assert count == 100_000 and not waiting.is_alive()
    assert stopped.source.rows(0, [5], 200_000).as_numpy().tobytes() == data.tobytes()


def test_a_deadline_of_a_write(stopped: Disk) -> None:
    plan, data = mixed_plan(1000), fresh(1000)
    with pytest.raises(feedrail.ReadTimeout) as raised:
        stopped.source.write_many(plan, data, timeout=0.1)
    assert isinstance(raised.value, TimeoutError) and raised.value.retryable
    ticket = stopped.source.submit_write(plan, data)
    with pytest.raises(TimeoutError, match="continues"):
        ticket.wait(0.05)
    with pytest.raises(TimeoutError, match="durable"):
        stopped.source.flush(timeout=0.1)


def test_a_write_that_is_cancelled(stopped: Disk) -> None:
    data = fresh(500_000)
    plan = feedrail.make_plan(range(0, 500_000, 5000), 5000)
    ticket = stopped.source.submit_write(plan, data)
    assert 0 <= ticket.cancel() <= 100
    stopped.daemon.resume()
    with pytest.raises(feedrail.BatchError, match="cancelled") as raised:
        ticket.wait(LONG)
    assert raised.value.results["status"].any()
    stopped.source.write_many(plan, data)
    assert stopped.source.rows(0, [0], 500_000).as_numpy().tobytes() == data.tobytes()


def test_writes_share_memory_that_reads_do_not(stopped: Disk) -> None:
    buffer = stopped.source.register(bytearray(fresh(8192).tobytes()))
    tickets = [
        stopped.source.submit_write(feedrail.make_plan([offset], [8192]), buffer)
        for offset in (0, 100_000)
    ]
    with pytest.raises(feedrail.BufferInUse, match="bytes 0 to 100"):
        stopped.source.submit(feedrail.make_plan([0], [100]), buffer)
    stopped.daemon.resume()
    for ticket in tickets:
        ticket.wait(LONG)
    ticket = stopped.source.submit(feedrail.make_plan([0], [100]), buffer)
    ticket.wait(LONG)


@pytest.mark.parametrize("dropped", ["ticket", "interrupted"])
def test_memory_is_kept_until_the_target_is_done(stopped: Disk, dropped: str) -> None:
    """The engine reads from it until the command has ended, whatever the caller has left."""
    pool, data = stopped.source.pool(8192), fresh(8192)
    reference, plan = weakref.ref(data), feedrail.make_plan([0], [8192])

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    buffer = pool.take(8192)
    if dropped == "ticket":
        stopped.source.submit_write(plan, buffer)
        stopped.source.submit_write(plan, data)
    else:
        for held in (buffer, data):
            with pytest.raises(KeyboardInterrupt):
                stopped.source.write_many(plan, held, progress=interrupt)
    del buffer, data
    held = None  # noqa: F841
    gc.collect()
    with pytest.raises(feedrail.PoolFull):
        pool.take(8192, timeout=0.2)
    assert reference() is not None
    stopped.daemon.resume()
    pool.take(8192, timeout=LONG)
    while reference() is not None:
        stopped.source.rows(0, [0], 1)


@pytest.mark.parametrize("call", ["write_many(plan, data)", "submit_write(plan, data).wait()", "flush()"])
def test_an_interrupt_ends_a_write(serve: Serve, tmp_path: Path, call: str) -> None:
    """The wait has no time limit of its own, so only the interrupt can end it."""
    disk = disk_of(serve, tmp_path)
    script = f"""
        import os, signal, feedrail
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        source = feedrail.open({disk.daemon.url!r}, io_timeout=600, loss_timeout=600)
        plan, data = feedrail.make_plan([0], [100_000]), os.urandom(100_000)
        try:
            print("waiting", flush=True)
            input()
            source.{call}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        os.kill({disk.daemon.process.pid}, signal.SIGCONT)
        source.write_many(plan, data)
        source.flush()
        assert open({str(disk.path)!r}, "rb").read(100_000) == data
        print("written", flush=True)
    """
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=pipe, stdout=pipe, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    disk.daemon.stop()
    child.stdin.write("\n")
    child.stdin.flush()
    select.select([], [], [], 0.3)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=LONG)[0] == "interrupted\nwritten\n"
    assert child.returncode == 0


def test_what_was_flushed_survives_a_kill(disk: Disk) -> None:
    data, plan = fresh(300_000), mixed_plan(300_000)
    expected = after(disk.bytes(), plan, data)
    disk.source.write_many(plan, data)
    disk.source.flush()
    disk.daemon.kill()
    assert np.array_equal(disk.bytes(), expected)
    disk.daemon.start()
    out = np.zeros_like(data)
    disk.source.read_many(plan, out)
    assert np.array_equal(out, data)


def test_a_write_without_an_answer_is_not_reported_as_written(serve: Serve, tmp_path: Path) -> None:
    disk = disk_of(serve, tmp_path, loss_timeout=1)
    plan, data = mixed_plan(300_000), fresh(300_000)
    disk.daemon.stop()
    ticket = disk.source.submit_write(plan, data)
    disk.daemon.kill()
    with pytest.raises(feedrail.TargetLost) as raised:
        ticket.wait(LONG)
    assert isinstance(raised.value, feedrail.BatchError) and raised.value.results["status"].all()
    with pytest.raises(feedrail.TargetLost):
        disk.source.pwrite(data, 0)
    with pytest.raises(feedrail.TargetLost):
        disk.source.flush()


def test_a_write_goes_on_when_the_target_is_back(stopped: Disk) -> None:
    plan, data = mixed_plan(300_000), fresh(300_000)
    expected = after(stopped.bytes(), plan, data)
    ticket = stopped.source.submit_write(plan, data)
    stopped.daemon.kill()
    stopped.daemon.start()
    results = ticket.wait(LONG)
    assert not results["status"].any() and (results["attempts"] > 1).any()
    # A part of the batch may have been acknowledged by the target that died.
    with pytest.raises(feedrail.TargetLost, match="write them again"):
        stopped.source.flush()
    stopped.source.write_many(plan, data)
    stopped.source.flush()
    assert np.array_equal(stopped.bytes(), expected)


def test_a_flush_does_not_vouch_for_a_target_that_restarted(disk: Disk) -> None:
    disk.source.pwrite(fresh(4096), 0)
    disk.daemon.kill()
    disk.daemon.start()
    with pytest.raises(feedrail.TargetLost):
        disk.source.flush()
    # It is told once: what was not written again is the caller's loss.
    disk.source.rows(0, [0], 1)
    disk.source.pwrite(fresh(4096), 0)
    disk.source.flush()
    # Durable writes need no flush.
    disk.source.pwrite(fresh(4096), 0, durable=True)
    disk.daemon.kill()
    disk.daemon.start()
    disk.source.rows(0, [0], 1)
    disk.source.flush()


def test_children_write_over_connections_of_their_own(disk: Disk) -> None:
    buffer = disk.source.register(bytearray(b"parent"))
    plan = feedrail.make_plan([100], [6])
    ticket = disk.source.submit_write(plan, buffer)

    def write() -> None:
        with pytest.raises(feedrail.ForkedHandleError):
            disk.source.write_many(plan, buffer)
        with pytest.raises(feedrail.ForkedHandleError):
            ticket.wait()
        # In a block of its own, as the writes of any other host.
        disk.source.pwrite(b"child", 8200)
        disk.source.flush()

    in_child(write)
    ticket.wait(LONG)
    disk.source.flush()
    assert bytes(disk.bytes()[100:106]) == b"parent" and bytes(disk.bytes()[8200:8205]) == b"child"


@pytest.mark.parametrize("provider", ["soft", "shm"])
def test_a_long_write_takes_little_memory(serve: Serve, tmp_path: Path, provider: str) -> None:
    """512 MiB of a file that is mapped: nothing of it is copied to memory of the process."""
    nbytes = 512 << 20
    paths = [tmp_path / name for name in ("scratch.img", "weights.bin")]
    for path in paths:
        path.touch()
        os.truncate(path, nbytes)
    with paths[1].open("r+b") as file:
        file.write(b"first")
        file.seek(nbytes - 4)
        file.write(b"last")
    daemon = serve("--writable", paths[0])
    script = f"""
        import numpy as np, re, threading, feedrail
        source = feedrail.open({daemon.url!r}, provider={provider!r})
        source.pwrite(bytes(1 << 20), 0)
        anonymous = lambda: int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
        before, most, over = anonymous(), 0, threading.Event()

        def watch():
            global most
            while not over.wait(0.01):
                most = max(most, anonymous())

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert source.pwrite(np.memmap({str(paths[1])!r}, np.uint8, "r"), 0) == {nbytes}
        over.set()
        watcher.join()
        source.flush()
        assert most - before < 64 << 10, (before, most)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=5 * LONG
    )
    assert ended.returncode == 0, ended.stderr
    with paths[0].open("rb") as file:
        assert file.read(5) == b"first"
        file.seek(nbytes - 4)
        assert file.read() == b"last"
