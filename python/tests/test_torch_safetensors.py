"""Tensors of safetensors files, beside the format's own library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Serve

import feedrail

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from feedrail.formats.safetensors import load_file

pytestmark = pytest.mark.torch


def test_tensors_are_those_of_the_library(serve: Serve, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "odd": torch.ones(5).bool()}
    for dtype in [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e4m3fn, torch.float8_e5m2,
    ]:  # fmt: skip
        tensors[str(dtype)] = torch.randint(0, 100, (7, 3)).to(dtype)
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


def header(entry: object) -> bytes:
    text = json.dumps({"a": entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(4), "a header of 0 bytes"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "a header of 1152921504606846976 bytes"),
        (b"\x02" + bytes(7) + b"[]", "no object"),
        (b"\x02" + bytes(7) + b"{!", "Expecting property name"),
        (header({**GOOD, "dtype": "F31"}), "cannot be read"),
        (header({**GOOD, "data_offsets": [0, 17]}), "is not at bytes 0 to 17 of 16"),
        (header({**GOOD, "data_offsets": [-1, 15]}), "is not at bytes -1"),
        (header({**GOOD, "shape": [3, 2]}), "is not at bytes"),
        (header({**GOOD, "shape": [-2, -2]}), "is not at bytes"),
        (header({**GOOD, "shape": None}), "cannot be read"),
        (header(7), "cannot be read"),
    ],
)
def test_files_that_lie(serve: Serve, tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        load_file(serve(path).url)
