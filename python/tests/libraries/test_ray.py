"""Ray Data reads with two workers: only the URL and the file system differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Serve

ray = pytest.importorskip("ray")
pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

import feedrail.ray  # noqa: E402

pytestmark = pytest.mark.ray
FILES, ROWS = 8, 4000


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    # Otherwise it leaves a token in the home folder.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=256 << 20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, random = tmp_path_factory.mktemp("ray"), np.random.default_rng(13)
    paths = [folder / f"{number}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        data = [random.bytes(300) for _ in range(ROWS)]
        parquet.write_table(
            pyarrow.table({"id": np.arange(ROWS) + number * ROWS, "data": data}), path
        )
    return paths


def rows_of(read: Any) -> Any:
    return pyarrow.concat_tables(
        pyarrow.table(part) for part in ray.get(read.to_arrow_refs())
    ).sort_by("id")


@pytest.mark.usefixtures("workers")
def test_workers_read_parquet(tables: list[Path], serve: Serve) -> None:
    url = serve(*tables).url
    local = ray.data.read_parquet([str(path) for path in tables], override_num_blocks=FILES)
    remote = ray.data.read_parquet(
        [f"{url}/{path.name}" for path in tables],
        filesystem=feedrail.ray.filesystem(),
        override_num_blocks=FILES,
    )

    # Here, so that it is sent by value: workers do not find this module.
    def with_process(batch: pyarrow.Table) -> pyarrow.Table:
        return batch.append_column("pid", pyarrow.array([os.getpid()] * len(batch)))

    pids = remote.map_batches(with_process, batch_format="pyarrow").unique("pid")
    assert pids and os.getpid() not in pids
    wanted = rows_of(local)
    assert len(wanted) == FILES * ROWS and rows_of(remote).equals(wanted)


@pytest.mark.usefixtures("workers")
def test_two_workers_read_at_once(tables: list[Path], serve: Serve) -> None:
    """Ray Data may give all blocks to one worker; actors are one worker each."""
    url, filesystem = serve(*tables).url, feedrail.ray.filesystem()

    class TableReader:
        def read(self, names: list[str]) -> tuple[int, pyarrow.Table]:
            read = [parquet.read_table(f"{url}/{name}", filesystem=filesystem) for name in names]
            return os.getpid(), pyarrow.concat_tables(read)

    readers = [ray.remote(TableReader).options(num_cpus=1).remote() for _ in range(2)]
    names = [path.name for path in tables]
    parts = [reader.read.remote(names[i::2]) for i, reader in enumerate(readers)]
    (one, first), (other, second) = ray.get(parts)
    assert len({one, other, os.getpid()}) == 3
    read = pyarrow.concat_tables([first, second]).sort_by("id")
    assert read.equals(pyarrow.concat_tables(parquet.read_table(path) for path in tables))
    for reader in readers:
        ray.kill(reader)


@pytest.mark.usefixtures("workers")
def test_whole_files(tables: list[Path], serve: Serve) -> None:
    url = serve(*tables).url
    read = ray.data.read_binary_files(
        [f"{url}/{path.name}" for path in tables],
        filesystem=feedrail.ray.filesystem(),
        include_paths=True,
    )
    found = {Path(row["path"]).name: row["bytes"] for row in read.take_all()}
    assert found == {path.name: path.read_bytes() for path in tables}
