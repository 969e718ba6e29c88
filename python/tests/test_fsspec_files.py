"""Files of checkpoint volumes: whole or not there, and the libraries that write them."""

from __future__ import annotations

import asyncio
import gc
import io
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import fsspec_jobs
import numpy as np
import pytest
from conftest import Daemon, Serve
from test_processes import in_child

fsspec = pytest.importorskip("fsspec")

from fsspec.tests import abstract  # noqa: E402

import feedrail  # noqa: E402
from feedrail.fsspec import NvmfFileSystem, _lease  # noqa: E402

MIB = 1 << 20
#: Seconds after which a target that was killed is given up.
LOSS = 3.0


class Volume:
    """A daemon with a formatted volume, beside an ordinary namespace."""

    def __init__(self, serve: Serve, folder: Path, nbytes: int = 96 * MIB) -> None:
        folder.mkdir(exist_ok=True)
        self.image = folder / "ckpt"
        with self.image.open("wb") as file:
            file.truncate(nbytes)
        (folder / "plain").write_bytes(b"p" * 204_800)
        nqn = "nqn.2026-01.org.example:files"
        self.daemon: Daemon = serve("--nqn", nqn, "--writable", self.image, folder / "plain")
        self.path = f"{self.daemon.url}/ckpt"
        feedrail.CheckpointStore.format(self.path)

    def generation(self) -> int:
        with feedrail.CheckpointStore(self.path, mode="r") as store:
            generation: int = store.summary["generation"]
            return generation

    def of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def end(self) -> None:
        """Waits until this process has given its leases back: without a target it takes a minute."""
        until = time.monotonic() + 60.0
        while any(it._held for it in _lease._leases.values()) and time.monotonic() < until:
            time.sleep(0.05)


@pytest.fixture
def volume(serve: Serve, tmp_path: Path) -> Iterator[Volume]:
    running = Volume(serve, tmp_path / "served")
    yield running
    running.end()


@pytest.fixture
def fs() -> NvmfFileSystem:
    return NvmfFileSystem(skip_instance_cache=True)


@pytest.fixture
def other() -> NvmfFileSystem:
    """A file system with a cache of its own."""
    return NvmfFileSystem(skip_instance_cache=True)


def random_bytes(seed: int, nbytes: int) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def names(fs: NvmfFileSystem, volume: Volume) -> list[str]:
    """All files of a volume, as checkpoint and entry."""
    prefix = fs._strip_protocol(volume.path) + "/"
    return [path.removeprefix(prefix) for path in fs.find(volume.path)]


@pytest.mark.parametrize("provider", ["soft", "shm"])
def test_a_file_appears_when_it_is_closed(
    volume: Volume, other: NvmfFileSystem, provider: feedrail._source.Provider
) -> None:
    fs = NvmfFileSystem(skip_instance_cache=True, provider=provider)
    data = random_bytes(1, 3 * MIB + 517)
    path = volume.of("step-1200/rank0/model.bin")
    with fs.open(path, "wb", block_size=100_000) as file:
        for start in range(0, len(data), 70_001):
            assert file.write(data[start : start + 70_001]) == len(data[start : start + 70_001])
        assert file.tell() == len(data) and file.writable() and not file.readable()
        for each in (fs, other):
            assert not each.exists(path) and names(each, volume) == []
    for each in (fs, other):
        assert each.cat_file(path) == data
        info = each.info(path)
        assert (info["type"], info["size"]) == ("file", len(data))
        created = each.created(path)
        assert isinstance(created, datetime) and created.year >= 2024
        with pytest.raises(NotImplementedError):
            each.modified(path)
    with fs.open(path, "rb", block_size=MIB) as file:
        for start in (0, 2 * MIB, 100, len(data) - 10, MIB - 5):
            file.seek(start)
            assert file.read(3000) == data[start : start + 3000]
        assert file.seek(0, os.SEEK_END) == file.size == len(data) and file.read() == b""
    assert feedrail.CheckpointStore(volume.path, mode="r").latest().step == 1200


def test_listing(volume: Volume, fs: NvmfFileSystem) -> None:
    for name in ("step-1/a", "step-1/deep/b", "step-1/deep/er/c", "step-2/a b%c"):
        fs.pipe_file(volume.of(name.replace("%", "%25")), name.encode())
    base = fs._strip_protocol(volume.path)
    subsystem = base.rpartition("/")[0]
    assert {it["name"]: it["type"] for it in fs.ls(subsystem)} == {
        base: "directory",
        f"{subsystem}/plain": "file",
    }
    assert fs.ls(base, detail=False) == [f"{base}/step-1", f"{base}/step-2"]
    assert sorted(fs.ls(volume.of("step-1"), detail=False)) == [f"{base}/step-1/a", f"{base}/step-1/deep"]
    assert fs.ls(volume.of("step-1/a"), detail=False) == [f"{base}/step-1/a"]
    assert names(fs, volume) == ["step-1/a", "step-1/deep/b", "step-1/deep/er/c", "step-2/a%20b%25c"]
    assert fs.cat_file(f"{base}/step-2/a%20b%25c") == b"step-2/a b%c"
    assert fs.glob(f"{base}/*/deep/*") == [f"{base}/step-1/deep/b", f"{base}/step-1/deep/er"]
    assert fs.glob(f"{base}/step-1/**/c") == [f"{base}/step-1/deep/er/c"]
    assert [Path(root).name for root, _, _ in fs.walk(f"{base}/step-1")] == ["step-1", "deep", "er"]
    assert fs.du(f"{base}/step-1") == len("step-1/a" "step-1/deep/b" "step-1/deep/er/c")
    for directory in ("", "/step-1", "/step-1/deep"):
        assert fs.isdir(base + directory) and not fs.isfile(base + directory)
        for use in (fs.open, fs.cat_file):
            with pytest.raises(IsADirectoryError):
                use(base + directory)
    assert fs.info(f"{base}/step-2")["step"] == 2
    for missing in ("step-3", "step-1/b", "step-1/a/b", "step-1/deep/e"):
        assert not fs.exists(volume.of(missing))
        for call in (fs.info, fs.ls, fs.open, fs.cat_file, fs.rm):
            with pytest.raises(FileNotFoundError):
                call(volume.of(missing))
    assert fs.find(subsystem) == sorted([*fs.find(base), f"{subsystem}/plain"])


def leave_block(volume: Volume, fs: NvmfFileSystem) -> None:
    with pytest.raises(RuntimeError, match="failed"), fs.open(volume.of("step-1/x"), "wb") as file:
        file.write(b"half")
        raise RuntimeError("failed")


def leave_block_of_fsspec(volume: Volume, fs: NvmfFileSystem) -> None:
    for mode, data in (("wb", b"half"), ("w", "half")):
        with pytest.raises(RuntimeError), fsspec.open(volume.of("step-1/x"), mode) as file:
            file.write(data)
            raise RuntimeError("failed")


def leave_text_block(volume: Volume, fs: NvmfFileSystem) -> None:
    with pytest.raises(RuntimeError), fs.open(volume.of("step-1/x"), "w") as file:
        file.write("half")
        raise RuntimeError("failed")


def discard(volume: Volume, fs: NvmfFileSystem) -> None:
    file = fs.open(volume.of("step-1/x"), "wb")
    file.write(bytes(9 * MIB))
    file.discard()
    file.close()
    assert file.closed


def drop(volume: Volume, fs: NvmfFileSystem) -> None:
    file = fs.open(volume.of("step-1/x"), "wb")
    file.write(b"half")
    with pytest.warns(ResourceWarning, match="not closed"):
        del file
        gc.collect()


def drop_text(volume: Volume, fs: NvmfFileSystem) -> None:
    fs.open(volume.of("step-1/x"), "w").write("half")
    gc.collect()


def fail_transaction(volume: Volume, fs: NvmfFileSystem) -> None:
    with pytest.raises(RuntimeError), fs.transaction:
        fs.pipe_file(volume.of("step-1/x"), b"half")
        fs.pipe_file(volume.of("step-1/y"), b"half")
        raise RuntimeError("failed")


@pytest.mark.parametrize(
    "leave",
    [
        leave_block,
        leave_block_of_fsspec,
        leave_text_block,
        discard,
        drop,
        drop_text,
        fail_transaction,
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_nothing_appears(volume: Volume, fs: NvmfFileSystem, leave: object) -> None:
    assert callable(leave)
    leave(volume, fs)
    assert names(fs, volume) == []
    fs.pipe_file(volume.of("step-1/x"), b"old")
    leave(volume, fs)
    assert fs.cat_file(volume.of("step-1/x")) == b"old"
    assert names(fs, volume) == ["step-1/x"]


def test_close_commits_where_another_error_is_handled(volume: Volume, fs: NvmfFileSystem) -> None:
    try:
        raise ValueError("training failed")
    except ValueError as error:
        file = fs.open(volume.of("step-1/why"), "w")
        file.write(str(error))
        file.close()
        with fs.open(volume.of("step-1/block"), "wb") as block:
            block.write(b"whole")
    assert fs.read_text(volume.of("step-1/why")) == "training failed"
    assert fs.cat_file(volume.of("step-1/block")) == b"whole"


def test_a_file_is_replaced_whole(volume: Volume, fs: NvmfFileSystem, other: NvmfFileSystem) -> None:
    path = volume.of("step-1/x")
    old, new = random_bytes(1, 2 * MIB + 3), random_bytes(2, MIB + 5)
    fs.pipe_file(path, old)
    before = {fs.ukey(path), fs.checksum(path), other.ukey(path)}
    with fs.open(path, "wb") as file:
        file.write(new)
        assert fs.cat_file(path) == old
    assert fs.cat_file(path) == new
    # Another file system sees what it has listed.
    other.invalidate_cache(path)
    assert before.isdisjoint({fs.ukey(path), fs.checksum(path), other.ukey(path)})
    with pytest.raises(FileExistsError):
        fs.open(path, "xb")
    with pytest.raises(FileExistsError):
        fs.pipe_file(path, b"", mode="create")
    with fs.open(volume.of("step-1/y"), "xb") as file:
        file.write(b"new")
    assert other.cat_file(volume.of("step-1/y")) == b"new"


def test_one_that_was_opened_is_never_mixed(
    volume: Volume, fs: NvmfFileSystem, other: NvmfFileSystem
) -> None:
    path = volume.of("step-1/x")
    data = [random_bytes(seed, 4 * MIB) for seed in range(12)]
    fs.pipe_file(path, data[0])
    with other.open(path, cache_type="none") as opened:
        assert opened.read(MIB) == data[0][:MIB]
        for each in data[1:]:
            fs.pipe_file(path, each)
            opened.seek(2 * MIB)
            try:
                assert opened.read(MIB) == data[0][2 * MIB : 3 * MIB]
            except feedrail.Damaged:
                pass
    # A path is looked up again where its bytes are gone.
    for each in data:
        fs.pipe_file(path, each)
    assert other.cat_file(path) in data


def test_transactions(volume: Volume, fs: NvmfFileSystem, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"put")
    with fs.transaction:
        with fs.open(volume.of("step-1/a"), "wb") as file:
            file.write(random_bytes(3, 6 * MIB))
        fs.pipe_file(volume.of("step-1/b"), b"b")
        fs.put_file(local, volume.of("step-1/c"))
        assert names(fs, volume) == []
    assert names(fs, volume) == ["step-1/a", "step-1/b", "step-1/c"]
    assert fs.cat_file(volume.of("step-1/a")) == random_bytes(3, 6 * MIB)


def test_moving_is_one_commit(volume: Volume) -> None:
    fs = NvmfFileSystem(lease=600.0, skip_instance_cache=True)
    # Keeps the lease, which else is taken and given back by changes of their own.
    keeper = fs.open(volume.of("step-0/keeper"), "wb")

    def move(one: str, other: str) -> None:
        before = volume.generation()
        fs.mv(volume.of(one), volume.of(other))
        assert volume.generation() == before + 1

    for name in ("step-1/a", "step-1/b", "step-1/deep/c", "step-1/deep/d"):
        fs.pipe_file(volume.of(name), name.encode())
    # Of a file, over another.
    move("step-1/a", "step-1/b")
    assert fs.cat_file(volume.of("step-1/b")) == b"step-1/a"
    # Of a file, into a directory, one of another checkpoint too.
    move("step-1/b", "step-1/deep")
    move("step-1/deep/c", "step-2/new/")
    assert names(fs, volume) == ["step-1/deep/b", "step-1/deep/d", "step-2/new/c"]
    assert fs.cat_file(volume.of("step-2/new/c")) == b"step-1/deep/c"
    # Of a directory, and a checkpoint.
    move("step-1/deep", "step-1/deeper/still")
    move("step-1", "step-3")
    assert names(fs, volume) == ["step-2/new/c", "step-3/deeper/still/b", "step-3/deeper/still/d"]
    fs.mv(volume.of("step-2/new/c"), volume.of("step-2/new/c"))
    with pytest.raises(FileNotFoundError):
        fs.mv(volume.of("step-1/a"), volume.of("step-1/b"))
    fs.pipe_file(volume.of("step-4/still/x"), b"x")
    with pytest.raises(FileExistsError):
        fs.mv(volume.of("step-4/still"), volume.of("step-3/deeper"))
    with pytest.raises(OSError, match="into itself"):
        fs.mv(volume.of("step-4"), volume.of("step-4/still/deeper/"))
    with pytest.raises(OSError, match="cannot be renamed"):
        fs.mv(volume.path, volume.of("step-5"))
    move("step-4/still", "")
    assert fs.cat_file(volume.of("still/x")) == b"x"
    with pytest.raises(IsADirectoryError):
        fs.mv(volume.of("still/x"), volume.path)
    with pytest.raises(feedrail.ReadOnly):
        fs.mv(volume.of("step-2/new/c"), volume.daemon.url + "/plain")
    with pytest.raises(feedrail.ReadOnly):
        fs.mv(volume.daemon.url + "/plain", volume.of("step-2/plain"))
    keeper.discard()


def test_moving_to_another_volume(
    volume: Volume, fs: NvmfFileSystem, serve: Serve, tmp_path: Path
) -> None:
    second = Volume(serve, tmp_path / "second")
    fs.pipe({volume.of("step-1/a"): b"1", volume.of("step-1/deep/b"): b"2"})
    fs.mv(volume.of("step-1"), second.of("step-9"), recursive=True)
    assert names(fs, volume) == [] and names(fs, second) == ["step-9/a", "step-9/deep/b"]
    second.end()


def test_deleting(volume: Volume, fs: NvmfFileSystem) -> None:
    for name in ("step-1/a", "step-1/deep/b", "step-1/deep/c", "step-2/a", "step-3/a"):
        fs.pipe_file(volume.of(name), b"x")
    fs.rm(volume.of("step-1/a"))
    fs.rm_file(volume.of("step-1/deep/b"))
    for directory in ("step-1", "step-1/deep", ""):
        with pytest.raises(IsADirectoryError):
            fs.rm(volume.of(directory))
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir(volume.of(directory))
    assert names(fs, volume) == ["step-1/deep/c", "step-2/a", "step-3/a"]
    # The last file takes the checkpoint with it.
    fs.rm(volume.of("step-1/deep"), recursive=True)
    assert not fs.exists(volume.of("step-1"))
    fs.rm([volume.of("step-2"), volume.of("step-3/*")], recursive=True)
    assert names(fs, volume) == [] and fs.isdir(volume.path)
    fs.pipe({volume.of(name): b"" for name in ("step-4/a", "step-4/deep/b", "step-4/deep/er/c", "step-5/a")})
    fs.rm(volume.of("step-4"), recursive=True, maxdepth=1)
    assert names(fs, volume) == ["step-4/deep/b", "step-4/deep/er/c", "step-5/a"]
    fs.rm(volume.of("step-4/**"), recursive=True)
    assert names(fs, volume) == ["step-5/a"]
    fs.rm(volume.path, recursive=True)
    assert names(fs, volume) == [] and fs.isdir(volume.path)


def test_directories_are_there_when_something_is_in_them(volume: Volume, fs: NvmfFileSystem) -> None:
    for make in (fs.mkdir, fs.makedirs, fs.rmdir):
        make(volume.of("step-1"))
        make(volume.of("step-1/deep"))
    fs.makedirs(volume.of("step-1"), exist_ok=True)
    assert not fs.exists(volume.of("step-1"))


def test_names_that_cannot_be(volume: Volume, fs: NvmfFileSystem) -> None:
    fs.pipe_file(volume.of("step-1/file"), b"x")
    fs.pipe_file(volume.of("step-1/folder/file"), b"x")
    for name in ("step-1/..", "step-1/../x", "step-1/a//b", "../x"):
        with pytest.raises(ValueError, match="not allowed"):
            fs.open(volume.of(name), "wb")
    for name in ("step-1/a%0Ab", "%0A/x"):
        with pytest.raises(FileNotFoundError, match="control characters"):
            fs.open(volume.of(name), "wb")
    for name in ("", "step-1", "step-9", "step-1/folder"):
        with pytest.raises(IsADirectoryError):
            fs.open(volume.of(name), "wb")
    with pytest.raises(NotADirectoryError):
        fs.open(volume.of("step-1/file/x"), "wb")
    for mode in ("ab", "r+b", "w+b"):
        with pytest.raises(NotImplementedError):
            fs.open(volume.of("step-1/file"), mode)
    assert names(fs, volume) == ["step-1/file", "step-1/folder/file"]


def test_other_namespaces_stay_files(volume: Volume, fs: NvmfFileSystem) -> None:
    plain = volume.daemon.url + "/plain"
    assert fs.isfile(plain) and fs.cat_file(plain, 0, 3) == b"ppp"
    assert not fs.exists(plain + "/x") and not fs.exists(volume.daemon.url + "/nobody/x")
    for read in (fs.open, fs.cat_file, fs.info):
        with pytest.raises(FileNotFoundError):
            read(plain + "/x")
    for write in (
        lambda: fs.open(plain, "wb"),
        lambda: fs.pipe_file(plain + "/x", b""),
        lambda: fs.mkdir(plain + "/x"),
        lambda: fs.rm(plain),
    ):
        with pytest.raises(feedrail.ReadOnly, match="nothing is written"):
            write()


def test_a_volume_that_is_formatted_later(serve: Serve, tmp_path: Path, fs: NvmfFileSystem) -> None:
    image = tmp_path / "later"
    image.write_bytes(bytes(32 * MIB))
    daemon = serve("--writable", image)
    path = f"{daemon.url}/later/step-1/x"
    assert not fs.exists(path)
    feedrail.CheckpointStore.format(f"{daemon.url}/later")
    fs.pipe_file(path, b"x")
    assert fs.cat_file(path) == b"x"
    feedrail.CheckpointStore(f"{daemon.url}/later", wait=30.0).close()


def test_cat_ranges_of_both_kinds(volume: Volume, fs: NvmfFileSystem) -> None:
    data = {name: random_bytes(len(name), 5 * MIB + 9) for name in ("step-1/a", "step-1/bb")}
    fs.pipe({volume.of(name): each for name, each in data.items()})
    data["plain"] = b"p" * 204_800
    generator = np.random.default_rng(4)
    wanted = []
    for number in range(300):
        name = list(data)[number % 3]
        start = int(generator.integers(0, len(data[name])))
        wanted.append((name, start, start + int(generator.integers(0, 50_000))))
    wanted += [("step-1/a", None, None), ("step-1/a", -9, None), ("step-1/bb", 9, -9), ("step-1/bb", 5, 2)]
    at = {name: volume.of(name) if "/" in name else f"{volume.daemon.url}/{name}" for name in data}
    got = fs.cat_ranges([at[it[0]] for it in wanted], [it[1] for it in wanted], [it[2] for it in wanted])
    for (name, start, end), each in zip(wanted, got, strict=True):
        assert each == data[name][start:end]
    paths = [at["step-1/a"], volume.of("step-1/none"), volume.of("step-1"), at["plain"]]
    good, missing, directory, shard = fs.cat_ranges(paths, 0, 3)
    assert good == data["step-1/a"][:3] and shard == b"ppp"
    assert isinstance(missing, FileNotFoundError) and isinstance(directory, IsADirectoryError)


def test_a_file_that_another_process_wrote_is_found(
    volume: Volume, fs: NvmfFileSystem, other: NvmfFileSystem
) -> None:
    assert other.ls(volume.path) == []
    with feedrail.CheckpointStore(volume.path) as store, store.begin(5) as save:
        save.write("deep/x", b"123")
        save.commit()
    assert other.ls(volume.path) == []
    assert other.cat_file(volume.of("step-5/deep/x")) == b"123"
    assert len(other.ls(volume.path)) == 1
    with feedrail.CheckpointStore(volume.path) as store:
        store.delete("step-5")
    assert len(other.ls(volume.path)) == 1
    other.invalidate_cache(volume.path)
    assert other.ls(volume.path) == [] and fs.ls(volume.path) == []


def test_put_and_get(volume: Volume, fs: NvmfFileSystem, tmp_path: Path) -> None:
    folder, again = tmp_path / "model", tmp_path / "again"
    files = {"config.json": b"{}", "deep/weights": random_bytes(1, 9 * MIB + 1), "empty": b""}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    told = fsspec.callbacks.Callback()
    fs.put(str(folder), volume.of("step-1/model"), recursive=True, callback=told)
    assert told.value == 3
    assert {name: fs.cat_file(volume.of(f"step-1/model/{name}")) for name in files} == files
    fs.get(volume.of("step-1/model"), str(again), recursive=True)
    assert {name: (again / name).read_bytes() for name in files} == files
    fs.cp(volume.of("step-1/model"), volume.of("step-2"), recursive=True)
    assert fs.cat_file(volume.of("step-2/deep/weights")) == files["deep/weights"]
    # From an ordinary namespace.
    fs.cp_file(volume.daemon.url + "/plain", volume.of("step-2/plain"))
    assert fs.cat_file(volume.of("step-2/plain")) == b"p" * 204_800
    buffer = io.BytesIO()
    fs.get_file(volume.of("step-2/plain"), buffer)
    assert buffer.getvalue() == b"p" * 204_800


def test_several_files_are_written_at_once(volume: Volume, fs: NvmfFileSystem) -> None:
    data = {f"step-1/part={i}": random_bytes(i, 2 * MIB + i) for i in range(8)}
    files = {name: fs.open(volume.of(name), "wb", block_size=50_000) for name in data}
    for start in range(0, 3 * MIB, 40_000):
        for name, file in files.items():
            file.write(data[name][start : start + 40_000])
    for number, (name, file) in enumerate(files.items()):
        file.close() if number % 2 else file.discard()
        assert fs.exists(volume.of(name)) == bool(number % 2)
    for name in list(data)[1::2]:
        assert fs.cat_file(volume.of(name)) == data[name]


def test_threads_write_and_read(volume: Volume, fs: NvmfFileSystem) -> None:
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for turn in range(4):
                path, data = volume.of(f"step-{number}/{turn}"), random_bytes(number, MIB + turn)
                with fs.open(path, "wb") as file:
                    file.write(data)
                assert fs.cat_file(path) == data
            fs.rm(volume.of(f"step-{number}/0"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(names(fs, volume)) == 12


def test_asynchronous(volume: Volume) -> None:
    async def use() -> None:
        fs = NvmfFileSystem(asynchronous=True, skip_instance_cache=True)
        paths = [volume.of(f"step-1/{number}") for number in range(6)]
        await asyncio.gather(*(fs._pipe_file(path, path.encode()) for path in paths))
        found = await asyncio.gather(*(fs._cat_file(path) for path in paths))
        assert found == [path.encode() for path in paths]
        assert len(await fs._find(volume.path)) == 6
        await fs._mv(paths[0], volume.of("step-2/0"))
        await fs._rm(volume.of("step-1"), recursive=True)
        assert [Path(path).name for path in await fs._find(volume.path)] == ["0"]

    asyncio.run(use())


def test_a_full_volume(volume: Volume, fs: NvmfFileSystem) -> None:
    fs.pipe_file(volume.of("step-1/x"), b"old")
    with pytest.raises(feedrail.CapacityExceeded) as raised, fs.open(volume.of("step-1/x"), "wb") as file:
        for _ in range(200):
            file.write(bytes(MIB))
    assert raised.value.errno == 28
    assert fs.cat_file(volume.of("step-1/x")) == b"old" and names(fs, volume) == ["step-1/x"]
    # The space is free again.
    fs.pipe_file(volume.of("step-1/y"), bytes(60 * MIB))
    assert fs.info(volume.of("step-1/y"))["size"] == 60 * MIB


def test_a_target_that_is_lost(volume: Volume) -> None:
    fs = NvmfFileSystem(loss_timeout=LOSS, skip_instance_cache=True)
    fs.pipe_file(volume.of("step-1/x"), b"old")
    file = fs.open(volume.of("step-1/y"), "wb")
    file.write(bytes(6 * MIB))
    volume.daemon.kill()
    with pytest.raises(feedrail.FeedrailError):
        file.write(bytes(40 * MIB))
        file.close()
    assert file.closed or file.discard() is None
    volume.daemon.start()
    again = NvmfFileSystem(lease_wait=300.0, skip_instance_cache=True)
    assert names(again, volume) == ["step-1/x"]


def test_leases_are_given_back(volume: Volume, fs: NvmfFileSystem) -> None:
    with fs.open(volume.of("step-1/x"), "wb"), pytest.raises(feedrail.Leased):
        feedrail.CheckpointStore(volume.path)
    feedrail.CheckpointStore(volume.path, wait=60.0).close()
    with feedrail.CheckpointStore(volume.path):
        impatient = NvmfFileSystem(lease_wait=0.1, skip_instance_cache=True)
        with pytest.raises(feedrail.Leased):
            impatient.open(volume.of("step-1/y"), "wb")
        assert impatient.exists(volume.of("step-1/x"))
    # At exit too, with a file that was not closed.
    program = f"import fsspec; file = fsspec.open({volume.of('step-1/z')!r}, 'wb').open(); file.write(b'x')"
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))
    feedrail.CheckpointStore(volume.path).close()
    # Processes of multiprocessing end in another way.
    process = multiprocessing.get_context("spawn").Process(
        target=fsspec_jobs.write, args=(volume.of("step-1/y"),)
    )
    process.start()
    process.join()
    feedrail.CheckpointStore(volume.path).close()
    assert names(fs, volume) == ["step-1/x", "step-1/y"]


def test_a_lease_is_renewed_while_a_file_is_open(volume: Volume) -> None:
    fs = NvmfFileSystem(lease=3.0, skip_instance_cache=True)

    def rest() -> float:
        with pytest.raises(feedrail.Leased) as raised:
            feedrail.CheckpointStore(volume.path)
        assert raised.value.rest is not None
        return raised.value.rest

    with fs.open(volume.of("step-1/x"), "wb") as file:
        last, now = rest(), rest()
        while now <= last:
            time.sleep(0.1)
            last, now = now, rest()
        file.write(b"x")
    assert fs.cat_file(volume.of("step-1/x")) == b"x"


def test_file_systems_of_a_process_share_the_lease(
    volume: Volume, fs: NvmfFileSystem, other: NvmfFileSystem
) -> None:
    with fs.open(volume.of("step-1/a"), "wb") as one, other.open(volume.of("step-1/b"), "wb") as two:
        one.write(b"a")
        two.write(b"b")
        fs.invalidate_cache()
        fs.pipe_file(volume.of("step-1/c"), b"c")
    # What one wrote the other sees.
    assert names(fs, volume) == names(other, volume) == ["step-1/a", "step-1/b", "step-1/c"]


WRITER = """
import sys, fsspec
fs = fsspec.filesystem("nvmf")
for number in range(5):
    with fs.open(f"{sys.argv[1]}/step-{sys.argv[2]}/{number}", "wb") as file:
        file.write(sys.argv[2].encode() * 100_000)
"""


def test_processes_take_turns(volume: Volume, fs: NvmfFileSystem) -> None:
    command = [sys.executable, "-c", WRITER, volume.path]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(names(fs, volume)) == 15
    assert fs.cat_file(volume.of("step-2/4")) == b"2" * 100_000


KILLED = """
import sys, fsspec
fs = fsspec.filesystem("nvmf", lease=2.0)
fs.pipe_file(sys.argv[1] + "/step-1/whole", b"whole")
file = fs.open(sys.argv[1] + "/step-1/half", "wb")
file.write(bytes(9 << 20))
print("writing", flush=True)
sys.stdin.read()
"""


def test_a_writer_that_is_killed(volume: Volume, fs: NvmfFileSystem) -> None:
    command = [sys.executable, "-c", KILLED, volume.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
    assert names(fs, volume) == ["step-1/whole"]
    # The next one waits for the lease of the other.
    fs.pipe_file(volume.of("step-1/half"), b"now whole")
    assert fs.cat_file(volume.of("step-1/half")) == b"now whole"
    assert fs.cat_file(volume.of("step-1/whole")) == b"whole"


KILLED_AT_ANY_TIME = """
import sys, fsspec
fs = fsspec.filesystem("nvmf")
for number in range(1000):
    with fs.open(f"{sys.argv[1]}/step-1/{number % 5}", "wb", block_size=10_000) as file:
        for _ in range(40):
            file.write(bytes([number % 256]) * 9_999)
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_files_are_whole_when_a_writer_is_killed(
    volume: Volume, fs: NvmfFileSystem, seed: int
) -> None:
    command = [sys.executable, "-c", KILLED_AT_ANY_TIME, volume.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        last = int(writer.stdout.readline())
        time.sleep(random.Random(seed).random())
        writer.kill()
        last = max([last, *map(int, writer.stdout.read().split())])
    found = names(fs, volume)
    # Files that were closed are there, or newer ones.
    assert {f"step-1/{number % 5}" for number in range(max(last - 4, 0), last + 1)} <= set(found)
    for name in found:
        data = fs.cat_file(volume.of(name))
        assert data == data[:1] * (40 * 9_999)
    assert fs.cat_file(volume.of(f"step-1/{last % 5}"))[0] == last % 256


def test_children_open_their_own(volume: Volume) -> None:
    fs = NvmfFileSystem(lease=600.0, skip_instance_cache=True)
    with fs.open(volume.of("step-1/y"), "wb") as written:
        fs.pipe_file(volume.of("step-1/x"), random_bytes(1, 2 * MIB))
        opened = fs.open(volume.of("step-1/x"), cache_type="none")
        written.write(bytes(6 * MIB))
        assert opened.read(9) == random_bytes(1, 2 * MIB)[:9]

        def use_them() -> None:
            opened.seek(MIB)
            assert opened.read() == random_bytes(1, 2 * MIB)[MIB:]
            with pytest.raises(feedrail.ForkedHandleError):
                written.write(bytes(6 * MIB))
            with pytest.raises(feedrail.ForkedHandleError):
                written.close()
            written.discard()
            own = NvmfFileSystem(skip_instance_cache=True, lease_wait=0.1)
            assert own.cat_file(volume.of("step-1/x"), 0, 9) == random_bytes(1, 2 * MIB)[:9]
            # The parent has the lease.
            with pytest.raises(feedrail.Leased):
                own.pipe_file(volume.of("step-1/z"), b"z")

        in_child(use_them)
        # Bytes may be others after a change.
        fs.pipe_file(volume.of("step-1/x"), random_bytes(2, 2 * MIB))

        def read_others() -> None:
            opened.seek(0)
            with pytest.raises(feedrail.DatasetChanged):
                opened.read()

        in_child(read_others)
        written.write(b"end")
    assert fs.info(volume.of("step-1/y"))["size"] == 6 * MIB + 3


def test_it_can_be_pickled(volume: Volume, fs: NvmfFileSystem) -> None:
    fs.pipe_file(volume.of("step-1/x"), b"0123456789")
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file(volume.of("step-1/x"), 2, 5) == b"234"
    with fs.open(volume.of("step-1/x")) as file:
        file.seek(4)
        assert pickle.loads(pickle.dumps(file)).read() == b"456789"


MEMORY = """
import resource, sys, fsspec
fs = fsspec.filesystem("nvmf")
data = bytes(16 << 20)
def write(count):
    with fs.open(sys.argv[1] + "/step-1/x", "wb") as file:
        for _ in range(count):
            file.write(data)
write(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write(40)
added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert added < 64 << 10, f"{added} KiB"
"""


def test_memory_of_a_writer_is_fixed(serve: Serve, tmp_path: Path, fs: NvmfFileSystem) -> None:
    volume = Volume(serve, tmp_path / "large", 900 * MIB)
    subprocess.run([sys.executable, "-c", MEMORY, volume.path], check=True)
    assert fs.info(volume.of("step-1/x"))["size"] == 640 * MIB


def test_arrays_and_text(volume: Volume, fs: NvmfFileSystem) -> None:
    array = np.random.default_rng(1).random((300, 700))
    with fs.open(volume.of("step-1/a.npy"), "wb") as file:
        np.save(file, array)
    with fs.open(volume.of("step-1/a.npy")) as file:
        assert np.array_equal(np.load(file), array)
    with fsspec.open(volume.of("step-1/a.txt"), "wt", encoding="utf-8") as file:
        file.write("Größe\n")
    with fs.open(volume.of("step-1/a.txt"), "r", encoding="utf-8") as file:
        assert file.read() == "Größe\n"
    with fs.open(volume.of("step-1/raw"), "wb") as file:
        for part in (array.astype("<f4"), memoryview(b"abc"), np.zeros((0, 3)), bytearray(b"d")):
            assert file.write(part) == memoryview(part).nbytes
        with pytest.raises((BufferError, ValueError)):
            file.write(array[:, ::2])
    assert fs.cat_file(volume.of("step-1/raw")) == array.astype("<f4").tobytes() + b"abcd"


def test_pyarrow_writes_parquet(volume: Volume, fs: NvmfFileSystem) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    dataset = pytest.importorskip("pyarrow.dataset")
    table = pyarrow.table(
        {
            "id": np.arange(20_000),
            "x": np.random.default_rng(2).normal(size=20_000),
            "kind": [f"k{i % 7}" for i in range(20_000)],
        }
    )
    path = fs._strip_protocol(volume.of("step-1/table.parquet"))
    parquet.write_table(table, path, filesystem=fs, row_group_size=3000)
    assert parquet.read_table(path, filesystem=fs).equals(table)

    base = fs._strip_protocol(volume.of("step-2/parts"))
    partitioning = dataset.partitioning(pyarrow.schema([("kind", pyarrow.string())]), flavor="hive")
    options = {"filesystem": fs, "format": "parquet", "partitioning": partitioning}
    dataset.write_dataset(table, base, **options)
    assert len(fs.ls(base)) == 7
    dataset.write_dataset(table, base, existing_data_behavior="delete_matching", **options)
    read = dataset.dataset(base, **options).to_table().sort_by("id")
    assert read.select(["id", "x", "kind"]).equals(table)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    """A volume for many tests, each in a checkpoint of its own."""
    running = Volume(Daemon, tmp_path_factory.mktemp("shared") / "served", 512 * MIB)
    yield running
    running.end()
    running.daemon.kill()


class _OfFsspec(abstract.AbstractFixtures):
    """What the tests of file systems that fsspec has need."""

    @pytest.fixture
    def fs(self) -> NvmfFileSystem:
        return NvmfFileSystem()

    @pytest.fixture
    def fs_path(self, shared: Volume) -> Iterator[str]:
        path = NvmfFileSystem._strip_protocol(shared.of("checkpoint"))
        yield path
        fs = NvmfFileSystem()
        if fs.exists(path):
            fs.rm(path, recursive=True)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(_OfFsspec, abstract.AbstractCopyTests): ...


class TestPut(_OfFsspec, abstract.AbstractPutTests): ...


class TestOpen(_OfFsspec, abstract.AbstractOpenTests): ...


class TestPipe(_OfFsspec, abstract.AbstractPipeTests): ...
