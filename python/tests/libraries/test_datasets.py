"""datasets of Hugging Face reads through fsspec: only the URL differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Served

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

ROWS = 3000


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The same rows as two files of Parquet, and as an Arrow stream."""
    folder = tmp_path / "tables"
    folder.mkdir()
    random = np.random.default_rng(11)
    rows = [random.bytes(int(size)) for size in random.integers(0, 2000, ROWS)]
    table = pyarrow.table({"id": np.arange(ROWS), "data": rows})
    for number, first in enumerate(range(0, ROWS, 2000)):
        parquet.write_table(table[first : first + 2000], folder / f"{number}.parquet", row_group_size=500)
    with pyarrow.OSFile(str(folder / "all.arrow"), "wb") as file:
        with pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    served = Served(folder)
    yield served
    served.daemon.kill()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("kind", "pattern"), [("parquet", "*.parquet"), ("arrow", "all.arrow")])
def test_load_dataset(
    tables: Served, tmp_path: Path, kind: str, pattern: str, *, streaming: bool
) -> None:
    def rows_of(folder: str, cache: str) -> list[dict[str, Any]]:
        loaded = datasets.load_dataset(
            kind,
            data_files=f"{folder}/{pattern}",
            split="train",
            streaming=streaming,
            cache_dir=str(tmp_path / cache),
        )
        return list(loaded)

    remote, local = rows_of(tables.url, "remote"), rows_of(str(tables.folder), "local")
    assert len(remote) == ROWS and remote == local


def test_options_reach_the_file_system(tables: Served, tmp_path: Path) -> None:
    """An address that is not this machine's is connected from, and that fails."""

    def load(local_address: str) -> Any:
        return datasets.load_dataset(
            "parquet",
            data_files=f"{tables.url}/0.parquet",
            split="train",
            cache_dir=str(tmp_path / local_address),
            # Shared memory has no address to connect from.
            storage_options={"provider": "soft", "local_address": local_address},
        )

    assert len(load("127.0.0.1")) == 2000
    with pytest.raises(OSError, match="192.0.2.77"):
        load("192.0.2.77")
