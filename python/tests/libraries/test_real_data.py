"""70,000 images in each format and the tokens of Linux, every sample read from a target.

`real_data.py` makes them; `FEEDRAIL_REAL_DATA` names the folder.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import real_data
from conftest import Served, binary

import feedrail
from feedrail.index import Index

FOLDER = Path(os.environ.get("FEEDRAIL_REAL_DATA", "none"))
IMAGES, PIXELS = 70_000, 28 * 28
#: Samples that are read in one call.
BATCH = 5000

pytestmark = pytest.mark.skipif(
    not (FOLDER / "samples").is_dir(), reason="FEEDRAIL_REAL_DATA names no folder of real_data.py's"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(FOLDER / "samples", tmp_path_factory.mktemp("served"))
    yield running
    running.daemon.kill()


@pytest.fixture(scope="module")
def source(served: Served) -> Iterator[feedrail.Source]:
    opened = feedrail.open(served.url)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """The images as Debian's package has them, shape `(70000, 784)`."""
    found = real_data.images(FOLDER)[0].reshape(IMAGES, PIXELS)
    assert len(np.unique(found[:100], axis=0)) == 100
    return found


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return real_data.images(FOLDER)[1]


def shards_of(source: feedrail.Source, kind: str, suffix: str) -> list[str]:
    """Names of the shards of a format, in order."""
    found = sorted(
        shard.name
        for shard in source.shards
        if shard.name.startswith(f"{kind}/") and shard.name.endswith(suffix)
    )
    if not found:
        pytest.skip(f"{FOLDER} has no {kind}: its library was missing")
    return found


def samples_of(
    source: feedrail.Source, names: list[str], tmp_path: Path, *options: str
) -> Iterator[np.ndarray]:
    """Samples as `feedrail index` finds them on the running target, one after the other."""
    made = tmp_path / "index.npy"
    urls = [f"{source.url}/{name}" for name in names]
    subprocess.run(
        [binary("feedrail"), "index", *urls, *options, "--output", made],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    records = np.load(made)
    records["shard"] = np.array([source.shards.number(name) for name in names])[records["shard"]]
    index = Index(records)
    for first in range(0, len(index), BATCH):
        plan = index.plan(np.arange(first, min(first + BATCH, len(index))))
        ends = np.cumsum(plan["length"], dtype=np.int64)
        out = np.zeros(ends[-1], np.uint8)
        source.read_many(plan, out)
        yield from np.split(out, ends[:-1])


def test_tar_by_index(
    source: feedrail.Source, images: np.ndarray, labels: np.ndarray, tmp_path: Path
) -> None:
    names, count = shards_of(source, "tar", ".tar"), 0
    for number, sample in enumerate(samples_of(source, names, tmp_path)):
        with tarfile.open(fileobj=io.BytesIO(sample)) as tar:
            found = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}
        assert found == {
            f"{number:06}.bin": images[number].tobytes(),
            f"{number:06}.cls": b"%d" % labels[number],
        }
        count += 1
    assert count == IMAGES


def test_tar_by_webdataset(served: Served, source: feedrail.Source, images: np.ndarray) -> None:
    webdataset = pytest.importorskip("webdataset")
    from feedrail.formats.webdataset import register

    register()
    urls = [f"{served.url}/{name}" for name in shards_of(source, "tar", ".tar")]
    count = 0
    for number, sample in enumerate(webdataset.WebDataset(urls, shardshuffle=False)):
        assert sample["bin"] == images[number].tobytes(), number
        count += 1
    assert count == IMAGES


def test_mds_by_index(
    source: feedrail.Source, images: np.ndarray, labels: np.ndarray, tmp_path: Path
) -> None:
    names, count = shards_of(source, "mds", ".mds"), 0
    for number, sample in enumerate(samples_of(source, names, tmp_path)):
        # The length of the image, the image, and the label in 8 bytes.
        encoded = struct.pack("<I784sq", PIXELS, images[number].tobytes(), labels[number])
        assert sample.tobytes() == encoded, number
        count += 1
    assert count == IMAGES


def test_tfrecord(
    source: feedrail.Source, images: np.ndarray, labels: np.ndarray, tmp_path: Path
) -> None:
    example_pb2 = pytest.importorskip("tfrecord").example_pb2
    names, count = shards_of(source, "tfrecord", ".tfrecord"), 0
    for number, sample in enumerate(samples_of(source, names, tmp_path, "--crc")):
        features = example_pb2.Example.FromString(sample.tobytes()).features.feature
        assert features["image"].bytes_list.value[0] == images[number].tobytes(), number
        assert features["label"].int64_list.value[0] == labels[number], number
        count += 1
    assert count == IMAGES


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [("npy", "npy/images.npy", ()), ("npz", "npz/all.npz", ("--array", "images"))],
)
def test_rows_of_numpy_by_index(
    source: feedrail.Source,
    images: np.ndarray,
    tmp_path: Path,
    kind: str,
    name: str,
    options: tuple[str, ...],
) -> None:
    assert name in shards_of(source, kind, "")
    samples = np.array(list(samples_of(source, [name], tmp_path, *options)))
    assert np.array_equal(samples, images)


def test_numpy_loads_files(
    source: feedrail.Source, images: np.ndarray, labels: np.ndarray
) -> None:
    with io.BufferedReader(source.open("npy/images.npy"), 1 << 20) as file:
        assert np.array_equal(np.load(file).reshape(IMAGES, PIXELS), images)
    with np.load(io.BufferedReader(source.open("npz/all.npz"), 1 << 20)) as arrays:
        assert np.array_equal(arrays["images"].reshape(IMAGES, PIXELS), images)
        assert np.array_equal(arrays["labels"], labels)


def test_safetensors_by_index(
    source: feedrail.Source, images: np.ndarray, labels: np.ndarray, tmp_path: Path
) -> None:
    names = shards_of(source, "safetensors", ".safetensors")
    found = {len(tensor): tensor for tensor in samples_of(source, names, tmp_path)}
    assert np.array_equal(found[images.nbytes], images.reshape(-1))
    assert np.array_equal(found[labels.nbytes], labels)


def test_safetensors_by_load_file(
    served: Served, source: feedrail.Source, images: np.ndarray, labels: np.ndarray
) -> None:
    pytest.importorskip("torch")
    from feedrail.formats.safetensors import load_file

    (name,) = shards_of(source, "safetensors", ".safetensors")
    loaded = load_file(f"{served.url}/{name}")
    assert np.array_equal(loaded["images"].numpy().reshape(IMAGES, PIXELS), images)
    assert np.array_equal(loaded["labels"].numpy(), labels)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_by_pyarrow(
    served: Served, source: feedrail.Source, images: np.ndarray, labels: np.ndarray, kind: str
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    from feedrail.fsspec import NvmfFileSystem

    files = PyFileSystem(FSSpecHandler(NvmfFileSystem()))
    paths = [f"{served.path}/{name}" for name in shards_of(source, kind, f".{kind}")]
    if kind == "parquet":
        table = dataset.dataset(paths, filesystem=files).to_table()
    else:
        with files.open_input_file(paths[0]) as file:
            table = pyarrow.ipc.open_stream(file).read_all()
    assert table["label"].to_pylist() == labels.tolist()
    assert b"".join(table["image"].to_pylist()) == images.tobytes()


def test_mds_by_streaming(
    served: Served, images: np.ndarray, labels: np.ndarray, tmp_path: Path
) -> None:
    streaming = pytest.importorskip("streaming")
    import feedrail.streaming

    feedrail.streaming.register()
    dataset = streaming.StreamingDataset(
        remote=f"{served.url}/mds", local=str(tmp_path / "cache"), batch_size=100, shuffle=False
    )
    assert len(dataset) == IMAGES
    for number in range(IMAGES):
        sample = dataset[number]
        assert sample["image"] == images[number].tobytes(), number
        assert sample["label"] == labels[number], number


def test_tokens_of_linux(source: feedrail.Source) -> None:
    """All of the file in rows of a nanoGPT sample, whose ends are in the middle of blocks."""
    if not (FOLDER / "samples" / "train.bin").exists():
        pytest.skip("there is no train.bin: tiktoken, its merges or the package was missing")
    local = np.fromfile(FOLDER / "samples" / "train.bin", np.uint8)
    assert len(local) % 512 == real_data.TAIL_BYTES and local.view("<u2").max() <= 50256
    row = 2050
    whole = len(local) // row
    for first in range(0, whole, 480):
        count = min(480, whole - first)
        offsets = np.arange(first, first + count) * row
        read = source.rows("train.bin", offsets, row).as_numpy()
        assert np.array_equal(read, local[first * row : (first + count) * row])
    tail = len(local) - whole * row
    assert bytes(source.rows("train.bin", [whole * row], tail)) == local[whole * row :].tobytes()


def test_windows_of_tokens(served: Served) -> None:
    """Each token of the file once, as the inputs of a model."""
    torch = pytest.importorskip("torch")
    import feedrail.torch as ft

    local = np.fromfile(FOLDER / "samples" / "train.bin", "<u2").astype(np.int64)
    dataset = ft.TokenDataset(feedrail.open(f"{served.url}/train.bin"), 1024)
    at = 0
    for batch in ft.Loader(dataset, 480, sampler=ft.Order(len(dataset), shuffle=False)):
        inputs = batch.x.reshape(-1)
        assert torch.equal(inputs, torch.from_numpy(local[at : at + len(inputs)]))
        at += len(inputs)
    assert at == 1024 * ((len(local) - 1) // 1024)
