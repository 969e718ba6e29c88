"""Formats that need numpy only, and webdataset where it is installed."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Serve, binary

import feedrail
from feedrail.megatron import BinReader, MegatronIndex


def idx(dtype_code: int, lengths: list[int], itemsize: int, documents: list[int]) -> bytes:
    ends = np.cumsum([0, *lengths])[:-1] * itemsize
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, dtype_code, len(lengths), len(documents))
        + np.array(lengths, "<i4").tobytes()
        + ends.astype("<i8").tobytes()
        + np.array(documents, "<i8").tobytes()
    )


def test_megatron(serve: Serve, tmp_path: Path) -> None:
    lengths = [5, 1, 700, 32]
    tokens = np.random.default_rng(0).integers(0, 1 << 31, sum(lengths)).astype("<i4")
    (tmp_path / "a.bin").write_bytes(tokens.tobytes())
    (tmp_path / "a.idx").write_bytes(idx(4, lengths, 4, [0, 2, 4]))
    source = feedrail.open(serve(tmp_path / "a.bin", tmp_path / "a.idx").url)
    index = MegatronIndex.read(source, "a.idx")
    assert index.dtype == np.int32 and index.documents.tolist() == [0, 2, 4]
    reader = BinReader(source, "a.bin")
    starts = np.cumsum([0, *lengths])
    for number, length in enumerate(lengths):
        read = reader.read(index.dtype, length, int(index.pointers[number]))
        assert np.array_equal(read, tokens[starts[number] : starts[number + 1]])
    plan = index.index(source.shards.number("a.bin")).plan(np.array([3, 0]))
    assert plan["length"].tolist() == [128, 20] and plan["dst"].tolist() == [0, 128]
    with pytest.raises(feedrail.RangeError):
        reader.read(np.int32, 10, 4 * len(tokens) - 39)


@pytest.mark.parametrize("cut", range(0, 34 + 4 * 12 + 3 * 8, 7))
def test_an_idx_that_is_cut(cut: int) -> None:
    with pytest.raises(ValueError, match=r"not an \.idx|too short"):
        MegatronIndex.parse(idx(4, [1, 2, 3, 4], 4, [0, 2, 4])[:cut])


@pytest.mark.parametrize(("at", "byte"), [(0, 0), (9, 2), (17, 0), (17, 9), (25, 127), (33, 127)])
def test_an_idx_that_lies(at: int, byte: int) -> None:
    data = bytearray(idx(4, [1, 2], 4, [0, 2]))
    data[at] = byte
    with pytest.raises(ValueError, match=r"\.idx"):
        MegatronIndex.parse(bytes(data))


def test_webdataset_reads_shards(serve: Serve, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    from feedrail.formats.webdataset import open_url, register

    path, random = tmp_path / "a.tar", np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for number in range(50):
            for extension, count in [("cls", 1), ("bin", 4000)]:
                member = tarfile.TarInfo(f"{number:04}.{extension}")
                member.size = count
                tar.addfile(member, io.BytesIO(random.bytes(count)))
    register()
    url = f"{serve(path).url}/a.tar"
    read = [
        [{k: v for k, v in sample.items() if k != "__url__" and k != "__local_path__"} for sample in
         webdataset.WebDataset(where, shardshuffle=False)]
        for where in (url, str(path))
    ]
    assert len(read[0]) == 50 and read[0] == read[1]
    with pytest.raises(ValueError, match="mode"):
        open_url(url, "wb")


def test_the_quick_start_needs_no_torch(tmp_path: Path) -> None:
    """An import of torch fails here, as on a machine without it."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch')")
    example = ROOT / "python" / "examples" / "quickstart.py"
    script = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = sys.argv[1:]; "
    script += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", script, str(example), str(binary("feedrail-target"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("numpy: 480 rows")
