"""Reading plans."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Daemon

import feedrail


def random_plan(content: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Ranges of many lengths, and gaps between them in the buffer."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9000, count)
    offsets = random.integers(0, len(content) - lengths)
    plan = feedrail.make_plan(offsets, lengths)
    plan["dst"] += np.arange(count, dtype=np.uint64) * 3
    return plan


def expected(content: np.ndarray, plan: np.ndarray, nbytes: int) -> np.ndarray:
    out = np.zeros(nbytes, np.uint8)
    for _, length, offset, dst in plan.tolist():
        out[dst : dst + length] = content[offset : offset + length]
    return out


def test_shards_are_described(source: feedrail.Source, content: np.ndarray) -> None:
    (shard,) = source.shards
    assert (shard.name, shard.nbytes, shard.nsid) == ("train.bin", len(content), 1)
    assert source.nbytes == len(content)
    assert source.shards.number("train.bin") == 0 and source.shards["train.bin"] is shard
    for find in [source.shards.number, source.shards.__getitem__]:
        with pytest.raises(FileNotFoundError):
            find("other.bin")


@pytest.mark.parametrize("kind", ["pool", "array", "bytearray", "registered"])
def test_plans_land_where_they_say(
    source: feedrail.Source, content: np.ndarray, kind: str
) -> None:
    plan = random_plan(content, 500)
    nbytes = int((plan["dst"] + plan["length"]).max()) + 5
    array = np.zeros(nbytes, np.uint8)
    if kind == "pool":
        pool = source.pool(2 * nbytes)
        pool.take(nbytes)
        out = pool.take(nbytes)
        out.as_numpy()[:] = 0
        array = out.as_numpy()
    elif kind == "bytearray":
        out = bytearray(nbytes)
        array = np.frombuffer(out, np.uint8)
    else:
        out = array if kind == "array" else source.register(array)
    results = source.read_many(plan, out)
    assert results.dtype == feedrail.RESULT_DTYPE
    assert not results["status"].any() and (results["attempts"] >= 1).all()
    assert np.array_equal(array, expected(content, plan, nbytes))


def test_rows(source: feedrail.Source, content: np.ndarray) -> None:
    offsets = np.random.default_rng(1).integers(0, len(content) - 2050, 480)
    rows = source.rows("train.bin", offsets, 2050).as_numpy("u2", (480, 1025))
    for row, offset in zip(rows, offsets, strict=True):
        assert np.array_equal(row.view("u1"), content[offset : offset + 2050])


@pytest.mark.parametrize("namespace", ["nsid:1", "train.bin", "train%2Ebin"])
def test_one_namespace_is_named(daemon: Daemon, content: np.ndarray, namespace: str) -> None:
    source = feedrail.open(f"{daemon.url}/{namespace}")
    assert bytes(memoryview(source.rows(0, [5], 7))) == content[5:12].tobytes()


def test_no_such_namespace(daemon: Daemon) -> None:
    with pytest.raises(FileNotFoundError):
        feedrail.open(f"{daemon.url}/nothing")


@pytest.mark.parametrize("beyond", [-5, 0, 2**62])
@pytest.mark.parametrize("errors", ["raise", "return"])
def test_a_plan_with_a_range_beyond_the_end_is_not_begun(
    source: feedrail.Source, content: np.ndarray, beyond: int, errors: str
) -> None:
    plan = feedrail.make_plan([10, len(content) + beyond], [10, 10])
    out = np.zeros(32, np.uint8)
    with pytest.raises(feedrail.RangeError, match="entry 1") as raised:
        source.read_many(plan, out, errors=errors)
    error = raised.value
    assert (error.shard, error.offset, error.length) == (0, len(content) + beyond, 10)
    assert not error.retryable and not out.any()


def test_results_say_how_bytes_came(source: feedrail.Source) -> None:
    (result,) = source.read_many(feedrail.make_plan([0], [4096]), bytearray(4096))
    assert (result["status"], result["path"] & 1, result["attempts"]) == (0, 1, 1)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ((1, 1, 0, 0), "entry 0: there is no shard 1"),
        ((0, 9, 0, 0), "entry 0: 9 bytes at 0 of a buffer of 8"),
        ((0, 1, 0, 2**64 - 1), "of a buffer of 8"),
    ],
)
def test_plans_that_make_no_sense(
    source: feedrail.Source, entry: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        source.read_many(np.array([entry], feedrail.PLAN_DTYPE), bytearray(8))


def test_overlapping_destinations_are_refused(source: feedrail.Source) -> None:
    plan = feedrail.make_plan([0, 0], [10, 10], dst=[0, 9])
    with pytest.raises(ValueError, match="entries 0 and 1"):
        source.read_many(plan, bytearray(32))


def test_a_plan_has_its_dtype(source: feedrail.Source) -> None:
    with pytest.raises(TypeError, match="PLAN_DTYPE"):
        source.read_many(np.zeros(3), bytearray(8))


def test_empty_plans_and_ranges(source: feedrail.Source) -> None:
    assert len(source.read_many(feedrail.make_plan([], []), bytearray(0))) == 0
    assert source.read_many(feedrail.make_plan([3], [0]), bytearray(1))["status"] == [0]


def test_stats(source: feedrail.Source) -> None:
    before = source.stats()
    assert before.batches == 0 and before.providers
    source.rows(0, [0, 4096, 5], 4096)
    after = source.stats()
    assert (after.batches, after.ranges, after.ranges_failed) == (1, 3, 0)
    assert after.direct_bytes + after.bounced_bytes == 3 * 4096
    assert after.stall_seconds > 0
    text = after.to_prometheus()
    assert "feedrail_ranges_total 3\n" in text and "providers" not in text
    for line in text.splitlines():
        described = line.startswith(("# TYPE feedrail_", "# HELP feedrail_"))
        assert described or float(line.split()[1]) >= 0
