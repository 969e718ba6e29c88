"""Orders, beside torch's own samplers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import feedrail.torch as ft
from torch.utils.data import BatchSampler, DistributedSampler

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("n", [1, 2, 7, 100, 4097, 10_000])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_order_is_that_of_its_sampler(
    n: int, world: int, *, drop_last: bool, shuffle: bool
) -> None:
    if drop_last and n < world:
        pytest.skip("DistributedSampler fails there: a negative number of samples")
    for rank in range(world):
        options = {"rank": rank, "seed": 5, "drop_last": drop_last, "shuffle": shuffle}
        theirs = DistributedSampler(range(n), num_replicas=world, **options)
        ours = ft.Order(n, world_size=world, order="torch", **options)
        assert len(ours) == len(theirs)
        for epoch in (0, 1, 17):
            theirs.set_epoch(epoch)
            ours.set_epoch(epoch)
            assert list(ours) == list(theirs), (rank, epoch)


@pytest.mark.parametrize("order", ["global", "block", "block:3:5"])
@pytest.mark.parametrize("n", [0, 1, 2, 1000, 9001])
@pytest.mark.parametrize("world", [1, 3, 8])
def test_ranks_have_each_sample_once(order: str, n: int, world: int) -> None:
    orders = [ft.Order(n, rank=rank, world_size=world, order=order) for rank in range(world)]
    assert sorted(number for order in orders for number in order) == list(range(n))
    alone = ft.Order(n, order=order).numbers()
    for rank, own in enumerate(orders):
        assert len(own) == len(list(own))
        assert np.array_equal(own.numbers(), alone[rank::world])
        assert np.array_equal(own.numbers(3, 5), alone[rank::world][3:8])


def test_epochs_and_seeds_differ() -> None:
    order = ft.Order(1000)
    first = list(order)
    assert list(order) == first != list(range(1000))
    order.set_epoch(1)
    assert list(order) != first
    assert list(ft.Order(1000, seed=1)) != first
    assert list(ft.Order(1000, shuffle=False)) == list(range(1000))


def test_dropped_samples_leave_ranks_alike() -> None:
    orders = [ft.Order(1003, rank=r, world_size=4, drop_last=True) for r in range(4)]
    assert {len(order) for order in orders} == {250}
    assert len({number for order in orders for number in order}) == 1000


def test_long_orders_take_no_memory() -> None:
    tracemalloc.start()
    order = ft.Order(10**12, rank=3, world_size=8)
    assert len(order) == 10**12 // 8
    numbers = iter(order)
    firsts = [next(numbers) for _ in range(10_000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(firsts)) == 10_000 and max(firsts) > 10**11 and peak < 2 << 20


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is none of 2"):
        ft.Order(10, rank=2, world_size=2)
    for order in ("random", "block:0:1", "torch "):
        with pytest.raises(ValueError, match="an order is sequential, global"):
            ft.Order(10, order=order)
    with pytest.raises(OverflowError):
        ft.Order(-1)
    with pytest.raises(OverflowError, match="at most"):
        ft.Order(2**63)


def test_data_sets_and_batch_samplers_take_it() -> None:
    order = ft.Order(range(10), shuffle=False)
    assert list(BatchSampler(order, 4, drop_last=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


SCRIPT = """
    import feedrail.torch as ft, torch.distributed as dist, sys
    if sys.argv[1] == "group":
        dist.init_process_group("gloo", init_method=sys.argv[2], rank=1, world_size=1 + 1)
    order = ft.Order(100)
    print(order.rank, order.world_size)
    if sys.argv[1] == "group":
        dist.destroy_process_group()
"""


def test_torchruns_environment_is_used() -> None:
    environment = {**os.environ, "RANK": "2", "WORLD_SIZE": "5"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), "environment"]
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.split() == ["2", "5"]
    order = ft.Order(100)
    assert (order.rank, order.world_size) == (0, 1)


def test_the_process_group_is_used(tmp_path: os.PathLike[str]) -> None:
    """The group says rank 1, the environment rank 7."""
    address = f"file://{tmp_path}/rendezvous"
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT).replace("rank=1", "rank=0"), "group", address],
        stdout=subprocess.PIPE, text=True,
    )
    second = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), "group", address],
        env={**os.environ, "RANK": "7", "WORLD_SIZE": "9"},
        capture_output=True, text=True, check=True, timeout=120,
    )
    assert second.stdout.split() == ["1", "2"]
    assert first.communicate(timeout=120)[0].split() == ["0", "2"]
