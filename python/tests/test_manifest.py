"""Data sets on several targets: manifests, replicas, and what happens when targets go and change."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon, binary, loopback_address

import feedrail
from feedrail.index import Index, IndexShard

NQN = "nqn.2026-01.org.example:set"
DATASET = "2f1d6a52-6a0c-4d0e-8e53-6d7a2c9b1f40"
NAMES = [f"{number:03}.bin" for number in range(4)]
SHARD_BYTES = 300_000
SAMPLE_BYTES = 1_000
SAMPLES = len(NAMES) * (SHARD_BYTES // SAMPLE_BYTES)


class Copy:
    """A target with a copy of the data set."""

    def __init__(self, folder: Path, *, dataset: str = DATASET) -> None:
        self.folder, self.address = folder, loopback_address()
        self.dataset = dataset
        self.daemon: Daemon | None = None

    def start(self) -> None:
        configuration = self.folder.parent / f"{self.folder.name}.toml"
        configuration.write_text(
            f"""
            state_dir = "{self.folder.parent}/state-{self.folder.name}"
            [[port]]
            address = "{self.address}:4420"
            [[subsystem]]
            nqn = "{NQN}"
            dataset_id = "{self.dataset}"
            allow_any_host = true
            [[subsystem.directory]]
            path = "{self.folder}"
            """
        )
        self.daemon = Daemon("--config", configuration, address=self.address)

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()

    @property
    def url(self) -> str:
        return f"nvmf://{self.address}/{NQN}"


class DataSet:
    """Two targets with the same shards, an index and a manifest."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(11)
        self.content = [random.integers(0, 256, SHARD_BYTES, np.uint8) for _ in NAMES]
        self.folder = folder
        self.copies = [Copy(folder / name) for name in ("a", "b")]
        for copy in self.copies:
            copy.folder.mkdir()
            for name, content in zip(NAMES, self.content, strict=True):
                (copy.folder / name).write_bytes(content.tobytes())
        per_shard = SHARD_BYTES // SAMPLE_BYTES
        shard, sample = np.divmod(np.arange(SAMPLES), per_shard)
        records = Index.of(sample * SAMPLE_BYTES, SAMPLE_BYTES, shard=shard).records
        named = [IndexShard(name, SHARD_BYTES, per_shard) for name in NAMES]
        Index(records, shards=named).save(folder / "index.npy")
        self.manifest = folder / "manifest.json"

    def start(self) -> None:
        for copy in self.copies:
            copy.start()

    def write(self) -> Path:
        """Has `feedrail manifest` write the manifest."""
        urls = [copy.url for copy in self.copies]
        names = [f"--target={copy.folder.name}={copy.url}" for copy in self.copies]
        shards = [f"{url}/{name}" for url in urls for name in NAMES]
        # Copies of a file have different generations: their bytes are compared.
        command = [binary("feedrail"), "manifest", "--crc", "--name=set", f"--output={self.manifest}"]
        command += [f"--index={self.folder / 'index.npy'}", *names, *shards]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return self.manifest

    def edit(self, change: Callable[[dict], None]) -> feedrail.Manifest:
        """The manifest with a change, and the hash that it has then."""
        text = json.loads(self.manifest.read_text())
        change(text)
        text["hash"] = "blake3:" + "0" * 64
        try:
            return feedrail.Manifest(json.dumps(text), self.folder)
        except ValueError as error:
            # It says which one it should be.
            text["hash"] = str(error).split("but has ")[1].split(";")[0]
        return feedrail.Manifest(json.dumps(text), self.folder)

    def sample(self, number: int) -> np.ndarray:
        shard, sample = divmod(number, SHARD_BYTES // SAMPLE_BYTES)
        return self.content[shard][sample * SAMPLE_BYTES :][:SAMPLE_BYTES]

    def check(self, source: feedrail.Source, numbers: np.ndarray | None = None) -> None:
        """Reads samples, all if none are named, and compares their bytes."""
        numbers = np.arange(SAMPLES) if numbers is None else numbers
        index = Index.load(self.folder / "index.npy")
        out = np.zeros((len(numbers), SAMPLE_BYTES), np.uint8)
        source.read_many(index.plan(numbers), out)
        for number, row in zip(numbers, out, strict=True):
            assert np.array_equal(row, self.sample(int(number))), number


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataSet]:
    made = DataSet(tmp_path)
    made.start()
    yield made
    for copy in made.copies:
        if copy.daemon is not None:
            copy.kill()


def states(source: feedrail.Source, shard: int = 0) -> dict[str, str]:
    return {replica.target: replica.state for replica in source.shards[shard].replicas}


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, for long enough on any machine."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("replicas", ["spread", "first"])
def test_a_manifest_is_opened(data: DataSet, replicas: str) -> None:
    path = data.write()
    for manifest in (str(path), path, feedrail.Manifest.load(path)):
        with feedrail.open(manifest, replicas=replicas) as source:
            assert [(shard.name, shard.nbytes) for shard in source.shards] == [
                (name, SHARD_BYTES) for name in NAMES
            ]
            until(lambda source=source: source.stats().targets_away == ())
            for shard in source.shards:
                assert [it.target for it in shard.replicas] == ["a", "b"]
                assert all(it.state != "out" and it.generation is not None for it in shard.replicas)
            data.check(source)
            assert source.stats().ranges == SAMPLES
            assert source.manifest is not None and source.hash == source.manifest.content_hash


def test_a_manifest_has_its_parts(data: DataSet) -> None:
    manifest = feedrail.Manifest.load(data.write())
    assert (manifest.name, manifest.base) == ("set", str(data.folder))
    assert [(it.name, it.nqn) for it in manifest.targets] == [("a", NQN), ("b", NQN)]
    assert manifest.targets[0].url == f"nvmf://{data.copies[0].address}"
    shard = manifest.shards[1]
    assert (shard.name, shard.nbytes, shard.replicas) == (NAMES[1], SHARD_BYTES, ("a", "b"))
    assert shard.uuid is not None and len(shard.uuid) == 32 and shard.crc32c is not None
    assert manifest.index is not None and manifest.index.samples == SAMPLES
    assert pickle.loads(pickle.dumps(manifest)) == manifest and hash(manifest)
    assert "4 shards, 2 targets" in repr(manifest)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a manifest"),
        ("{}", "version"),
        ('{"version": 2}', "newer"),
        ("\x93NUMPY", "not a manifest"),
    ],
)
def test_what_is_no_manifest(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    for load in (feedrail.Manifest.load, feedrail.open):
        with pytest.raises(ValueError, match=said) as raised:
            load(path)
        assert str(path) in str(raised.value)


def test_no_such_manifest(tmp_path: Path) -> None:
    for path in (tmp_path / "manifest.json", str(tmp_path / "manifest.json")):
        with pytest.raises(FileNotFoundError):
            feedrail.open(path)
    with pytest.raises(FileNotFoundError, match="nvmf://"):
        feedrail.open("set")
    with pytest.raises(ValueError, match="'spread' or 'first'"):
        feedrail.open(tmp_path, replicas="all")


def test_a_manifest_is_a_namespace_beside_its_shards(data: DataSet) -> None:
    text = data.write().read_bytes()
    copy = data.copies[0]
    copy.kill()
    for name in ("manifest.json", "index.npy"):
        shutil.copy(data.folder / name, copy.folder / name)
    copy.start()
    url = f"{copy.url}/manifest.json"
    with feedrail.open(url) as namespace:
        assert bytes(namespace.rows(0, [0], len(text))) == text and namespace.manifest is None
    manifest = feedrail.Manifest.load(url)
    assert manifest.text.encode() == text and manifest.base == copy.url
    with feedrail.open(manifest) as source:
        data.check(source)
        assert len(source.index()) == SAMPLES
    with pytest.raises(ValueError, match="manifest.json"):
        feedrail.Manifest.load(copy.url)


def test_the_index_is_that_of_the_manifest(data: DataSet) -> None:
    path = data.write()
    with feedrail.open(path) as source:
        index = source.index()
        assert len(index) == SAMPLES
        plan = index.plan(np.array([0, SAMPLES - 1]))
        assert plan["shard"].tolist() == [0, len(NAMES) - 1]
        records = np.load(data.folder / "index.npy")
        records["length"][7] -= 1
        np.save(data.folder / "index.npy", records)
        with pytest.raises(feedrail.ChecksumError, match="index.npy"):
            source.index()
        (data.folder / "index.npy").unlink()
        with pytest.raises(FileNotFoundError):
            source.index()
    without = data.edit(lambda text: text.pop("index"))
    with feedrail.open(without) as source, pytest.raises(ValueError, match="no index"):
        source.index()
    with feedrail.open(data.copies[0].url) as source, pytest.raises(ValueError, match="no manifest"):
        source.index()


def test_a_target_that_is_down_joins_later(data: DataSet) -> None:
    path = data.write()
    data.copies[1].kill()
    with pytest.warns(feedrail.ReplicaWarning, match="target b .*joins when it is there"):
        source = feedrail.open(path)
    with source:
        assert states(source)["b"] == "away"
        assert "b" in source.stats().targets_away
        data.check(source)
        data.copies[1].start()

        def has_joined() -> bool:
            data.check(source, np.arange(10))
            return states(source)["b"] == "used"

        until(has_joined)
        data.copies[0].kill()
        data.check(source)


def test_without_any_target_of_a_shard_nothing_is_opened(data: DataSet) -> None:
    path = data.write()
    for copy in data.copies:
        copy.kill()
    with pytest.raises(feedrail.TargetLost, match=r"000.bin.* a: .*; b: ") as raised:
        feedrail.open(path)
    assert raised.value.retryable


def test_a_replica_with_other_bytes_is_not_read(data: DataSet) -> None:
    path = data.write()
    copy = data.copies[1]
    copy.kill()
    (copy.folder / NAMES[2]).write_bytes(bytes(SHARD_BYTES - 1))
    copy.start()
    with pytest.warns(feedrail.ReplicaWarning, match=rf"shard {NAMES[2]} .*target b.*299999 bytes"):
        source = feedrail.open(path)
    with source:
        assert states(source, 2)["b"] == "out"
        assert "out" not in states(source, 1).values()
        reason = source.shards[2].replicas[1].reason
        assert reason is not None and "300000 in the manifest" in reason
        data.check(source)


def test_a_missing_shard_and_another_identity_are_told_apart(data: DataSet) -> None:
    path = data.write()
    data.copies[1].kill()
    (data.copies[1].folder / NAMES[3]).unlink()
    data.copies[1].start()
    with pytest.warns(feedrail.ReplicaWarning, match="it is not there"):
        feedrail.open(path).close()
    data.copies[1].kill()
    data.copies[1].dataset = DATASET.replace("2f", "3f")
    data.copies[1].start()
    with pytest.warns(feedrail.ReplicaWarning, match="UUID") as told:
        source = feedrail.open(path)
    assert len(told) == len(NAMES)
    with source:
        assert all(states(source, shard)["b"] == "out" for shard in range(len(NAMES)))
        data.check(source)


def test_no_replica_with_the_right_bytes_is_a_changed_data_set(data: DataSet) -> None:
    path = data.write()
    for copy in data.copies:
        copy.kill()
        (copy.folder / NAMES[0]).write_bytes(b"short")
        copy.start()
    with pytest.raises(feedrail.DatasetChanged, match=r"000.bin.* a: .*5 bytes.* b: .*5 bytes"):
        feedrail.open(path)


def test_replicas_of_several_uuids_need_a_checksum(data: DataSet) -> None:
    data.copies[1].kill()
    data.copies[1].dataset = DATASET.replace("2f", "3f")
    data.copies[1].start()
    with_checksums = feedrail.Manifest.load(data.write())
    with warnings.catch_warnings(), feedrail.open(with_checksums) as source:
        warnings.simplefilter("error")
        data.check(source)

    def without_checksums(text: dict) -> None:
        for shard in text["shards"]:
            del shard["crc32c"]

    manifest = data.edit(without_checksums)
    with pytest.warns(feedrail.ReplicaWarning, match="--crc"):
        source = feedrail.open(manifest)
    with source:
        assert list(states(source).values()).count("out") == 1
        data.check(source)


def test_checksums_are_verified_when_asked(data: DataSet) -> None:
    data.copies[1].kill()
    same_size = bytes(SHARD_BYTES)
    path = data.copies[1].folder / NAMES[2]
    right = path.read_bytes()
    data.copies[1].start()
    manifest = feedrail.Manifest.load(data.write())
    data.copies[1].kill()
    path.write_bytes(same_size)
    data.copies[1].start()
    with feedrail.open(manifest) as source:
        until(lambda: source.stats().targets_away == ())
        with pytest.warns(feedrail.ReplicaWarning, match=rf"{NAMES[2]} .*target b.*CRC-32C") as told:
            source.verify()
        assert len(told) == 1, [str(one.message) for one in told]
        assert states(source, 2)["b"] == "out"
        data.check(source)
        source.verify(NAMES[1])
    path.write_bytes(right)
    data.copies[0].kill()
    with pytest.warns(feedrail.ReplicaWarning, match="target a"):
        source = feedrail.open(data.edit(lambda text: text["shards"][0].update(crc32c="00000000")))
    with source, pytest.warns(feedrail.ReplicaWarning, match="CRC-32C"):
        with pytest.raises(feedrail.ChecksumError) as raised:
            source.verify()
        assert raised.value.shard == 0
    with feedrail.open(data.copies[1].url) as source, pytest.raises(ValueError, match="no manifest"):
        source.verify()


class Epoch:
    """Reads every sample once, batch by batch, in an order of its own."""

    def __init__(self, data: DataSet, source: feedrail.Source, seed: int) -> None:
        self.data, self.source = data, source
        self.order = np.random.default_rng(seed).permutation(SAMPLES)
        self.index = source.index()
        self.seen: list[int] = []
        self.stalls: list[float] = []

    def read(self, batches: int | None = None, batch: int = 24) -> None:
        start = len(self.seen)
        end = len(self.order) if batches is None else min(start + batches * batch, len(self.order))
        for first in range(start, end, batch):
            numbers = self.order[first : min(first + batch, end)]
            out = np.zeros((len(numbers), SAMPLE_BYTES), np.uint8)
            begin = time.monotonic()
            self.source.read_many(self.index.plan(numbers), out)
            self.stalls.append(time.monotonic() - begin)
            for number, row in zip(numbers, out, strict=True):
                assert np.array_equal(row, self.data.sample(int(number)))
            self.seen += numbers.tolist()

    def check(self) -> None:
        assert sorted(self.seen) == list(range(SAMPLES))


@pytest.mark.filterwarnings("error::feedrail.ReplicaWarning")
@pytest.mark.parametrize("victim", [0, 1])
def test_an_epoch_survives_a_target_that_is_killed(
    data: DataSet, victim: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with feedrail.open(data.write()) as source:
        epoch = Epoch(data, source, victim)
        epoch.read(20)
        ticket = source.submit(epoch.index.plan(np.arange(SAMPLES)), bytearray(SAMPLES * SAMPLE_BYTES))
        data.copies[victim].kill()
        begin = time.monotonic()
        ticket.wait()
        in_flight = time.monotonic() - begin
        epoch.read()
        epoch.check()
        assert source.stats().connections_lost >= 1
        until(lambda: source.stats().targets_away == ("ab"[victim],))
        with capsys.disabled():
            print(f"\nkilled in flight: {in_flight:.3f} s; longest batch: {max(epoch.stalls):.3f} s")


@pytest.mark.filterwarnings("error::feedrail.ReplicaWarning")
def test_an_epoch_survives_a_target_that_hangs(
    data: DataSet, capsys: pytest.CaptureFixture[str]
) -> None:
    with feedrail.open(data.write()) as source:
        epoch = Epoch(data, source, 5)
        epoch.read(20)
        hung = data.copies[0].daemon
        assert hung is not None
        hung.stop()
        try:
            epoch.read()
        finally:
            hung.resume()
        epoch.check()
        with capsys.disabled():
            print(f"\nstopped: longest batch: {max(epoch.stalls):.3f} s")


@pytest.mark.filterwarnings("error::feedrail.ReplicaWarning")
def test_a_target_that_comes_back_is_used_again(data: DataSet) -> None:
    with feedrail.open(data.write()) as source:
        for first, second in ((0, 1), (1, 0)):
            epoch = Epoch(data, source, first)
            epoch.read(10)
            data.copies[first].kill()
            epoch.read(10)
            data.copies[first].start()
            until(lambda: source.stats().targets_away == ())
            # Only it is left: it must be used.
            data.copies[second].kill()
            epoch.read()
            epoch.check()
            data.copies[second].start()
            until(lambda: source.stats().targets_away == ())
        assert all("out" not in states(source, shard).values() for shard in range(len(NAMES)))


def test_a_target_that_comes_back_with_a_changed_file_is_taken_out(data: DataSet) -> None:
    with feedrail.open(data.write()) as source:
        epoch = Epoch(data, source, 3)
        epoch.read(10)
        changed = data.copies[0]
        changed.kill()
        (changed.folder / NAMES[1]).write_bytes(bytes(SHARD_BYTES))
        changed.start()
        until(lambda: source.stats().targets_away == ())
        with pytest.warns(feedrail.ReplicaWarning, match=rf"shard {NAMES[1]} .*target a .*replaced"):
            while states(source, 1)["a"] != "out":
                data.check(source, np.arange(SAMPLES // 4, SAMPLES // 2))
        assert "out" not in states(source, 0).values()
        replica = source.shards[1].replicas[0]
        assert replica.state == "out" and replica.reason is not None
        epoch.read()
        epoch.check()
        # What no other target has right is an error, never other bytes.
        data.copies[1].kill()
        with pytest.raises(feedrail.FeedrailError) as raised:
            data.check(source, np.arange(SAMPLES // 4, SAMPLES // 2))
        assert isinstance(raised.value, (feedrail.TargetLost, feedrail.DatasetChanged))


def _read_in_child(data: DataSet, source: feedrail.Source, results: object) -> None:
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            data.check(source)
        results.put((states(source, 1), [str(it.message) for it in told]))  # type: ignore[attr-defined]
    except BaseException as error:
        results.put(repr(error))  # type: ignore[attr-defined]
        raise


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_open_the_manifest_again(data: DataSet, method: str) -> None:
    context = multiprocessing.get_context(method)
    with feedrail.open(data.write()) as source:
        data.check(source)
        copies, data.copies = data.copies, []
        try:
            results = context.Queue()
            child = context.Process(target=_read_in_child, args=(data, source, results))
            child.start()
            found, told = results.get(timeout=60)
            assert "out" not in found.values() and told == []
            child.join()
            # The bytes have changed, which the manifest cannot tell: the parent knew the generation.
            copies[0].kill()
            (copies[0].folder / NAMES[1]).write_bytes(bytes(SHARD_BYTES))
            copies[0].start()
            child = context.Process(target=_read_in_child, args=(data, source, results))
            child.start()
            found, told = results.get(timeout=60)
            assert found["a"] == "out" and found["b"] != "out"
            assert len(told) == 1 and "when the data set was opened" in told[0]
            child.join()
        finally:
            data.copies = copies


def test_sources_of_manifests_can_be_pickled(data: DataSet) -> None:
    with feedrail.open(data.write()) as source:
        again = pickle.loads(pickle.dumps(source))
        assert again.shards == source.shards and again.hash == source.hash
        assert states(again).keys() == states(source).keys()
        os.unlink(data.manifest)
        with again:
            data.check(again)


def test_a_source_reads_again_after_its_target_was_lost(data: DataSet) -> None:
    copy = data.copies[0]
    with feedrail.open(copy.url, loss_timeout=0.3) as source:
        plan = feedrail.make_plan([0], [100])
        source.read_many(plan, bytearray(100))
        for _ in range(3):
            copy.kill()
            with pytest.raises(feedrail.TargetLost):
                source.read_many(plan, bytearray(100))
            copy.start()
            out = bytearray(100)

            def has_read(out: bytearray = out) -> bool:
                # On a busy machine the target may need longer than a read waits for it.
                with contextlib.suppress(feedrail.TargetLost):
                    source.read_many(plan, out)
                    return True
                return False

            until(has_read)
            assert bytes(out) == data.content[0][:100].tobytes()
