"""Samples that are compared with the checksums of their index."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon, Serve

import feedrail
from feedrail import _core
from feedrail.formats import RawBatch
from feedrail.index import build

ROWS, ROW_BYTES = 100, 5000


def table_crc32c(data: bytes) -> int:
    """CRC-32C by its definition: the reflected polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), np.uint8))
    return path


def flip(path: Path, offset: int) -> None:
    """One bit of a file, as a disk or a cable would do it; nobody is told."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_the_checksum_is_crc32c() -> None:
    assert _core.crc32c(b"123456789") == 0xE3069283
    data = np.random.default_rng(2).bytes(200_001)
    assert _core.crc32c(data[:3000]) == table_crc32c(data[:3000])
    assert _core.crc32c(data[1000:], _core.crc32c(data[:1000])) == _core.crc32c(data)
    assert _core.crc32c(b"") == 0


@pytest.mark.parametrize("row", [0, 57, ROWS - 1])
def test_a_flipped_bit_is_found(serve: Serve, shard: Path, row: int) -> None:
    index = build(shard, crc=True)
    assert index.records["crc32c"][3] == _core.crc32c(np.load(shard)[3])
    record = index.records[row]
    # The target is told nothing: its bytes were wrong when it opened the file.
    flip(shard, int(record["offset"]) + 4321)
    daemon = serve(shard)
    source = feedrail.open(daemon.url)
    with pytest.raises(feedrail.ChecksumError, match="1 of 100 ranges failed") as raised:
        RawBatch.read(source, index, np.arange(ROWS), verify=True)
    batch = raised.value
    assert isinstance(batch, feedrail.BatchError) and batch.indices.tolist() == [row]
    assert batch.results["status"][row] == feedrail.CHECKSUM_STATUS
    error = batch.errors[row]
    assert type(error) is feedrail.ChecksumError and not error.retryable
    place = (0, int(record["offset"]), ROW_BYTES)
    assert (error.shard, error.offset, error.length) == place == (batch.shard, batch.offset, batch.length)
    assert len(error.tried) == 1 and daemon.nqn in error.tried[0] and daemon.nqn in str(error)
    assert f"{int(record['crc32c']):#010x}" in str(error)
    assert pickle.loads(pickle.dumps(error)).tried == error.tried
    others = np.delete(np.arange(ROWS), row)
    RawBatch.read(source, index, others, verify=True)
    unchecked = RawBatch.read(source, index, [row])
    assert unchecked[0] != b"" and _core.crc32c(unchecked[0]) != record["crc32c"]


def test_results_say_which(serve: Serve, shard: Path) -> None:
    index = build(shard, crc=True)
    for row in (7, 30):
        flip(shard, int(index.records["offset"][row]))
    source = feedrail.open(serve(shard).url)
    plan, out = index.plan(np.arange(ROWS)), bytearray(ROWS * ROW_BYTES)
    checksums = index.checksums(np.arange(ROWS))
    results = source.read_many(plan, out, errors="return", crc32c=checksums)
    assert np.flatnonzero(results["status"]).tolist() == [7, 30]
    assert np.frombuffer(out, np.uint8).reshape(ROWS, ROW_BYTES)[8].tobytes() == np.load(shard)[8].tobytes()
    checksums[[7, 30]] = 0
    assert not source.read_many(plan, out, crc32c=checksums)["status"].any()
    ticket = source.submit(plan, out, crc32c=index.checksums(np.arange(ROWS)))
    with pytest.raises(feedrail.ChecksumError, match="2 of 100"):
        ticket.wait(60)
    assert sorted(ticket.exceptions()) == [7, 30] and len(ticket.exceptions(1)) == 1


def test_checksums_are_of_the_place_in_the_buffer(source: feedrail.Source, content: np.ndarray) -> None:
    pool = source.pool(1 << 20)
    pool.take(5000)
    buffer = pool.take(100_000)
    plan = feedrail.make_plan([5, 1000], [70_000, 11], dst=[20, 80_000])
    checksums = [_core.crc32c(content[5:70_005]), _core.crc32c(content[1000:1011])]
    source.read_many(plan, buffer, crc32c=checksums)
    with pytest.raises(feedrail.ChecksumError):
        source.read_many(plan, buffer, crc32c=checksums[::-1])


def test_checksums_that_do_not_fit(source: feedrail.Source) -> None:
    plan, out = feedrail.make_plan([0, 10], 10), bytearray(20)
    for wrong in ([1], [[1, 2]], [1, -1], [1, 1 << 32]):
        with pytest.raises(ValueError, match="crc32c"):
            source.read_many(plan, out, crc32c=wrong)
    with pytest.raises(ValueError, match="crc=True"):
        RawBatch.read(source, feedrail.index.Index.of([0], [4]), [0], verify=True)


def test_failed_ranges_are_no_mismatches(serve: Serve, shard: Path) -> None:
    daemon: Daemon = serve(shard)
    source = feedrail.open(daemon.url, loss_timeout=0.3)
    daemon.kill()
    plan = feedrail.make_plan([0], [10])
    with pytest.raises(feedrail.TargetLost):
        source.read_many(plan, bytearray(10), crc32c=[12345])
