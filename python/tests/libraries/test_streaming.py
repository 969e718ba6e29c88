"""MosaicML's streaming downloads from targets: only the remote path differs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Served

streaming = pytest.importorskip("streaming")

import feedrail.streaming  # noqa: E402

SAMPLES = 2000


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder, random = tmp_path / "remote", np.random.default_rng(19)
    columns = {"id": "int", "data": "bytes"}
    with streaming.MDSWriter(
        out=str(folder / "train"), columns=columns, size_limit=1 << 20
    ) as writer:
        for number in range(SAMPLES):
            writer.write({"id": number, "data": random.bytes(int(random.integers(0, 3000)))})
    return folder


@pytest.fixture
def served(shards: Path, tmp_path: Path) -> Iterator[Served]:
    running = Served(shards, tmp_path)
    yield running
    running.daemon.kill()


def rows_of(remote: str, local: Path, **options: object) -> list[tuple[int, bytes]]:
    dataset = streaming.StreamingDataset(
        remote=remote, local=str(local), batch_size=50, **options
    )
    return [(row["id"], row["data"]) for row in dataset]


def test_streaming_dataset(shards: Path, served: Served, tmp_path: Path) -> None:
    feedrail.streaming.register()
    remote = rows_of(served.url, tmp_path / "a", split="train", shuffle=False)
    nested = rows_of(f"{served.url}/train", tmp_path / "b", shuffle=True, shuffle_seed=4)
    local = rows_of(str(shards), tmp_path / "c", split="train", shuffle=False)
    assert len(local) == SAMPLES and remote == local
    assert sorted(nested) == local
    copies = sorted(path.name for path in (tmp_path / "a" / "train").glob("*.mds"))
    assert len(copies) > 2
    for name in copies:
        copy = tmp_path / "a" / "train" / name
        assert copy.read_bytes() == (shards / "train" / name).read_bytes()


def test_workers_of_a_data_loader(shards: Path, served: Served, tmp_path: Path) -> None:
    """In a process of its own: streaming keeps shared memory and barriers until exit."""
    script = f"""
        import streaming, torch.utils.data, feedrail.streaming
        feedrail.streaming.register()
        dataset = streaming.StreamingDataset(
            remote={served.url!r}, split="train", local={str(tmp_path / "cache")!r}, batch_size=20
        )
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=20, num_workers=2, collate_fn=list, timeout=120
        )
        local = streaming.StreamingDataset(
            remote={str(shards)!r}, split="train", local={str(tmp_path / "copy")!r}, batch_size=20
        )
        read = {{row["id"]: row["data"] for batch in loader for row in batch}}
        assert read == {{row["id"]: row["data"] for row in local}} and len(read) == {SAMPLES}
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, timeout=250, env=environment)


def test_what_is_missing(served: Served, tmp_path: Path) -> None:
    downloader = feedrail.streaming.NvmfDownloader()
    for remote in (f"{served.url}/train/none.mds", served.url):
        with pytest.raises(FileNotFoundError):
            downloader.download(remote, str(tmp_path / "none"))
    with pytest.raises(ValueError, match="s3://bucket/key"):
        downloader.download("s3://bucket/key", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
