"""Shards as files, in the hands of libraries that read files."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon

import feedrail


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(3)
    matrix = random.normal(size=(100, 77))
    np.save(folder / "matrix.npy", matrix)
    np.savez(folder / "arrays.npz", matrix=matrix, labels=np.arange(100))
    np.savez_compressed(folder / "compressed.npz", matrix=matrix)
    with tarfile.open(folder / "samples.tar", "w") as tar:
        for number in range(40):
            data = random.bytes(number * 37)
            member = tarfile.TarInfo(f"{number:03}.bin")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (folder / "raw.bin").write_bytes(random.bytes(300_001))
    (folder / "lines.txt").write_text("".join(f"line {i}\n" for i in range(5000)))
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> Iterator[feedrail.Source]:
    daemon = Daemon(*sorted(folder.iterdir()))
    yield feedrail.open(daemon.url)
    daemon.kill()


def test_all_files_are_shards(files: feedrail.Source, folder: Path) -> None:
    assert [shard.name for shard in files.shards] == sorted(os.listdir(folder))
    assert files.nbytes == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("buffering", [None, 1, 4096])
def test_a_file_is_what_the_local_one_is(
    files: feedrail.Source, folder: Path, buffering: int | None
) -> None:
    random = np.random.default_rng(buffering)
    remote: io.RawIOBase | io.BufferedReader = files.open("raw.bin")
    if buffering:
        remote = io.BufferedReader(remote, buffering)
    with remote, open(folder / "raw.bin", "rb", buffering=0) as local:
        for _ in range(200):
            count, to = int(random.integers(0, 9000)), int(random.integers(0, 310_000))
            match random.integers(0, 6):
                case 0:
                    assert remote.seek(to) == local.seek(to)
                case 1:
                    assert remote.seek(-to % 300_000, os.SEEK_END) == local.seek(
                        -to % 300_000, os.SEEK_END
                    )
                case 2:
                    assert remote.seek(7, os.SEEK_CUR) == local.seek(7, os.SEEK_CUR)
                case 3:
                    mine, theirs = bytearray(count), bytearray(count)
                    assert remote.readinto(mine) == local.readinto(theirs)
                    assert mine == theirs
                case _:
                    assert remote.read(count) == local.read(count)
            assert remote.tell() == local.tell()
        remote.seek(299_000), local.seek(299_000)
        assert remote.read() == local.read()
        assert remote.read() == b""


def test_what_a_file_says_of_itself(files: feedrail.Source) -> None:
    file = files.open("raw.bin")
    assert (file.name, file.mode, file.size) == ("raw.bin", "rb", 300_001)
    assert file.readable() and file.seekable() and not file.writable()
    with pytest.raises(OSError):
        file.fileno()
    with pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    file.close()
    for use in (file.tell, file.read, lambda: file.seek(0), lambda: file.pread(1, 0)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_positions_that_do_not_exist(files: feedrail.Source) -> None:
    file = files.open("raw.bin")
    for seek in ((-1, 0), (-300_002, 2), (0, 5)):
        with pytest.raises(ValueError, match=r"negative|whence"):
            file.seek(*seek)
    with pytest.raises(ValueError, match="negative"):
        file.pread(1, -1)
    assert file.tell() == 0
    with pytest.raises(ValueError, match="rb"):
        files.open("raw.bin", "wb")
    with pytest.raises(FileNotFoundError):
        files.open("other")
    with pytest.raises(FileNotFoundError):
        files.open(-1)


def test_reading_at_an_offset(files: feedrail.Source, folder: Path) -> None:
    file, data = files.open("raw.bin"), (folder / "raw.bin").read_bytes()
    assert file.pread(1000, 5) == data[5:1005]
    assert file.pread(1000, 300_000) == data[300_000:]
    assert file.pread(1000, 400_000) == file.pread(0, 0) == file.pread(-5, 0) == b""
    array = np.zeros((10, 10), "<u4")
    assert file.pread_into(array, 17) == 400
    assert array.tobytes() == data[17:417]
    assert file.readinto(bytearray()) == 0
    with pytest.raises(BufferError):
        file.readinto(b"read-only")


def test_numpy_loads(files: feedrail.Source, folder: Path) -> None:
    for wrap in (lambda file: file, io.BufferedReader):
        with wrap(files.open("matrix.npy")) as file:
            assert np.array_equal(np.load(file), np.load(folder / "matrix.npy"))
        for name in ("arrays.npz", "compressed.npz"):
            with np.load(wrap(files.open(name))) as remote, np.load(folder / name) as local:
                assert remote.files == local.files
                assert all(np.array_equal(remote[key], local[key]) for key in local.files)


@pytest.mark.parametrize("mode", ["r:", "r|"])
def test_tarfile_reads(files: feedrail.Source, folder: Path, mode: str) -> None:
    with (
        tarfile.open(folder / "samples.tar") as local,
        tarfile.open(fileobj=files.open("samples.tar"), mode=mode) as remote,
    ):
        names = []
        for member in remote:
            names.append(member.name)
            assert remote.extractfile(member).read() == local.extractfile(member.name).read()
        assert names == local.getnames()


def test_zipfile_reads(files: feedrail.Source, folder: Path) -> None:
    with zipfile.ZipFile(files.open("arrays.npz")) as remote:
        assert remote.testzip() is None
        assert remote.namelist() == zipfile.ZipFile(folder / "arrays.npz").namelist()


def test_text_is_read(files: feedrail.Source, folder: Path) -> None:
    with io.TextIOWrapper(io.BufferedReader(files.open("lines.txt"))) as remote:
        assert remote.readlines() == (folder / "lines.txt").read_text().splitlines(keepends=True)
