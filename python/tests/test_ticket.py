"""Batches in flight: waiting, cancelling, events, signals."""

from __future__ import annotations

import asyncio
import gc
import select
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon, Serve

import feedrail

PLAN = feedrail.make_plan(np.arange(64) * 5003, 3000)
NBYTES = 64 * 3000
#: Seconds that nothing here takes; what hangs ends then.
LONG = 60


def expected(content: np.ndarray) -> bytes:
    return b"".join(content[i * 5003 :][:3000].tobytes() for i in range(64))


@pytest.fixture
def stopped(serve: Serve, shard_file: Path) -> Iterator[tuple[Daemon, feedrail.Source]]:
    """A daemon that hangs, and a source of it."""
    daemon = serve(shard_file)
    source = feedrail.open(daemon.url, io_timeout=600, loss_timeout=600)
    daemon.stop()
    yield daemon, source
    daemon.resume()


def test_waiting(source: feedrail.Source, content: np.ndarray) -> None:
    out = bytearray(NBYTES)
    ticket = source.submit(PLAN, out)
    results = ticket.wait(LONG)
    assert ticket.done() and ticket.cancel() == 0
    assert len(results) == 64 and not results["status"].any()
    assert out == expected(content)


def test_a_wait_that_ends_early_leaves_the_batch(
    stopped: tuple[Daemon, feedrail.Source], content: np.ndarray
) -> None:
    daemon, source = stopped
    out = bytearray(NBYTES)
    ticket = source.submit(PLAN, out)
    with pytest.raises(TimeoutError, match="continues"):
        ticket.wait(0.05)
    assert not ticket.done()
    daemon.resume()
    ticket.wait(LONG)
    assert out == expected(content)


def test_cancelling(stopped: tuple[Daemon, feedrail.Source], content: np.ndarray) -> None:
    daemon, source = stopped
    out = bytearray(NBYTES)
    ticket = source.submit(PLAN, out)
    ended = ticket.cancel()
    assert 0 <= ended <= 64
    daemon.resume()
    with pytest.raises(feedrail.BatchError, match="cancelled") as raised:
        ticket.wait(LONG)
    assert len(raised.value.indices) == 64 and ticket.cancel() == 0
    source.read_many(PLAN, out)
    assert out == expected(content)


@pytest.mark.parametrize("priority", [None, 0, -1])
def test_a_deadline(
    stopped: tuple[Daemon, feedrail.Source], priority: int | None
) -> None:
    _, source = stopped
    with pytest.raises(feedrail.ReadTimeout) as raised:
        if priority is None:
            source.read_many(PLAN, bytearray(NBYTES), timeout=0.1)
        else:
            source.submit(PLAN, bytearray(NBYTES), timeout=0.1, priority=priority).wait(LONG)
    assert isinstance(raised.value, TimeoutError) and raised.value.retryable


def test_descriptors(source: feedrail.Source, content: np.ndarray) -> None:
    out = bytearray(NBYTES)
    ticket = source.submit(PLAN, out)
    poll = select.poll()
    poll.register(ticket, select.POLLIN)
    assert poll.poll(LONG * 1000) == [(ticket.fileno(), select.POLLIN)]
    assert ticket.done()
    ticket.wait(0)
    assert out == expected(content)


def test_a_descriptor_that_is_asked_for_late(source: feedrail.Source) -> None:
    ticket = source.submit(PLAN, bytearray(NBYTES))
    ticket.wait(LONG)
    assert select.select([ticket], [], [], LONG)[0] == [ticket]


def test_awaiting(source: feedrail.Source, content: np.ndarray) -> None:
    async def read_twice() -> list[np.ndarray]:
        outs = [bytearray(NBYTES), bytearray(NBYTES)]
        tickets = [source.submit(PLAN, out) for out in outs]
        for ticket in tickets:
            await asyncio.wait_for(asyncio.ensure_future(_of(ticket)), LONG)
        return outs

    async def _of(ticket: feedrail.Ticket) -> np.ndarray:
        return await ticket

    assert asyncio.run(read_twice()) == [expected(content)] * 2


def test_an_await_that_is_cancelled(stopped: tuple[Daemon, feedrail.Source]) -> None:
    _, source = stopped

    async def awaited(ticket: feedrail.Ticket) -> np.ndarray:
        return await ticket

    async def give_up() -> None:
        ticket = source.submit(PLAN, bytearray(NBYTES))
        # Python 3.10 has one of its own, and no asyncio.timeout.
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(awaited(ticket), 0.05)

    asyncio.run(give_up())


@pytest.mark.parametrize("of_pool", [True, False])
def test_two_batches_do_not_share_bytes(
    stopped: tuple[Daemon, feedrail.Source], content: np.ndarray, *, of_pool: bool
) -> None:
    daemon, source = stopped
    pool = source.pool(1 << 20)
    before = pool.take(10)
    out = pool.take(NBYTES + 10) if of_pool else source.register(bytearray(NBYTES + 10))
    ticket = source.submit(PLAN, out)
    with pytest.raises(feedrail.BufferInUse, match="bytes 191990 to 192000 of") as raised:
        source.submit(feedrail.make_plan([0], [20], dst=[NBYTES - 10]), out)
    assert isinstance(raised.value, BufferError)
    beside = source.submit(feedrail.make_plan([0], [10], dst=[NBYTES]), out)
    daemon.resume()
    ticket.wait(LONG), beside.wait(LONG)
    assert bytes(out) == expected(content) + content[:10].tobytes()
    assert before.nbytes == 10


def test_a_batch_that_was_dropped_keeps_its_memory(
    stopped: tuple[Daemon, feedrail.Source], content: np.ndarray
) -> None:
    """A target may write to it until it has answered."""
    daemon, source = stopped
    pool, out = source.pool(NBYTES), np.zeros(NBYTES, np.uint8)
    reference = weakref.ref(out)
    source.submit(PLAN, pool.take(NBYTES))
    source.submit(PLAN, out)
    del out
    gc.collect()
    with pytest.raises(feedrail.PoolFull):
        pool.take(NBYTES, timeout=0.2)
    assert reference() is not None
    daemon.resume()
    buffer = pool.take(NBYTES, timeout=LONG)
    source.read_many(PLAN, buffer)
    assert bytes(buffer) == expected(content)
    while reference() is not None:
        source.read_many(PLAN, buffer)


def test_a_ticket_keeps_the_memory(
    stopped: tuple[Daemon, feedrail.Source], content: np.ndarray
) -> None:
    daemon, source = stopped
    out = np.zeros(NBYTES, np.uint8)
    reference = weakref.ref(out)
    ticket = source.submit(PLAN, out)
    del out
    gc.collect()
    assert reference() is not None
    daemon.resume()
    ticket.wait(LONG)
    held = reference()
    assert held is not None and held.tobytes() == expected(content)


def test_pool_memory_is_lent_while_a_batch_reads_into_it(
    stopped: tuple[Daemon, feedrail.Source],
) -> None:
    daemon, source = stopped
    pool = source.pool(NBYTES)
    ticket = source.submit(PLAN, pool.take(NBYTES))
    gc.collect()
    with pytest.raises(feedrail.PoolFull):
        pool.take(NBYTES)
    daemon.resume()
    ticket.wait(LONG)
    del ticket
    pool.take(NBYTES, timeout=LONG)


def test_threads_share_a_source(source: feedrail.Source, content: np.ndarray) -> None:
    outs = [bytearray(NBYTES) for _ in range(8)]

    def read(out: bytearray) -> None:
        for _ in range(10):
            source.read_many(PLAN, out)

    threads = [threading.Thread(target=read, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(out == expected(content) for out in outs)


def test_other_threads_run_during_a_wait(stopped: tuple[Daemon, feedrail.Source]) -> None:
    daemon, source = stopped
    waiting = threading.Thread(target=source.read_many, args=(PLAN, bytearray(NBYTES)))
    waiting.start()
    count = sum(1 for _ in range(100_000))
    daemon.resume()
    waiting.join(LONG)
    assert count == 100_000 and not waiting.is_alive()


@pytest.mark.parametrize("call", ["source.read_many(plan, out)", "source.submit(plan, out).wait()"])
def test_an_interrupt_ends_a_wait(
    stopped: tuple[Daemon, feedrail.Source], serve: Serve, shard_file: Path, call: str
) -> None:
    """The wait has no time limit of its own, so only the interrupt can end it."""
    daemon = serve(shard_file)
    script = f"""
        import os, signal, sys, feedrail
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        source = feedrail.open({daemon.url!r}, io_timeout=600, loss_timeout=600)
        plan, out = feedrail.make_plan([0], [4096]), bytearray(4096)
        try:
            print("waiting", flush=True)
            input()
            {call}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        os.kill({daemon.process.pid}, signal.SIGCONT)
        source.read_many(plan, out)
        assert out == open({str(shard_file)!r}, "rb").read(4096)
        print("read", flush=True)
    """
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=pipe, stdout=pipe, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    daemon.stop()
    child.stdin.write("\n")
    child.stdin.flush()
    select.select([], [], [], 0.2)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=LONG)[0] == "interrupted\nread\n"
    assert child.returncode == 0


def test_interrupts_at_any_moment(serve: Serve, shard_file: Path) -> None:
    """Nothing is lost: two buffers of a pool with room for two, and the right bytes each time."""
    daemon = serve(shard_file)
    script = f"""
        import os, signal, feedrail
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        source = feedrail.open({daemon.url!r})
        pool = source.pool(2 << 20)
        data = open({str(shard_file)!r}, "rb").read()
        plan = feedrail.make_plan(range(0, 7_000_000, 70_000), 10_000)
        wanted = b"".join(data[i : i + 10_000] for i in range(0, 7_000_000, 70_000))

        def read_for_ever():
            while True:
                buffers = [pool.take(1_000_000, timeout={LONG}) for _ in range(2)]
                ticket = source.submit(plan, buffers[0])
                source.read_many(plan, buffers[1])
                ticket.wait()
                assert all(bytes(buffer) == wanted for buffer in buffers)
                del ticket, buffers

        # From Python 3.13 on, what a signal raises in the jump back to the beginning of a loop may pass
        # by an `except` of the same function (python/cpython#130279), but not by that of a caller.
        def read_until_interrupted():
            try:
                os.write(1, b"r")
                read_for_ever()
            except KeyboardInterrupt:
                pass

        for _ in range(40):
            read_until_interrupted()
        os.write(1, b"e")
    """
    random = np.random.default_rng(11)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    killer = threading.Timer(2 * LONG, child.kill)
    killer.start()
    while child.stdout.read(1) == b"r":
        select.select([], [], [], random.uniform(0, 0.03))
        child.send_signal(signal.SIGINT)
    killer.cancel()
    child.stdout.close()
    assert child.wait(LONG) == 0
