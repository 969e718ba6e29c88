"""Tensors of safetensors files, beside the format's own library; of several, and in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Serve, Served

import feedrail

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from feedrail.formats.safetensors import load_file, shard_slices, stream
from test_torch_safetensors_stream import MIB, same, write

pytestmark = pytest.mark.torch


def test_tensors_are_those_of_the_library(serve: Serve, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "odd": torch.ones(5).bool()}
    for dtype in [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz, torch.complex64,
    ]:  # fmt: skip
        tensors[str(dtype)] = torch.randint(0, 100, (7, 3)).to(dtype)
    tensors["f4"] = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
    path = tmp_path / "model.safetensors"
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    source = feedrail.open(serve(path).url)
    loaded = load_file(source)
    local = safetensors.load_file(path)
    assert loaded.keys() == local.keys()
    for name, tensor in local.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        same = loaded[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        assert torch.equal(*same), name
    assert source.stats().bounced_bytes >= 0
    loaded["scalar"] += 1
    assert load_file(source)["scalar"] == 2.5


def header(entry: object, data_bytes: int = 16, **more: object) -> bytes:
    text = json.dumps({"a": entry, **more}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(4), "the length of a header"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "expected 1152921504606846976 bytes"),
        (b"\x02" + bytes(7) + b"[]", "a header of safetensors"),
        (b"\x02" + bytes(7) + b"{!", "a header of safetensors"),
        (header({**GOOD, "dtype": "F31"}), "F31"),
        (header({**GOOD, "dtype": "F6_E2M3", "shape": [8], "data_offsets": [0, 6]}, 6), "no type"),
        (header({**GOOD, "dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}, 3), "rows have 3 values, and a byte has 2"),
        (header({**GOOD, "data_offsets": [0, 17]}), "header of safetensors"),
        (header({**GOOD, "data_offsets": [-1, 15]}), "header of safetensors"),
        (header({**GOOD, "shape": [3, 2]}), "header of safetensors"),
        (header({**GOOD, "shape": [-2, -2]}), "header of safetensors"),
        (header({**GOOD, "shape": None}), "header of safetensors"),
        (header(7), "header of safetensors"),
        (header(GOOD, 17), "1 bytes more"),
        (header(GOOD, 16, b=GOOD), "header of safetensors"),
    ],
)
def test_files_that_lie(serve: Serve, tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        load_file(serve(path).url)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with a model in three files and its index, and the URL of a target that serves it."""
    folder = tmp_path / "served"
    (folder / "model").mkdir(parents=True)
    tensors = {f"{i:02}": torch.full((i, 100), i) for i in range(12)}
    files = {name: f"model-{int(name) // 5:05}.safetensors" for name in tensors}
    for file in set(files.values()):
        write(folder / "model" / file, {name: tensors[name] for name in tensors if files[name] == file})
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    # What others may be there.
    (folder / "a.txt").write_text("{}")
    served = Served(folder)
    yield folder, served.url
    served.daemon.kill()


INDEX = "model/model.safetensors.index.json"


def test_a_model_of_several_files(files: tuple[Path, str]) -> None:
    _, url = files
    source = feedrail.open(url)
    names = [f"model/model-{number:05}.safetensors" for number in range(3)]
    for shard in (INDEX, names, [source.shards.number(name) for name in names]):
        come = list(stream(url, shard=shard))
        assert sorted(name for name, _ in come) == [f"{number:02}" for number in range(12)]
        assert [int(name) // 5 for name, _ in come] == [0] * 5 + [1] * 5 + [2] * 2
        assert all(same(tensor, torch.full((int(name), 100), int(name))) for name, tensor in come)
    one = load_file(source, shard=[*reversed(names)])
    assert [*one] == [name for file in reversed(names) for name, _ in stream(source, shard=file)]
    assert [*stream(source, shard=[])] == []
    ((_, half),) = stream(source, shard=INDEX, names=["11"], slices={"11": np.s_[:5]})
    assert half.shape == (5, 100)
    with pytest.raises(feedrail.FormatError, match="two files have a tensor '0"):
        stream(source, shard=[names[0], INDEX])
    with pytest.raises(feedrail.NotFound, match="no shard 'b'"):
        stream(source, shard=[names[0], "b"])


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("{}", feedrail.FormatError, "has no weight_map"),
        ("[1]", feedrail.FormatError, "has no weight_map"),
        ("nothing", feedrail.FormatError, "has no weight_map"),
        ("[" * 100_000, feedrail.FormatError, "has no weight_map"),
        ('{"weight_map": ["a"]}', feedrail.FormatError, "has no weight_map"),
        ('{"weight_map": {"a": 1}}', feedrail.FormatError, "has no weight_map"),
        ('{"weight_map": {"00": "../a"}}', feedrail.NotFound, "no shard 'model/../a'"),
        (
            '{"weight_map": {"09": "model-00000.safetensors"}}',
            feedrail.FormatError,
            "has tensor '09' in model-00000.safetensors, which has none",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_index_that_lies(files: tuple[Path, str], text: str, kind: type[Exception], said: str) -> None:
    folder, _ = files
    (folder / INDEX).write_text(text)
    with pytest.raises(kind, match=said):
        stream(str(folder), shard=INDEX)


@pytest.fixture
def checkpoint(serve: Serve, tmp_path: Path) -> Iterator[tuple[Path, feedrail.Checkpoint, Path]]:
    """A file, a checkpoint that has it as an entry, and the image of the volume."""
    tensors = {f"norm.{i}": torch.rand(i) for i in range(9)}
    # Rows are shorter than a unit of the volume, and longer.
    tensors |= {f"{shape}": torch.rand(shape) for shape in [(600, 700), (3, MIB // 2), (7, 9, 11)]}
    path, image = write(tmp_path / "model.safetensors", tensors), tmp_path / "volume.img"
    with image.open("wb") as file:
        file.truncate(48 * MIB)
    url = serve("--writable", image).url
    feedrail.CheckpointStore.format(url)
    with feedrail.CheckpointStore(url) as store, store.begin(7) as save:
        save.write("notes", b"1")
        save.write("model/model.safetensors", np.fromfile(path, np.uint8))
        save.commit()
    with feedrail.CheckpointStore(url, mode="r") as store:
        yield path, store.latest(), image


ENTRY = "model/model.safetensors"


def test_tensors_of_a_checkpoint(checkpoint: tuple[Path, feedrail.Checkpoint, Path]) -> None:
    path, saved, _ = checkpoint
    local = safetensors.load_file(path)
    told: list[tuple[int, int]] = []
    come = load_file(saved, shard=ENTRY, progress=lambda *done: told.append(done))
    assert come.keys() == local.keys() and all(same(come[name], local[name]) for name in local)
    assert told == sorted(told) and told[-1] == (sum(it.nbytes for it in local.values()),) * 2
    for dim in (0, -1):
        dims = {name: dim for name, tensor in local.items() if tensor.dim()}
        for rank in range(2):
            slices = shard_slices(rank, 2, dims.get)
            for name, part in stream(saved, shard=1, slices=slices, buffer_bytes=16 * MIB):
                shape = tuple(local[name].shape)
                assert same(part, local[name][slices(name, "F32", shape)].contiguous()), name
    with pytest.raises(feedrail.NotFound, match="no shard 'other'"):
        stream(saved, shard="other")
    with pytest.raises(feedrail.FormatError, match="the length of a header"):
        load_file(saved)


def test_a_damaged_tensor_of_a_checkpoint(checkpoint: tuple[Path, feedrail.Checkpoint, Path]) -> None:
    path, saved, image = checkpoint
    wrong = safetensors.load_file(path)["(3, 524288)"].numpy()[2, -16:].tobytes()
    at = image.read_bytes().index(wrong)
    with image.open("r+b") as file:
        file.seek(at)
        file.write(bytes([wrong[0] ^ 4]))
    with pytest.raises(feedrail.Damaged), stream(saved, shard=ENTRY) as tensors:
        dict(tensors)
    ((_, good),) = stream(saved, shard=ENTRY, names=["(3, 524288)"], slices={"(3, 524288)": slice(2)})
    assert good.shape == (2, MIB // 2)
