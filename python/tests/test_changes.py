"""Files that are replaced, grown, truncated and rewritten under those who read them.

Each file is a trial; `--trials 10000` makes more of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Served

import feedrail

KINDS = ["replaced", "grown", "truncated", "rewritten"]
FILE_BYTES, ROW_BYTES, ROW_AT = 9000, 3001, 2777
#: Files of one target: as many as it looks at in a second.
FILES_AT_ONCE = 1000
#: Status of a block that cannot be read (NVM Command Set, Media and Data Integrity Errors).
UNRECOVERED_READ = 0x281
#: Seconds in which a target has long seen a change.
LONG = 60


class Files:
    """Files, each changed in one of the ways, and the row that is read of each."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.kinds = [KINDS[number % len(KINDS)] for number in range(count)]
        self.paths = [folder / f"{number:04}.bin" for number in range(count)]
        #: What the row is before and after the change, shape `(count, ROW_BYTES)`.
        self.old = np.zeros((count, ROW_BYTES), np.uint8)
        self.new = np.zeros((count, ROW_BYTES), np.uint8)
        folder.mkdir()
        for number, path in enumerate(self.paths):
            data = self.random.bytes(FILE_BYTES)
            path.write_bytes(data)
            self.old[number] = np.frombuffer(data, np.uint8)[ROW_AT:][:ROW_BYTES]
        self.new[:] = self.old

    def change(self, number: int) -> None:
        path, kind = self.paths[number], self.kinds[number]
        if kind == "grown":
            with path.open("ab") as file:
                file.write(self.random.bytes(700))
        elif kind == "truncated":
            # Behind the row, so that it can be read until the change is seen.
            os.truncate(path, int(self.random.integers(ROW_AT + ROW_BYTES, FILE_BYTES)))
        else:
            data = self.random.bytes(FILE_BYTES)
            self.new[number] = np.frombuffer(data, np.uint8)[ROW_AT:][:ROW_BYTES]
            if kind == "rewritten":
                with path.open("r+b") as file:
                    file.write(data)
            else:
                other = path.with_suffix(".new")
                other.write_bytes(data)
                other.rename(path)


class Reader:
    """Reads one row of each file, again and again."""

    def __init__(self, source: feedrail.Source, files: Files) -> None:
        self.source, self.files = source, files
        shards = [source.shards.number(path.name) for path in files.paths]
        self.plan = feedrail.make_plan(ROW_AT, [ROW_BYTES] * len(shards), shard=shards)
        self.changed = np.zeros(len(shards), bool)
        #: Rows read so far, and those among them with bytes of after the change.
        self.rows_read, self.rows_new = 0, 0
        #: Rows of files that were cut, and failed before the change was seen.
        self.read_errors = 0

    def read(self) -> None:
        """Every row is right, or fails because its shard changed, and then always.

        A row of a file that was cut may fail to be read before.
        """
        files, rows = self.files, np.zeros((len(self.plan), ROW_BYTES), np.uint8)
        ticket = self.source.submit(self.plan, rows)
        with contextlib.suppress(feedrail.BatchError):
            ticket.wait(LONG)
        failures = ticket.exceptions()
        failed = np.zeros(len(rows), bool)
        for number, error in failures.items():
            failed[number] = isinstance(error, feedrail.DatasetChanged)
            # The target reads the block behind the end of a file before it sees that it was cut.
            if not failed[number]:
                assert error.status == UNRECOVERED_READ, (files.kinds[number], error)
                assert files.kinds[number] == "truncated", error
                rows[number] = files.old[number]
                self.read_errors += 1
        assert not (self.changed & ~failed).any(), "it was changed, and is as before"
        self.changed |= failed
        read = ~failed
        # A row of a file that is being written may have bytes of before and of after.
        right = (rows == files.old) | (rows == files.new)
        assert right[read].all(), [files.kinds[i] for i in np.flatnonzero(read & ~right.all(1))]
        self.rows_read += int(read.sum())
        self.rows_new += int((read & (rows != files.old).any(1)).sum())


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> list[int]:
    """Numbers of files, whose sum is the number of trials."""
    trials: int = pytestconfig.getoption("--trials")
    return [min(FILES_AT_ONCE, trials - first) for first in range(0, trials, FILES_AT_ONCE)]


@contextlib.contextmanager
def opened(tmp_path: Path, count: int, seed: int) -> Iterator[tuple[Served, Files, Reader]]:
    scratch = tmp_path / str(seed)
    scratch.mkdir()
    files = Files(scratch / "files", count, seed)
    served = Served(scratch / "files")
    try:
        source = feedrail.open(served.url)
        reader = Reader(source, files)
        reader.read()
        assert reader.rows_read == count
        yield served, files, reader
        source.close()
    finally:
        served.daemon.kill()
        shutil.rmtree(scratch)


def test_files_change_while_the_target_is_down(tmp_path: Path, rounds: list[int]) -> None:
    for seed, count in enumerate(rounds):
        with opened(tmp_path, count, seed) as (served, files, reader):
            served.daemon.kill()
            for number in range(count):
                files.change(number)
            served.daemon.start()
            for _ in range(2):
                reader.read()
                assert reader.changed.all()
            assert reader.rows_read == count, "none but those of before"
    print(f"{sum(rounds)} files changed while the target was down: DatasetChanged each")


def test_files_change_under_a_target(tmp_path: Path, rounds: list[int]) -> None:
    """A file with another in its place is served on, and the other is served after a restart.

    A file that is changed in place is what every local reader sees as well, until the target has
    seen the change.
    """
    total_read = total_new = total_errors = 0
    for seed, count in enumerate(rounds):
        with opened(tmp_path, count, seed) as (served, files, reader):
            replaced = np.array([kind == "replaced" for kind in files.kinds])
            changes = threading.Thread(target=lambda: [files.change(i) for i in range(count)])
            changes.start()
            begun = time.monotonic()
            while not (reader.changed | replaced).all():
                reader.read()
                assert time.monotonic() < begun + LONG, "changes are not seen"
            changes.join()
            reader.read()
            assert not reader.changed[replaced].any()
            served.daemon.kill()
            served.daemon.start()
            reader.read()
            assert reader.changed.all()
            total_read, total_new = total_read + reader.rows_read, total_new + reader.rows_new
            total_errors += reader.read_errors
    print(
        f"{sum(rounds)} files changed under a target: {total_read} rows read, {total_new} of them "
        f"with bytes of after the change, before it was seen; {total_errors} read errors before it"
    )
