"""Loaders: order, reading ahead, states, threads, errors."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Daemon, Serve

import feedrail
from feedrail.index import Index

torch = pytest.importorskip("torch")

import feedrail.torch as ft
import torch_jobs

pytestmark = pytest.mark.torch
LONG = 120
SAMPLES = 1003


@pytest.fixture
def dataset(source: feedrail.Source, content: np.ndarray) -> ft.RangeDataset:
    return ft.RangeDataset(source, torch_jobs.random_index(len(content), SAMPLES))


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feedrail-loader"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    gc.collect()
    for thread in loader_threads():
        thread.join(10)
    assert not loader_threads()


def numbers(batches: Any) -> list[list[int]]:
    return [batch.indices.tolist() for batch in batches]


def order(rank: int = 0, world: int = 1, **options: Any) -> ft.Order:
    return ft.Order(SAMPLES, seed=4, rank=rank, world_size=world, **options)


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20, 256 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_in_order(
    dataset: ft.RangeDataset, content: np.ndarray, prefetch_bytes: int, threads: int
) -> None:
    loader = ft.Loader(
        dataset, 64, sampler=order(), prefetch_bytes=prefetch_bytes, threads=threads
    )
    records = torch_jobs.random_index(len(content), SAMPLES).records
    seen = []
    for batch in loader:
        for number, sample in zip(batch.indices.tolist(), batch, strict=True):
            _, length, offset, _ = records[number].tolist()
            assert sample.numpy().tobytes() == content[offset : offset + length].tobytes()
        seen += batch.indices.tolist()
    assert seen == list(order()) and len(loader) == 16


def test_epochs_follow_each_other(dataset: ft.RangeDataset) -> None:
    loader, expected = ft.Loader(dataset, 500, sampler=order()), order()
    for epoch in range(3):
        loader.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert loader.epoch == epoch
        assert sum(numbers(loader), []) == list(expected)
    with pytest.raises(StopIteration):
        next(loader)
    loader.set_epoch(1)
    expected.set_epoch(1)
    assert next(loader).indices.tolist() == list(expected)[:500]
    loader.close()


def test_ranks_share_batches(dataset: ft.RangeDataset) -> None:
    loaders = [ft.Loader(dataset, 50, sampler=order(rank, 3)) for rank in range(3)]
    ranks = [numbers(loader) for loader in loaders]
    alone = order().numbers()
    assert [len(batches) for batches in ranks] == [7, 7, 7]
    for step in range(7):
        whole = alone[150 * step : 150 * (step + 1)]
        assert [rank[step] for rank in ranks] == [whole[r::3].tolist() for r in range(3)]
    dropped = numbers(ft.Loader(dataset, 50, sampler=order(0, 3), drop_last=True))
    assert dropped == ranks[0][:6]


def test_ranks_without_samples_in_the_last_batch_have_one_less(source: feedrail.Source) -> None:
    dataset = ft.RangeDataset(source, Index.of(np.arange(9), 1))
    counts = [
        len(list(ft.Loader(dataset, 2, sampler=ft.Order(9, rank=r, world_size=4))))
        for r in range(4)
    ]
    assert counts == [2, 1, 1, 1]


@pytest.mark.parametrize("kind", ["global", "block:7:3", "torch"])
@pytest.mark.parametrize("stopped_after", [0, 1, 5, 8])
def test_another_world_goes_on_where_one_stopped(
    dataset: ft.RangeDataset, kind: str, stopped_after: int
) -> None:
    """The ranks of a world of 4 stop, then those of 2, then 6 continue to the end of the epoch."""
    sequence = order(order=kind).numbers().tolist()
    state, at = None, 0
    for world, steps in [(4, stopped_after), (2, 2), (6, 99)]:
        read, states = [], []
        for rank in range(world):
            loader = ft.Loader(dataset, 72 // world, sampler=order(rank, world, order=kind))
            if state is not None:
                loader.load_state_dict(state)
            with loader:
                batches = [batch for _, batch in zip(range(steps), loader, strict=False)]
                states.append(json.dumps(loader.state_dict()))
                assert all(len(text) <= 1024 for text in states)
                if batches and steps < 99:
                    assert batches[-1].state == json.loads(states[-1])
            read.append(numbers(batches))
        assert len(set(states)) == 1
        state = json.loads(states[0])
        for step in range(max(map(len, read))):
            whole = sequence[at : at + 72]
            got = [rank[step] if step < len(rank) else [] for rank in read]
            assert got == [whole[r::world] for r in range(world)]
            at += len(whole)
    assert at == SAMPLES
    assert (state["epoch"], state["consumed"]) == (1, 0)


def test_a_position_in_a_long_epoch_is_found_at_once(source: feedrail.Source) -> None:
    class Endless:
        def __len__(self) -> int:
            return 10**9

        def plan(self, numbers: np.ndarray) -> np.ndarray:
            return feedrail.make_plan(numbers % 1000, 1)

    dataset = ft.RangeDataset(source, Endless())
    for consumed in (0, 48 * 10_416_666, 99 * 10**7):
        loader = ft.Loader(dataset, 8, sampler=ft.Order(10**9, rank=3, world_size=6))
        loader.load_state_dict({**loader.state_dict(), "consumed": consumed})
        alone = ft.Order(10**9).of_epoch(0)
        end = consumed - consumed % 48 + 48
        whole = np.frombuffer(alone.of_batch((consumed, end), 0, 1), np.int64)
        assert next(loader).indices.tolist() == whole[3::6].tolist()
        loader.close()


def test_states_of_other_sequences_are_refused(
    dataset: ft.RangeDataset, source: feedrail.Source
) -> None:
    state = ft.Loader(dataset, 72, sampler=order()).state_dict()
    for loader, said in [
        (ft.Loader(dataset, 71, sampler=order()), "batches of 72 samples over all ranks"),
        (ft.Loader(dataset, 72, sampler=ft.Order(SAMPLES, seed=5)), "seed 4"),
        (ft.Loader(dataset, 72, sampler=order(shuffle=False)), "order"),
        (ft.Loader(ft.TokenDataset(source, 8, dtype="uint8"), 72), "data set"),
    ]:
        with pytest.raises(ValueError, match=said):
            loader.load_state_dict(state)
    with pytest.raises(ValueError, match="version 2"):
        ft.Loader(dataset, 72, sampler=order()).load_state_dict({**state, "v": 2})


def test_arguments_that_make_no_sense(dataset: ft.RangeDataset) -> None:
    for options, said in [
        ({"batch_size": 0}, "batch_size 0"),
        ({"sampler": ft.Order(7)}, "7 samples, for a data set of 1003"),
        ({"device": "cuda"}, "host memory"),
        ({"threads": 0}, "threads 0"),
    ]:
        with pytest.raises(ValueError, match=said):
            ft.Loader(dataset, **{"batch_size": 4, **options})
    with pytest.raises(TypeError, match="feedrail.torch.Order"):
        ft.Loader(dataset, 4, sampler=range(SAMPLES))


def test_leaving_and_resetting(dataset: ft.RangeDataset) -> None:
    loader, expected = ft.Loader(dataset, 100, sampler=order()), list(order())
    for batch in loader:
        assert batch.indices.tolist() == expected[:100]
        break
    assert next(iter(loader)).indices.tolist() == expected[100:200]
    loader.close()
    assert next(loader).indices.tolist() == expected[200:300]
    loader.reset()
    assert next(loader).indices.tolist() == expected[:100]
    loader.close()


def test_what_is_read_ahead_is_bounded(serve: Serve, shard_file: Path) -> None:
    source = feedrail.open(serve(shard_file).url)
    dataset = ft.RangeDataset(source, Index.of(np.arange(1000) * 4096, 4096))
    for bound, most in [(0, 0), (10 * 4096, 9), (256 << 20, 1000)]:
        loader = ft.Loader(dataset, 1, prefetch_bytes=bound)
        for _ in range(100):
            next(loader)
        prefetcher = loader._prefetcher
        assert prefetcher is not None and 0 <= len(prefetcher._queue.begun) <= most
        prefetcher._is_late = True
        for _ in range(200):
            prefetcher._begin()
        # One more is begun if those that are do not reach the bound.
        begun = len(prefetcher._queue.begun)
        assert begun == most + 1 if most < 400 else begun >= 400
        loader.close()


def test_what_is_cast_counts_and_is_used_again(source: feedrail.Source) -> None:
    """Tokens of 1 byte are cast to 8: a batch holds 9 times what it reads."""
    dataset = ft.TokenDataset(source, 999, dtype="uint8", stride=100)
    held, places = 9 * 16 * 1000, set()
    with ft.Loader(dataset, 16, prefetch_bytes=3 * held) as loader:
        for _ in range(100):
            batch = next(loader)
            places.add(batch.x.data_ptr())
            assert 0 < len(ahead(loader)) <= 3 and sum(ahead(loader)) <= 3 * held + 4096
            assert torch.equal(batch.x, batch.tokens[:, :-1].long())
    assert len(places) <= 6


def test_what_a_transform_makes_counts(source: feedrail.Source) -> None:
    def made_larger(batch: ft.Batch) -> dict[str, Any]:
        return {"image": batch.data.to(torch.float64), "more": [bytes(4096), np.zeros(4096, "u1")]}

    held = 10 * 4096
    dataset = ft.RangeDataset(source, Index.of(np.arange(1000) * 4096, 4096), transform=made_larger)
    with ft.Loader(dataset, 1, prefetch_bytes=4 * held) as loader:
        for _ in range(100):
            next(loader)
            assert len(ahead(loader)) <= 4 and sum(ahead(loader)) <= 4 * held


def ahead(loader: ft.Loader) -> list[int]:
    """Bytes of the batches that are read ahead, once all are finished."""
    queue = loader._prefetcher._queue
    with queue.changed:
        assert queue.changed.wait_for(lambda: all(it.request is None for it in queue.begun), LONG)
        assert queue.nbytes == sum(reading.nbytes for reading in queue.begun)
        return [reading.nbytes for reading in queue.begun]


def test_the_state_of_the_last_batch_is_that_of_the_next_epoch(dataset: ft.RangeDataset) -> None:
    loader = ft.Loader(dataset, 100, sampler=order())
    last = list(loader)[-1]
    expected = order()
    expected.set_epoch(1)
    loader.load_state_dict(last.state)
    assert loader.epoch == 1 and sum(numbers(loader), []) == list(expected)
    stream = ft.StreamDataset(dataset, 100, order=order())
    stream.load_state_dict(last.state)
    stream.set_epoch(stream.epoch)
    assert stream.epoch == 1 and len(stream) == 11 and sum(numbers(stream), []) == list(expected)


def test_batches_that_are_kept_keep_their_bytes(
    dataset: ft.RangeDataset, content: np.ndarray
) -> None:
    """The pool runs out, and memory that is in use is not used again."""
    kept = list(ft.Loader(dataset, 10, sampler=order(), prefetch_bytes=1 << 16))
    records = torch_jobs.random_index(len(content), SAMPLES).records
    for batch in kept:
        for number, sample in zip(batch.indices.tolist(), batch, strict=True):
            _, length, offset, _ = records[number].tolist()
            assert sample.numpy().tobytes() == content[offset : offset + length].tobytes()


def test_a_batch_that_failed_is_read_again(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(4000, dtype=np.uint16).tofile(path)
    daemon = serve(path)
    source = feedrail.open(daemon.url, loss_timeout=1)
    loader = ft.Loader(
        ft.TokenDataset(source, 9, stride=10), 40, sampler=ft.Order(400, shuffle=False),
        prefetch_bytes=0,
    )
    assert next(loader).tokens[0, 0] == 0
    daemon.kill()
    with pytest.raises(feedrail.TargetLost):
        for _ in range(3):
            at = loader.state_dict()
            next(loader)
    assert loader.state_dict() == at and not loader_threads()
    daemon.start()
    source.close()
    assert next(loader).tokens[0, 0] == 10 * at["consumed"]
    loader.close()


def test_what_a_transform_raises_is_raised(
    source: feedrail.Source, content: np.ndarray
) -> None:
    def refuse(batch: ft.Batch) -> ft.Batch:
        if 7 in batch.indices.tolist():
            raise RuntimeError("sample 7 cannot be decoded")
        return batch

    dataset = ft.RangeDataset(source, Index.of(np.arange(20), 5), transform=refuse)
    loader = ft.Loader(dataset, 2, sampler=ft.Order(20, shuffle=False), threads=3)
    assert numbers(next(loader) for _ in range(3)) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match="sample 7"):
        next(loader)
    assert not loader_threads()


def test_a_loader_that_is_dropped_ends_its_threads(serve: Serve, shard_file: Path) -> None:
    """Even while its target hangs, and nobody calls `close`."""
    daemon = serve(shard_file)
    source = feedrail.open(daemon.url, io_timeout=600, loss_timeout=600)
    loader = ft.Loader(ft.TokenDataset(source, 1023, dtype="uint8"), 8)
    next(loader)
    daemon.stop()
    loader.set_epoch(1)
    loader._running()._begin()
    (thread,) = loader_threads()
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    thread.join(LONG)
    assert reference() is None and not thread.is_alive()
    daemon.resume()


def test_a_forked_child_goes_on_by_itself(dataset: ft.RangeDataset) -> None:
    loader, expected = ft.Loader(dataset, 100, sampler=order()), list(order())
    next(loader)
    child = os.fork()
    if child == 0:
        os._exit(0 if next(loader).indices.tolist() == expected[100:200] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert next(loader).indices.tolist() == expected[100:200]
    again = pickle.loads(pickle.dumps(loader))
    assert next(again).indices.tolist() == expected[200:300]
    loader.close()
    again.close()


@pytest.mark.parametrize("ending", ["pass", "loader.close()", "raise SystemExit(0)", "next(other)"])
def test_the_interpreter_ends_while_batches_are_read(daemon: Daemon, ending: str) -> None:
    script = f"""
        import feedrail, feedrail.torch as ft
        dataset = ft.TokenDataset(feedrail.open({daemon.url!r}), 999, dtype="uint8")
        loader, other = ft.Loader(dataset, 8), ft.Loader(dataset, 9)
        next(loader), next(other)
        {ending}
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_interrupt_leaves_no_thread(serve: Serve, shard_file: Path) -> None:
    daemon = serve(shard_file)
    script = f"""
        import os, signal, threading, feedrail, feedrail.torch as ft
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        source = feedrail.open({daemon.url!r}, io_timeout=600, loss_timeout=600)
        loader = ft.Loader(ft.TokenDataset(source, 999, dtype="uint8"), 8)
        try:
            print("waiting", flush=True)
            input()
            next(loader)
        except KeyboardInterrupt:
            print("interrupted", threading.active_count(), flush=True)
        os.kill({daemon.process.pid}, signal.SIGCONT)
        print(len(next(loader)), flush=True)
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
    threading.Event().wait(0.2)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=LONG)[0] == "interrupted 1\n8\n"
    assert child.returncode == 0


def test_it_is_a_node_of_torchdata(dataset: ft.RangeDataset) -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    root = ft.Loader(dataset, 100, sampler=order())
    assert isinstance(root, nodes.BaseNode)
    pipeline = nodes.Loader(nodes.Mapper(root, lambda batch: batch.indices.tolist()))
    expected = list(order())
    batches = iter(pipeline)
    got = [next(batches) for _ in range(4)]
    assert sum(got, []) == expected[:400]
    state = pipeline.state_dict()
    root.close()
    other_root = ft.Loader(dataset, 100, sampler=order())
    other = nodes.Loader(nodes.Mapper(other_root, lambda batch: batch.indices.tolist()))
    other.load_state_dict(state)
    assert sum(other, []) == expected[400:]
    other_root.close()
