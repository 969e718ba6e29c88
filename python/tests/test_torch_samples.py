"""Checksums, decoders and telemetry of `feedrail.torch`."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Serve

import feedrail
from feedrail.formats import npy, webdataset
from feedrail.index import Index, build

torch = pytest.importorskip("torch")

import feedrail.torch as ft
from torch.utils.data import DataLoader

pytestmark = pytest.mark.torch
SAMPLES = 40


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    path, random = tmp_path / "a.tar", np.random.default_rng(0)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(SAMPLES):
            for name, data in [("cls", str(number).encode()), ("bin", random.bytes(1000 + number))]:
                member = tarfile.TarInfo(f"{number:03}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_decoded_by_a_transform(serve: Serve, tar: Path, workers: int) -> None:
    source = feedrail.open(serve(tar).url)
    dataset = ft.RangeDataset(source, build(source), transform=webdataset.Decoder())
    loader = DataLoader(
        dataset, 7, num_workers=workers, collate_fn=total_bytes, timeout=120 if workers else 0
    )
    got = [sample for batch in loader for sample in batch]
    assert got == [(f"{n:03}", n, 1000 + n) for n in range(SAMPLES)]


def total_bytes(batch: list[dict]) -> list[tuple[str, int, int]]:
    return [(sample["__key__"], sample["cls"], len(sample["bin"])) for sample in batch]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_streams_hand_out_what_loaders_do(
    serve: Serve, tar: Path, workers: int, start: str
) -> None:
    """`DataLoader` converts what it knows: arrays into tensors, items of lists one by one."""
    source = feedrail.open(serve(tar).url)
    index = build(source)
    dataset = ft.RangeDataset(source, index, transform=webdataset.Decoder({"cls": as_array}))
    order = ft.Order(len(dataset), seed=3)
    stream = DataLoader(
        ft.StreamDataset(dataset, 7, order=order),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=start if workers else None,
        timeout=120 if workers else 0,
    )
    expected = list(ft.Loader(dataset, 7, sampler=order))
    for got, batch in zip(stream, expected, strict=True):
        assert type(got) is type(batch) and repr(got) == repr(batch)
        assert got.state == batch.state and np.array_equal(got.indices, batch.indices)
        assert {type(sample["bin"]) for sample in got} == {bytes}


def as_array(data: memoryview) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_a_decoded_batch_has_the_state_of_its_loader(serve: Serve, tar: Path) -> None:
    source = feedrail.open(serve(tar).url)
    dataset = ft.RangeDataset(source, build(source), transform=webdataset.Decoder())
    order = ft.Order(len(dataset), shuffle=False)
    with ft.Loader(dataset, 8, sampler=order) as loader:
        first = next(loader)
        second = next(loader)
    assert [sample["cls"] for sample in first] == list(range(8))
    assert first.indices.tolist() == list(range(8))
    with ft.Loader(dataset, 8, sampler=order) as resumed:
        resumed.load_state_dict(first.state)
        assert [s["cls"] for s in next(resumed)] == [s["cls"] for s in second]


def test_a_damaged_sample_is_named_by_the_loader(serve: Serve, tar: Path) -> None:
    index = build(tar)
    record = index.records[11]
    with tar.open("r+b") as file:
        file.seek(int(record["offset"]) + 10)
        file.write(b"!")
    source = feedrail.open(serve(tar).url)
    dataset = ft.RangeDataset(source, index, transform=webdataset.Decoder())
    with ft.Loader(dataset, 4, sampler=ft.Order(len(dataset), shuffle=False)) as loader:
        next(loader), next(loader)
        with pytest.raises(feedrail.FormatError, match="checksum") as raised:
            next(loader)
    assert (raised.value.sample, raised.value.offset) == (11, int(record["offset"]))


def test_rows_keep_their_shape_without_a_copy(serve: Serve, tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(30, 4, 5)).astype("<f4")
    np.save(tmp_path / "x.npy", array)
    source = feedrail.open(serve(tmp_path / "x.npy").url)
    rows = ft.RangeDataset(source, build(source), transform=npy.Decoder.of(source), dtype="f4")
    got = rows.__getitems__([3, 29, 0])
    assert np.array_equal(got, array[[3, 29, 0]])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["<f4", ">i2"])
def test_rows_pass_data_loaders_as_they_are(
    serve: Serve, tmp_path: Path, kind: str, workers: int
) -> None:
    """torch has no type of another byte order: these stay arrays."""
    array = np.arange(600).reshape(30, 4, 5).astype(kind)
    np.save(tmp_path / "x.npy", array)
    source = feedrail.open(serve(tmp_path / "x.npy").url)
    dataset = ft.RangeDataset(source, build(source), transform=npy.Decoder.of(source))
    stream = ft.StreamDataset(dataset, 8, order=ft.Order(30, shuffle=False))
    timeout = 120 if workers else 0
    batches = DataLoader(stream, None, num_workers=workers, collate_fn=ft.collate, timeout=timeout)
    whole = list(batches)
    assert {type(rows) for rows in whole} == {torch.Tensor if kind == "<f4" else np.ndarray}
    assert np.array_equal(np.concatenate(whole), array)
    if kind == "<f4":
        by_default = list(DataLoader(stream, None, num_workers=workers, timeout=timeout))
        assert all(map(torch.equal, by_default, whole))


@pytest.mark.parametrize("way", ["read", "loader", "workers"])
def test_a_flipped_bit_is_a_checksum_error(serve: Serve, tar: Path, way: str) -> None:
    index = build(tar, crc=True)
    stat = tar.stat()
    offset = int(index.records["offset"][17]) + 700
    with tar.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(tar, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    source = feedrail.open(serve(tar).url)
    dataset = ft.RangeDataset(source, index, verify=True)
    with pytest.raises(feedrail.ChecksumError, match="CRC-32C") as raised:
        if way == "read":
            dataset.__getitems__(list(range(SAMPLES)))
        elif way == "loader":
            with ft.Loader(dataset, 8) as loader:
                list(loader)
        else:
            list(DataLoader(dataset, 8, num_workers=1, collate_fn=ft.collate, timeout=120))
    if way != "workers":
        assert raised.value.offset == int(index.records["offset"][17])
    assert len(list(ft.Loader(ft.RangeDataset(source, index), 8))) == SAMPLES / 8


def test_an_index_without_checksums_verifies_nothing(source: feedrail.Source) -> None:
    with pytest.raises(ValueError, match="crc=True"):
        ft.RangeDataset(source, Index.of([0], [8]), verify=True)
    with pytest.raises(ValueError, match="crc=True"):
        ft.RangeDataset(source, feedrail.index.Windows([100], 8, 8), verify=True)


def test_utilisation_is_of_the_loops_of_a_source(
    source: feedrail.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is ours: each look at it is a second later."""
    from feedrail.torch import _loader

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            self.now += 1
            return self.now

    monkeypatch.setattr(_loader, "time", Clock())
    dataset = ft.TokenDataset(source, 100, dtype="uint8")
    with ft.Loader(dataset, 10) as loader:
        next(loader)
        assert source.stats().utilisation is None
        for _ in range(4):
            next(loader)
        stats = source.stats()
        assert (stats.loader_compute_seconds, stats.loader_stall_seconds) == (4, 4)
        assert stats.utilisation == 0.5
        loader.reset()
        next(loader)
        assert source.stats().loader_compute_seconds == 4
