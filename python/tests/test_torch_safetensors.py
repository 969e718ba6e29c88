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
