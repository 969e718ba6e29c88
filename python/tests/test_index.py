"""Indexes that Python builds, beside those of the command line."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import signal
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Serve, Served, binary

import feedrail
from feedrail.formats import RawBatch, webdataset
from feedrail.index import Index, IndexShard, Keys, build

FIXTURES = ROOT / "dataset" / "tests" / "data" / "formats"
#: One shard of each format, in an order that is not that of the names.
NAMES = [
    "rows.npy",
    "records.tfrecord",
    "pax.tar",
    "nanogpt.bin",
    "megatron.idx",
    "megatron.bin",
    "model.safetensors",
    "arrays.npz",
    "table.parquet",
    "gnu.tar",
]
SHARDS = [FIXTURES / name for name in NAMES]


def command_line(*arguments: str | Path) -> None:
    command = [binary("feedrail"), "index", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("crc", [False, True])
def test_files_have_the_index_of_the_command_line(tmp_path: Path, crc: bool) -> None:
    shards = [path for path in SHARDS if path.suffix != ".idx"]
    output, keys = tmp_path / "index.npy", tmp_path / "keys.npz"
    more = ["--crc"] if crc else []
    command_line(*shards, "--block-size", "16", "--output", output, "--keys", keys, *more)
    built = build(shards, block_size=16, crc=crc, keys=True)
    loaded = Index.load(output, keys)
    assert np.array_equal(built.records, loaded.records) and len(built) > 20
    assert built.keys == loaded.keys and built.keys is not None
    assert built.has_checksums == crc
    built.save(tmp_path / "again.npy")
    built.keys.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npy").read_bytes() == output.read_bytes()
    assert Keys.load(tmp_path / "again.npz") == loaded.keys
    again = pickle.loads(pickle.dumps(loaded))
    assert again.keys == loaded.keys and np.array_equal(again.records, loaded.records)


@pytest.mark.parametrize("crc", [False, True])
def test_a_source_has_the_samples_of_its_files(serve: Serve, crc: bool) -> None:
    source = feedrail.open(serve(*SHARDS).url)
    built = build(source, block_size=16, crc=crc, keys=True)
    for number, path in enumerate(SHARDS):
        own = built.records[built.records["shard"] == number]
        if path.suffix == ".idx":
            assert len(own) == 0
            continue
        local = build(path, block_size=16, crc=crc).records
        for field in ("length", "offset", "crc32c"):
            assert np.array_equal(own[field], local[field]), path.name
    batch = RawBatch.read(source, built, np.arange(len(built)), verify=crc)
    for sample, record in zip(batch, built.records.tolist(), strict=True):
        shard, length, offset, _ = record
        assert sample == SHARDS[shard].read_bytes()[offset : offset + length]
    assert np.array_equal(build(source.url, block_size=16).records["offset"], built.records["offset"])


def test_keys_and_members_of_a_tar() -> None:
    index = build(FIXTURES / "gnu.tar", keys=True)
    keys, data = index.keys, (FIXTURES / "gnu.tar").read_bytes()
    assert keys is not None and len(keys) == len(index) > 1
    listed = subprocess.run(
        ["tar", "tf", FIXTURES / "gnu.tar"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for i in range(len(keys)):
        assert keys.find(keys[i]) <= i
        for name, (begin, length) in keys.members(i).items():
            assert any(path.startswith(keys[i]) and path.lower().endswith(name) for path in listed)
            record = index.records[i]
            assert record["offset"] < begin
            assert begin + length <= int(record["offset"]) + int(record["length"]) <= len(data)
    assert keys[-1] == keys[len(keys) - 1]
    with pytest.raises(IndexError):
        keys[len(keys)]
    with pytest.raises(KeyError):
        keys.find("nobody")


def test_keys_go_to_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    keys = build([FIXTURES / "gnu.tar", FIXTURES / "nanogpt.bin"], block_size=16, keys=True).keys
    assert keys is not None
    parquet.write_table(keys.to_arrow(), tmp_path / "keys.parquet")
    rows = parquet.read_table(tmp_path / "keys.parquet").to_pylist()
    assert [row["key"] for row in rows] == [keys[i] for i in range(len(keys))]
    for i, row in enumerate(rows):
        found = {member["name"]: (member["begin"], member["length"]) for member in row["members"]}
        assert found == keys.members(i)


@pytest.mark.parametrize("change", ["missing", "short", "falling", "name", "type"])
def test_keys_that_lie(tmp_path: Path, change: str) -> None:
    keys = build(FIXTURES / "gnu.tar", keys=True).keys
    assert keys is not None
    keys.save(tmp_path / "keys.npz")
    arrays = dict(np.load(tmp_path / "keys.npz"))
    if change == "missing":
        del arrays["member_begin"]
    elif change == "short":
        arrays["key_offsets"] = arrays["key_offsets"][:-1]
    elif change == "falling":
        arrays["member_rows"][1] = 1000
    elif change == "name":
        arrays["member_name"][0] = 77
    else:
        arrays["key_bytes"] = arrays["key_bytes"].astype("<u2")
    np.savez(tmp_path / "lies.npz", **arrays)
    with pytest.raises(ValueError, match="no keys of samples"):
        Keys.load(tmp_path / "lies.npz")


def test_mds_is_in_the_order_of_its_index(serve: Serve, tmp_path: Path) -> None:
    folder = FIXTURES / "mds"
    names = sorted(path.name for path in folder.iterdir())
    ordered = [shard["raw_data"]["basename"] for shard in
               json.loads((folder / "index.json").read_text())["shards"]]
    local = build(folder)
    far = feedrail.open(serve(*(folder / name for name in reversed(names))).url)
    built = build(far)
    assert len(built) == len(local) > 1
    shards = [far.shards[int(number)].name for number in built.records["shard"]]
    assert shards == [ordered[int(number)] for number in local.records["shard"]]
    assert np.array_equal(built.records["offset"], local.records["offset"])


def test_what_is_no_shard_is_left_out(tmp_path: Path) -> None:
    for name in ("index.npy", "manifest.json", "keys.npz", ".hidden"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(FileNotFoundError, match="no shards"):
        build(tmp_path)
    (tmp_path / "b.bin").write_bytes(bytes(200))
    assert len(build(tmp_path, block_size=9)) == 11
    assert len(build([tmp_path / "b.bin"], block_size=9, dtype="uint32", stride=1)) == 41


@pytest.mark.parametrize("far", [False, True])
def test_a_truncated_shard_is_an_error_with_its_place(
    serve: Serve, tmp_path: Path, far: bool
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100))
    cut = (FIXTURES / "gnu.tar").read_bytes()[:2000]
    (tmp_path / "cut.tar").write_bytes(cut)
    files = [tmp_path / "a.bin", tmp_path / "cut.tar"]
    with pytest.raises(feedrail.FormatError, match=r"cut\.tar, offset \d+: .*2000") as raised:
        build(feedrail.open(serve(*files).url) if far else files, block_size=9)
    assert raised.value.shard == 1 and 0 < (raised.value.offset or 0) <= 2000
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, OSError)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "zip"}, "a format is tokens, megatron"),
        ({"block_size": 0}, "block_size 0"),
        ({"stride": 0}, "stride 0"),
        ({"dtype": "complex64"}, "dtype"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(FIXTURES / "nanogpt.bin", **options)
    with pytest.raises(FileNotFoundError):
        build(FIXTURES / "nobody.bin")


def test_progress_is_told_and_may_stop(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(1 << 20))
    told: list[tuple[int, int]] = []
    build([path, path], block_size=7, progress=lambda done, total: told.append((done, total)))
    done = [done for done, _ in told]
    assert done == sorted(done) and len(done) >= 4
    assert told[-1] == (2 << 20, 2 << 20) and {total for _, total in told} == {2 << 20}

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for source in (path, feedrail.open(serve(path).url)):
        with pytest.raises(KeyboardInterrupt):
            build(source, block_size=7, progress=stop)


def test_a_signal_ends_a_build(tmp_path: Path) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Alarm):
            build(path, block_size=(1 << 30) - 1, dtype="uint8", crc=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert path.stat().st_size == 1 << 40


def test_errors_of_a_source_come_through(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes((FIXTURES / "gnu.tar").read_bytes())
    daemon = serve(path)
    source = feedrail.open(daemon.url, loss_timeout=0.3)
    daemon.kill()
    with pytest.raises(feedrail.TargetLost):
        build(source)


def test_shards_are_found_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    (folder / "x").mkdir(parents=True)
    for name, value, count in [("a", 1, 1000), ("b", 2, 0), ("c", 3, 1000), ("x/d", 4, 1000)]:
        (folder / f"{name}.bin").write_bytes(np.full(count, value, "<u2").tobytes())
    with pytest.warns(UserWarning, match=r"empty files are no shards: b\.bin"):
        index = build(folder, block_size=99)
    index.save(tmp_path / "index.npy")
    assert np.array_equal(np.load(tmp_path / "index.npy"), index.records)
    assert np.array_equal(np.load(tmp_path / "index.npy", mmap_mode="r"), index.records)
    loaded = Index.load(tmp_path / "index.npy")
    assert loaded.shards == index.shards
    assert [shard.name for shard in index.shards or ()] == ["a.bin", "c.bin", "x/d.bin"]
    # As it was made when empty files were counted, and in another order than the source.
    shards = [*reversed(index.shards or ()), IndexShard("b.bin", 0)]
    records = index.records.copy()
    records["shard"] = 2 - records["shard"]
    other = pickle.loads(pickle.dumps(Index(records, shards=shards)))
    served = Served(folder)
    with feedrail.open(served.url) as source:
        for each in (loaded, other, build(source, block_size=99)):
            batch = RawBatch.read(source, each, np.arange(len(each)))
            values = {(shard, np.frombuffer(data, "<u2")[0]) for shard, data in
                      zip(each.records["shard"].tolist(), batch, strict=True)}
            names = [shard.name for shard in each.shards or ()]
            assert {(names[shard], int(value)) for shard, value in values} == {
                ("a.bin", 1), ("c.bin", 3), ("x/d.bin", 4)
            }
            again = pickle.loads(pickle.dumps(each.on(source)))
            assert np.array_equal(again.plan(np.arange(3)), each.on(source).plan(np.arange(3)))
        longer = Index(records, shards=[*shards[:-2], IndexShard("a.bin", 2002, 10)])
        with pytest.raises(feedrail.DatasetChanged, match=r"a\.bin has the size 2002.*2000 now"):
            RawBatch.read(source, longer, [0])
        alone = Index(records, shards=[IndexShard("z.bin", 5, 1), *shards[1:]])
        with pytest.raises(feedrail.DatasetChanged, match=r"samples of z\.bin, which is not among"):
            RawBatch.read(source, alone, [0])
    served.daemon.kill()


def test_a_file_without_names_says_how_to_write_one(tmp_path: Path) -> None:
    index = build(FIXTURES / "nanogpt.bin", block_size=16)
    np.save(tmp_path / "old.npy", index.records)
    with pytest.warns(UserWarning, match="has no names of its shards.*feedrail index"):
        old = Index.load(tmp_path / "old.npy")
    assert old.shards is None
    with feedrail.open(FIXTURES / "nanogpt.bin") as source:
        assert old.on(source) is old


@pytest.mark.parametrize("far", [False, True])
def test_merged_mds_is_in_folders(tmp_path: Path, far: bool) -> None:
    folder = tmp_path / "mds"
    text = (FIXTURES / "mds" / "index.json").read_text()
    for part, name in [("0", "shard.00000.mds"), ("1", "shard.00001.mds")]:
        (folder / part).mkdir(parents=True)
        (folder / part / name).write_bytes((FIXTURES / "mds" / name).read_bytes())
        (folder / part / "index.json").write_text("{}")
        text = text.replace(name, f"{part}/{name}")
    (folder / "index.json").write_text(text)
    local = build(folder)
    served = Served(folder) if far else None
    source = feedrail.open(served.url if served else folder)
    assert len(local) == len(build(source)) == 10
    samples = RawBatch.read(source, local, np.arange(10))
    plain = feedrail.open(FIXTURES / "mds")
    assert list(map(bytes, samples)) == list(
        map(bytes, RawBatch.read(plain, build(FIXTURES / "mds"), np.arange(10)))
    )
    if served:
        served.daemon.kill()


def archive(path: Path, names: list[str], encoding: str = "utf-8") -> bytes:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding=encoding) as tar:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(f"{name}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"%d" % number))
    return path.read_bytes()


def test_archives_that_cat_joined(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(path, ["a", "b"]) + archive(path, ["c"]))
    with pytest.raises(feedrail.FormatError, match="ignore_zeros=True") as raised:
        build(path)
    assert raised.value.offset == 10240
    index = build(path, ignore_zeros=True, keys=True)
    assert index.keys is not None and [index.keys[i] for i in range(3)] == ["a", "b", "c"]
    command_line(path, "--ignore-zeros", "--output", tmp_path / "index.npy")
    assert np.array_equal(Index.load(tmp_path / "index.npy").records, index.records)


def test_names_in_a_tar_need_not_be_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    archive(path, ["caf\xe9", "b"], "latin-1")
    source = feedrail.open(path)
    index = build(source, keys=True)
    assert index.keys is not None and index.keys.find(r"caf\xE9") == 0
    samples = webdataset.Decoder()(RawBatch.read(source, index, [0, 1]))
    assert list(samples) == [{"__key__": r"caf\xE9", "cls": 0}, {"__key__": "b", "cls": 1}]


def test_tokens_that_begin_as_gzip_does(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    np.full(2000, 35615, np.uint16).tofile(path)
    assert len(build(path, block_size=8)) == 249
    path.write_bytes(gzip.compress(bytes(5000)))
    with pytest.raises(feedrail.FormatError, match="gzip.*format="):
        build(path, block_size=8)
    (tmp_path / "a.parquet").write_bytes(b"PARE" + bytes(100) + b"PARE")
    with pytest.raises(feedrail.FormatError, match="encrypted footer"):
        build(tmp_path / "a.parquet")
