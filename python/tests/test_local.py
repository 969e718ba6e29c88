"""Files of this machine as sources."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import Served

import feedrail
from feedrail.index import build


def test_a_folder_is_as_a_target_exports_it(tmp_path: Path) -> None:
    folder = tmp_path / "data set"
    (folder / "x").mkdir(parents=True)
    for name, data in [("b.bin", b"b" * 700), ("x/a.bin", b"a" * 5), (".h", b"h"), ("empty", b"")]:
        (folder / name).write_bytes(data)
    served = Served(folder, tmp_path)
    with feedrail.open(served.url) as far:
        for form in (folder, str(folder), "file://" + str(folder).replace(" ", "%20")):
            near = feedrail.open(form)
            for source in (far, near, pickle.loads(pickle.dumps(near))):
                assert sorted((it.name, it.nbytes) for it in source.shards) == [
                    ("b.bin", 700), ("x/a.bin", 5)
                ]
                assert source.open("x/a.bin").read() == b"aaaaa"
                rows = source.rows("b.bin", [1, 600], 100)
                assert bytes(memoryview(rows)) == b"b" * 200
                assert source.stats().ranges >= 3
    served.daemon.kill()


def test_a_file_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    data = np.arange(1000, dtype="<u2")
    path.write_bytes(data.tobytes())
    source = feedrail.open(path)
    index = build(source, block_size=9, crc=True)
    assert np.array_equal(index.records, build(path, block_size=9, crc=True).records)
    out = np.zeros(20, np.uint8)
    told: list[tuple[int, int]] = []
    plan = feedrail.make_plan([0], [20])
    source.read_many(plan, out, progress=lambda *it: told.append(it), crc32c=index.checksums([0]))
    assert out.tobytes() == data[:10].tobytes() and told == [(20, 20)]
    with pytest.raises(feedrail.ChecksumError):
        source.read_many(plan, out, crc32c=[1])
    with pytest.raises(feedrail.RangeError):
        source.read_many(feedrail.make_plan([1990], [20]), out)
    with pytest.raises(ValueError, match="beyond"):
        source.read_many(feedrail.make_plan([0], [20], dst=[1]), out)
    with pytest.raises(ValueError, match="share"):
        source.read_many(feedrail.make_plan([0, 0], [9, 9], dst=[0, 8]), out)
    with pytest.raises(ValueError, match="shard 1 of 1"):
        source.read_many(feedrail.make_plan([0], [9], shard=1), out)
    path.write_bytes(bytes(2000))
    with pytest.raises(feedrail.DatasetChanged):
        source.read_many(plan, out)


def test_what_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        feedrail.open(tmp_path / "nobody")
    for url in ("http://a/b", "file://elsewhere/b"):
        with pytest.raises(ValueError, match="file:///path"):
            feedrail.open(url)


def test_a_name_of_digits_is_no_number(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in ("0000", "0001", "0002", "a b", "a%20b", "nsid:1"):
        (folder / name).write_text(f"I am {name}")
    served = Served(folder)
    fsspec = pytest.importorskip("feedrail.fsspec")
    files = fsspec.NvmfFileSystem(skip_instance_cache=True)
    with feedrail.open(served.url) as source:
        for shard in source.shards:
            url = str(feedrail._url.NvmfUrl(served.address, 4420, served.nqn, shard.name))
            expected = f"I am {shard.name}".encode()
            assert feedrail.open(url).open().read() == files.cat_file(url) == expected
            by_number = feedrail.open(f"{served.url}/nsid:{shard.nsid}")
            assert by_number.open().read() == expected
        listed = files.ls(served.path, detail=False)
        assert {bytes(files.cat_file(path)) for path in listed} == {
            f"I am {shard.name}".encode() for shard in source.shards
        }
        assert len(files.glob(f"{served.path}/a*b")) == 2
    assert files.cat_file(f"{served.path}/a b") == files.cat_file(f"{served.path}/a%20b")
    with pytest.raises(FileNotFoundError, match="a number is said as nsid:2"):
        feedrail.open(f"{served.url}/2")
    served.daemon.kill()
