"""What a source tells of its work: counters, histograms, progress."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from conftest import Serve

import feedrail

PLAN = feedrail.make_plan(np.arange(64) * 5003, 3000)
NBYTES = 64 * 3000


def test_batches_are_in_a_histogram(source: feedrail.Source) -> None:
    for _ in range(5):
        source.read_many(PLAN, bytearray(NBYTES))
    ticket = source.submit(PLAN, bytearray(NBYTES))
    assert source.stats().batches == 6 and source.stats().latency.count in (5, 6)
    ticket.wait()
    ticket.done()
    latency = source.stats().latency
    assert latency.count == 6 and len(latency.counts) == len(latency.edges) + 1
    assert list(latency.edges) == sorted(set(latency.edges))
    assert 0 < latency.quantile(0.5) <= latency.quantile(1) < math.inf
    # Each batch is in the bucket of its time, which is less than its edge.
    below = [latency.edges[i - 1] if i else 0 for i, n in enumerate(latency.counts) for _ in range(n)]
    above = [latency.edges[i] for i, n in enumerate(latency.counts[:-1]) for _ in range(n)]
    assert sum(below) <= latency.sum <= sum(above)


def test_quantiles() -> None:
    histogram = feedrail.Histogram(edges=(1.0, 2.0, 4.0), counts=(1, 2, 0, 1), sum=9.0)
    quantiles = [histogram.quantile(q) for q in (0, 0.25, 0.5, 0.75, 1)]
    assert quantiles == [1.0, 1.0, 2.0, 2.0, math.inf]
    assert feedrail.Histogram((1.0,), (0, 0), 0.0).quantile(0.5) == 0
    with pytest.raises(ValueError, match="quantile"):
        histogram.quantile(1.1)


def test_bytes_by_path(source: feedrail.Source) -> None:
    source.read_many(feedrail.make_plan([0, 8192], 4096), bytearray(8192))
    before = source.stats().bytes_by_path
    assert before["direct"] == 8192 and before["bounce"] == 0
    source.read_many(feedrail.make_plan([1], [10]), bytearray(10))
    after = source.stats()
    assert sum(after.bytes_by_path.values()) == 8192 + 10
    assert after.bytes_by_path == {"direct": after.direct_bytes, "bounce": after.bounced_bytes}


SAMPLE = re.compile(r'(?P<name>[a-z_]+)(\{(?P<label>[a-z]+)="(?P<value>[^"]+)"\})? (?P<number>\S+)')


def test_prometheus_text_is_well_formed(source: feedrail.Source) -> None:
    source.read_many(PLAN, bytearray(NBYTES))
    source.usage.add(compute=3, stall=1)
    kinds: dict[str, str] = {}
    helped, order = set(), []
    buckets: list[tuple[float, float]] = []
    values: dict[str, float] = {}
    for line in source.stats().to_prometheus().splitlines():
        if line.startswith("# HELP "):
            name, text = line[7:].split(" ", 1)
            assert text and name not in helped
            helped.add(name)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name in helped and name not in kinds
            kinds[name] = kind
            order.append(name)
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            number = float(found["number"])
            family = re.sub("_(bucket|sum|count)$", "", found["name"])
            family = family if family in kinds else found["name"]
            # Samples of a family follow its TYPE.
            assert family == order[-1], line
            if found["label"] == "le":
                buckets.append((float(found["value"].replace("+Inf", "inf")), number))
            else:
                values[found["name"] + (found["value"] or "")] = number
    assert kinds["feedrail_batch_seconds"] == "histogram"
    assert kinds["feedrail_loader_utilisation"] == "gauge"
    assert {kind for name, kind in kinds.items() if name.endswith("_total")} == {"counter"}
    edges, counts = zip(*buckets, strict=True)
    assert list(edges) == sorted(edges) and edges[-1] == math.inf
    assert list(counts) == sorted(counts) and counts[-1] == values["feedrail_batch_seconds_count"] == 1
    assert values["feedrail_batch_seconds_sum"] > 0
    assert bisect.bisect(counts, 0) > 0
    assert values["feedrail_loader_utilisation"] == 0.75
    assert values["feedrail_loader_compute_seconds_total"] == 3
    paths = [values[f"feedrail_read_bytes_total{path}"] for path in ("direct", "bounce")]
    assert sum(paths) == NBYTES


def test_utilisation_is_unknown_before_a_loader(source: feedrail.Source) -> None:
    assert source.stats().utilisation is None
    assert "utilisation" not in source.stats().to_prometheus()


@pytest.mark.parametrize("read", ["read_many", "rows", "pread", "pread_into", "wait"])
def test_progress_ends_with_all_bytes(
    source: feedrail.Source, content: np.ndarray, read: str
) -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    calls: dict[str, Callable[[], object]] = {
        "read_many": lambda: source.read_many(PLAN, bytearray(NBYTES), progress=progress),
        "rows": lambda: source.rows(0, range(64), 3000, progress=progress),
        "pread": lambda: source.open(0).pread(NBYTES, 5, progress=progress),
        "pread_into": lambda: source.open(0).pread_into(bytearray(NBYTES), 5, progress=progress),
        "wait": lambda: source.submit(PLAN, bytearray(NBYTES)).wait(progress=progress),
    }
    calls[read]()
    assert told[-1] == (NBYTES, NBYTES)
    assert all(total == NBYTES for _, total in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    # Not once for each of the 64 ranges: a batch is one wait, woken each 100 ms.
    assert len(told) < 64


def test_progress_is_told_while_a_target_hangs(serve: Serve, shard_file: object) -> None:
    daemon = serve(shard_file)
    source = feedrail.open(daemon.url, io_timeout=600, loss_timeout=600)
    told: list[int] = []

    def progress(done: int, total: int) -> None:
        told.append(done)
        if len(told) == 3:
            daemon.resume()

    out = bytearray(NBYTES)
    daemon.stop()
    source.read_many(PLAN, out, progress=progress)
    assert len(told) >= 3 and told[-1] == NBYTES and told[0] < NBYTES


def test_what_progress_raises_cancels_the_batch(serve: Serve, shard_file: object) -> None:
    daemon = serve(shard_file)
    source = feedrail.open(daemon.url, io_timeout=600, loss_timeout=600)

    def progress(done: int, total: int) -> None:
        raise RuntimeError("enough")

    out = bytearray(NBYTES)
    daemon.stop()
    with pytest.raises(RuntimeError, match="enough"):
        source.read_many(PLAN, out, progress=progress)
    daemon.resume()
    source.read_many(PLAN, bytearray(NBYTES))
