"""Checkpoint stores: saves that are whole or not there, and what is refused."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import checkpoint_jobs
import numpy as np
import pytest
from conftest import Daemon, Serve
from test_processes import in_child

import feedrail

MIB = 1 << 20
#: Seconds after which a target that was killed is given up.
LOSS = 3.0

Volume = Callable[..., Daemon]


@pytest.fixture
def volume(serve: Serve, tmp_path: Path) -> Volume:
    """Serves files that become volumes."""
    count = 0

    def start(nbytes: int = 64 * MIB, *options: str) -> Daemon:
        nonlocal count
        count += 1
        image = tmp_path / f"volume{count}.img"
        with image.open("wb") as file:
            file.truncate(nbytes)
        return serve("--writable", *options, image)

    return start


@pytest.fixture
def daemon(volume: Volume) -> Daemon:
    """A daemon with one formatted volume."""
    running = volume()
    feedrail.CheckpointStore.format(running.url)
    return running


def image_of(daemon: Daemon) -> Path:
    return Path(daemon.arguments[-1])


def random_bytes(seed: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("provider", ["soft", "shm"])
def test_what_is_saved_is_read(daemon: Daemon, provider: feedrail._source.Provider) -> None:
    weights, odd = random_bytes(1, 3 * MIB + 517), np.arange(7, dtype=np.float32)
    with feedrail.CheckpointStore(daemon.url, provider=provider) as store:
        with store.begin(1200, metadata={"loss": 0.25, "tags": ["a"]}) as save:
            save.write("rank0/weights", weights)
            save.write("rank0/odd", odd)
            save.write("config", b'{"lr": 1}')
            save.write("nothing", b"")
            assert store.list() == [] and not save.has_ended
            assert "step-1200" in repr(save) and daemon.url in repr(store)
            save.commit()
        assert save.has_ended
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(store.latest())

    with feedrail.CheckpointStore(daemon.url, mode="r", provider=provider) as store:
        latest = store.latest()
        assert (latest.name, latest.step, latest.metadata) == (
            "step-1200",
            1200,
            {"loss": 0.25, "tags": ["a"]},
        )
        assert latest.created.tzinfo is not None and latest.created.year >= 2024
        assert list(latest.entries.items()) == [
            ("rank0/weights", weights.nbytes),
            ("rank0/odd", 28),
            ("config", 9),
            ("nothing", 0),
        ]
        assert bytes(latest.read("config")) == b'{"lr": 1}' and bytes(latest.read("nothing")) == b""
        part = latest.read("rank0/weights", MIB - 5, 2 * MIB)
        assert bytes(part) == weights[MIB - 5 : 3 * MIB - 5].tobytes()
        again = {"rank0/weights": np.zeros_like(weights), "rank0/odd": np.zeros(7, np.float32)}
        latest.read_into(again)
        assert np.array_equal(again["rank0/weights"], weights)
        assert np.array_equal(again["rank0/odd"], odd)
        assert store.verify() and store.verify("step-1200").nbytes == latest.nbytes
        assert store["step-1200"].nbytes == latest.nbytes and "step-1200" in store
        with pytest.raises(feedrail.AccessDenied):
            store.begin(1)


def test_saves_and_reads_are_counted(daemon: Daemon) -> None:
    data = random_bytes(3, MIB + 5)
    with feedrail.CheckpointStore(daemon.url) as store:
        assert store.stats().saves == 0 and store.stats().saved_bytes_per_second == 0
        with store.begin(1) as save:
            save.write("a", data)
            save.commit()
        store.begin(2).abort()
        store.latest().read("a", 5, 1000)
        store.latest().read("a")
        stats = store.stats()
        assert (stats.saves, stats.saved_nbytes) == (1, MIB + 5)
        (only,) = stats.replicas
        assert (only.url, only.reads, only.read_nbytes) == (daemon.url, 2, MIB + 1005)
        assert stats.save_seconds > 0 and stats.read_seconds > 0 and stats.failed_reads == 0
        assert stats.saved_bytes_per_second > 0 and stats.read_bytes_per_second > 0
        store.refresh()
        assert store.stats().saves == 0


def test_arguments_that_make_no_sense(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="URL"):
        feedrail.CheckpointStore([])
    with pytest.raises(ValueError, match=r".+"):
        feedrail.CheckpointStore("http://127.0.0.1/x")
    with pytest.raises(ValueError, match="mode"):
        feedrail.CheckpointStore(daemon.url, mode="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="quorum"):
        feedrail.CheckpointStore(daemon.url, write_quorum=2)
    with pytest.raises(ValueError, match="power of two"):
        feedrail.CheckpointStore.format(daemon.url, unit_bytes=5000)
    with feedrail.CheckpointStore(daemon.url) as store:
        for name in ("a/b", "..", "a\nb", ""):
            with pytest.raises(ValueError, match="not allowed"):
                store.begin(1, name=name)
        with pytest.raises(ValueError, match="metadata"):
            store.begin(1, metadata="x" * MIB)
        with store.begin(1) as save:
            for name in ("/a", "a/../b", "a\tb"):
                with pytest.raises(ValueError, match="not allowed"):
                    save.write(name, b"x")
            for data in (np.zeros((4, 4))[:, ::2], np.array([None]), object()):
                with pytest.raises((BufferError, TypeError)):
                    save.write("x", data)
            save.write("x", b"12345")
            with pytest.raises(feedrail.CheckpointExists):
                save.write("x", b"1")
            with store.begin(1, name="beside") as other:
                other.write("x", b"1")
            save.commit()
        one = store["step-1"]
        with pytest.raises(feedrail.NotFound):
            one.read("y")
        with pytest.raises(feedrail.RangeError):
            one.read("x", 3, 3)
        with pytest.raises(ValueError, match="memory has 4"):
            one.read_into({"x": bytearray(4)})
        with pytest.raises(BufferError):
            one.read("x", into=b"12345")
        with pytest.raises(feedrail.NotFound):
            store["step-2"]
        with pytest.raises(feedrail.NotFound):
            store.delete("step-2")
        with pytest.raises(feedrail.CheckpointExists):
            store.begin(1)
    with pytest.raises(ValueError, match="closed"):
        store.list()


def test_a_block_that_raises_leaves_nothing(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url) as store:
        free = store.summary["free_bytes"]
        with pytest.raises(RuntimeError, match="training failed"), store.begin(1) as save:
            save.write("x", random_bytes(1, 5 * MIB))
            raise RuntimeError("training failed")
        with store.begin(2) as save:
            save.write("x", b"never committed")
        assert store.list() == [] and store.summary["free_bytes"] == free
        for call in (save.commit, lambda: save.write("y", b"")):
            with pytest.raises(feedrail.SaveFailed):
                call()
        save = store.begin(3)
        with pytest.raises(feedrail.SaveInProgress):
            store.close()
        save.abort()


def test_files_are_there_when_they_are_committed(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url, staging_bytes=2 * MIB) as store:
        volume = store._volume
        contents = [random_bytes(seed, 3 * MIB + 5).tobytes() for seed in range(3)]
        files = [volume.begin_file("step-1200", f"dir/{number}") for number in range(3)]
        for at in range(0, 3 * MIB + 5, 700_001):
            for file, data in zip(files, contents, strict=True):
                file.append(memoryview(data)[at : at + 700_001])
        assert files[0].length == 3 * MIB + 5 and store.list() == []
        with pytest.raises(feedrail.SaveInProgress):
            store.close()
        files[2].abort()
        files[2].abort()
        for file in files[:2]:
            file.commit()
        for call in (files[0].commit, lambda: files[2].append(b"x")):
            with pytest.raises(feedrail.SaveFailed):
                call()
        one = store["step-1200"]
        assert one.step == 1200 and list(one.entries) == ["dir/0", "dir/1"]
        assert bytes(one.read("dir/1")) == contents[1]

        volume.rename("step-1200", "dir/", "step-1300", "other/", False)
        volume.rename("step-1300", "other/0", "step-1300", "other/1", True)
        assert [one.name for one in store.list()] == ["step-1300"]
        assert bytes(store["step-1300"].read("other/1")) == contents[0]
        with pytest.raises(feedrail.CheckpointExists):
            volume.begin_file("step-1300", "other/1/below").commit()
        for entry, to_entry in (("none", "x"), ("none/", "x/")):
            with pytest.raises(feedrail.NotFound):
                volume.rename("step-1300", entry, "step-1300", to_entry, True)
        with pytest.raises(ValueError, match="entry"):
            volume.rename("step-1300", "other/1", "step-1300", None, True)
        with pytest.raises(ValueError, match="not allowed"):
            volume.begin_file("step-1300", "../x")
        volume.remove("step-1300", "other/1")
        assert store.list() == []


def test_old_checkpoints_are_deleted(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url) as store:
        for step in range(8):
            with store.begin(step, keep=3) as save:
                save.write("x", random_bytes(step, 9 * MIB))
                save.commit()
        assert [one.name for one in store.list()] == ["step-5", "step-6", "step-7"]
        for one in store:
            assert bytes(one.read("x")) == random_bytes(one.step, 9 * MIB).tobytes()
        store.delete("step-6")
        assert [one.step for one in store.list()] == [5, 7]
        store.keep(1)
        assert [one.step for one in store.list()] == [7]


def test_a_full_volume(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url) as store:
        with store.begin(1) as save:
            save.write("x", random_bytes(1, MIB))
            save.commit()
        with pytest.raises(feedrail.CapacityExceeded) as raised, store.begin(2) as save:
            save.write("x", np.zeros(100 * MIB, np.uint8))
        assert raised.value.needed_bytes == 100 * MIB and raised.value.errno == 28
        assert raised.value.free_bytes is not None and raised.value.free_bytes < 64 * MIB
        assert bytes(store["step-1"].read("x")) == random_bytes(1, MIB).tobytes()


def test_namespaces_that_are_no_volumes(volume: Volume, serve: Serve, tmp_path: Path) -> None:
    running = volume()
    with pytest.raises(feedrail.NotAVolume):
        feedrail.CheckpointStore(running.url)
    feedrail.CheckpointStore.format(running.url)
    with pytest.raises(feedrail.VolumeOccupied):
        feedrail.CheckpointStore.format(running.url)
    feedrail.CheckpointStore.format(running.url, force=True)
    with pytest.raises(feedrail.NotAVolume):
        feedrail.CheckpointStore.format(volume(MIB).url)
    protected = tmp_path / "protected.img"
    protected.write_bytes(bytes(8 * MIB))
    with pytest.raises(feedrail.AccessDenied):
        feedrail.CheckpointStore.format(serve(protected).url)


def test_a_second_writer_is_refused(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url) as store:
        with pytest.raises(feedrail.Leased) as raised:
            feedrail.CheckpointStore(daemon.url)
        error = raised.value
        assert error.retryable and error.host and error.rest is not None and 0 < error.rest <= 91
        with store.begin(1) as save:
            save.write("x", b"1")
            save.commit()
        with feedrail.CheckpointStore(daemon.url, mode="r") as reader:
            assert [one.step for one in reader.list()] == [1]
            store.delete("step-1")
            reader.refresh()
            assert len(reader) == 0
    feedrail.CheckpointStore(daemon.url).close()


def test_a_writer_that_is_killed_leaves_the_old_checkpoint(daemon: Daemon) -> None:
    old = random_bytes(1, 4 * MIB + 3)
    with feedrail.CheckpointStore(daemon.url) as store, store.begin(1) as save:
        save.write("x", old)
        save.commit()
    job = [sys.executable, checkpoint_jobs.__file__, daemon.url]
    with subprocess.Popen(job, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        writer.kill()
    with feedrail.CheckpointStore(daemon.url, mode="r") as store:
        assert [one.name for one in store.list()] == ["step-1"]
        assert bytes(store.latest().read("x")) == old.tobytes() and store.verify()
    with pytest.raises(feedrail.Leased):
        feedrail.CheckpointStore(daemon.url)


def test_a_target_that_is_killed_keeps_what_was_committed(daemon: Daemon) -> None:
    store = feedrail.CheckpointStore(daemon.url, loss_timeout=LOSS)
    with store.begin(1) as save:
        save.write("x", random_bytes(1, 2 * MIB))
        save.commit()
    with store.begin(2) as save:
        save.write("x", random_bytes(2, 2 * MIB))
        daemon.kill()
        with pytest.raises(feedrail.FeedrailError):
            save.commit()
    with pytest.raises(feedrail.FeedrailError):
        store.latest().read("x")
    daemon.start()
    with feedrail.CheckpointStore(daemon.url, mode="r") as reader:
        steps = [one.step for one in reader.list()]
        assert steps in ([1], [1, 2])
        for one in reader:
            assert bytes(one.read("x")) == random_bytes(one.step, 2 * MIB).tobytes()


def test_a_lease_that_cannot_be_given_back_is_a_warning(daemon: Daemon) -> None:
    store = feedrail.CheckpointStore(daemon.url, lease=2.0, loss_timeout=1.0)
    with store.begin(1) as save:
        save.write("x", random_bytes(1, MIB))
        save.commit()
    daemon.kill()
    with pytest.warns(RuntimeWarning, match="the lease ends by its time"):
        store.close()
    store.close()
    daemon.start()
    with feedrail.CheckpointStore(daemon.url, wait=60.0) as store:
        assert [one.step for one in store.list()] == [1]


def test_damaged_bytes_are_found(daemon: Daemon) -> None:
    good, bad = random_bytes(1, 3 * MIB), random_bytes(2, 3 * MIB)
    with feedrail.CheckpointStore(daemon.url) as store:
        with store.begin(1) as save:
            save.write("good", good)
            save.write("bad", bad)
            save.commit()
        image = image_of(daemon)
        at = image.read_bytes().index(bad[MIB : MIB + 64].tobytes())
        with image.open("r+b") as file:
            file.seek(at + 100)
            byte = file.read(1)[0]
            file.seek(at + 100)
            file.write(bytes([byte ^ 4]))
        with pytest.raises(feedrail.Damaged) as raised:
            store["step-1"].read("bad")
        error = raised.value
        assert isinstance(error, feedrail.ChecksumError)
        assert (error.checkpoint, error.entry, error.offset) == ("step-1", "bad", MIB)
        assert store.stats().failed_reads == 1
        assert bytes(store["step-1"].read("bad", 0, MIB)) == bad[:MIB].tobytes()
        assert bytes(store["step-1"].read("good")) == good.tobytes()
        report = store.verify()
        assert not report and [unit.entry for unit in report.damaged] == ["bad"]
        assert report.damaged[0].namespace_offset == at and report.damaged[0].url


def test_a_signal_ends_a_write(daemon: Daemon) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with feedrail.CheckpointStore(daemon.url) as store:
            data = random_bytes(1, 8 * MIB)
            save = store.begin(0)
            save.abort()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                while True:
                    with store.begin(1) as save:
                        for number in range(5):
                            save.write(f"{number}", data)
            # The signal may have come in the abort.
            save.abort()
            assert store.list() == []
            with store.begin(2) as save:
                save.write("x", data)
                save.commit()
            assert bytes(store.latest().read("x")) == data.tobytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_reads_and_leaves_commits_whole(daemon: Daemon) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    data = random_bytes(1, 16 * MIB)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with feedrail.CheckpointStore(daemon.url) as store:
            with store.begin(0) as save:
                save.write("x", data)
                save.commit()
            for call in (lambda: store["step-0"].read("x"), store.verify):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                with pytest.raises(KeyboardInterrupt):
                    while True:
                        call()
                assert bytes(store["step-0"].read("x")) == data.tobytes()
            step = done = 0
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                while True:
                    step += 1
                    with store.begin(step, keep=2) as save:
                        save.write("x", step.to_bytes(8, "little"))
                        save.commit()
                    done = step
            assert store.latest().step in (done, step)
            assert bytes(store.latest().read("x"))[:1] != b"" and store.verify()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_read_while_one_saves(daemon: Daemon) -> None:
    data = random_bytes(1, 4 * MIB)
    with feedrail.CheckpointStore(daemon.url, staging_bytes=2 * MIB) as store:
        with store.begin(0) as save:
            save.write("x", data)
            save.commit()
        failures: list[BaseException] = []
        over = threading.Event()

        def read() -> None:
            try:
                while not over.is_set():
                    assert bytes(store["step-0"].read("x")) == data.tobytes()
            except BaseException as error:
                failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for step in range(1, 4):
            with store.begin(step) as save:
                save.write("x", random_bytes(step, 8 * MIB))
                save.commit()
        over.set()
        for reader in readers:
            reader.join()
        assert not failures and len(store) == 4


def test_other_threads_run_while_a_target_hangs(daemon: Daemon) -> None:
    """If a call had the GIL, nobody could wake the target, and it would fail."""

    def while_it_hangs(call: Callable[[], object]) -> object:
        results: list[object] = []
        begun = threading.Event()

        def run() -> None:
            begun.set()
            try:
                results.append(call())
            except BaseException as error:
                results.append(error)

        daemon.stop()
        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        for _ in range(100):
            time.sleep(0.001)
        daemon.resume()
        thread.join()
        assert not isinstance(results[0], BaseException), results[0]
        return results[0]

    data = random_bytes(1, 8 * MIB)
    store = while_it_hangs(lambda: feedrail.CheckpointStore(daemon.url, staging_bytes=2 * MIB))
    assert isinstance(store, feedrail.CheckpointStore)
    save = store.begin(1)
    while_it_hangs(lambda: save.write("x", data))
    while_it_hangs(save.commit)
    read = while_it_hangs(lambda: bytes(store["step-1"].read("x")))
    assert read == data.tobytes() and while_it_hangs(store.verify)
    while_it_hangs(store.refresh)
    while_it_hangs(lambda: store.delete("step-1"))
    while_it_hangs(store.close)


def test_children_use_nothing_of_the_parent(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url) as store:
        with store.begin(1) as save:
            save.write("x", b"123")
            save.commit()
        one, save = store["step-1"], store.begin(2)

        def use_them() -> None:
            nonlocal store, save
            for use in (
                store.list,
                lambda: one.read("x"),
                lambda: save.write("y", b""),
                save.commit,
                save.abort,
                store.close,
                lambda: store.delete("step-1"),
            ):
                with pytest.raises(feedrail.ForkedHandleError):
                    use()
            # One of its own reads.
            with feedrail.CheckpointStore(daemon.url, mode="r") as own:
                assert bytes(own["step-1"].read("x")) == b"123"
            del store, save

        in_child(use_them)
        save.write("y", b"4")
        save.commit()
        assert [each.step for each in store.list()] == [1, 2]


def test_a_lease_is_given_back_at_exit(daemon: Daemon) -> None:
    program = f"import feedrail; store = feedrail.CheckpointStore({daemon.url!r}); save = store.begin(1)"
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))
    # A save that was not ended keeps no lease.
    feedrail.CheckpointStore(daemon.url).close()


def test_a_replica_that_was_killed_is_repaired(volume: Volume) -> None:
    daemons = [volume() for _ in range(3)]
    urls = [daemon.url for daemon in daemons]
    feedrail.CheckpointStore.format(urls)
    store = feedrail.CheckpointStore(urls, lease=2.0, loss_timeout=LOSS)
    with store.begin(1) as save:
        save.write("x", random_bytes(1, MIB))
        save.commit()
    with store.begin(2) as save:
        save.write("x", random_bytes(2, 3 * MIB))
        daemons[1].kill()
        save.write("y", random_bytes(3, 3 * MIB))
        save.commit()
    states = [replica.state for replica in store.replicas]
    assert states == ["current", "away", "current"] and store.replicas[1].error is not None
    store.close()

    daemons[1].start()
    # It alone is never the latest.
    with pytest.raises(feedrail.NoQuorum):
        feedrail.CheckpointStore([urls[1], *missing(urls)], mode="r", loss_timeout=1.0)
    with feedrail.CheckpointStore(urls, lease=2.0, wait=120.0, loss_timeout=LOSS) as store:
        assert [replica.state for replica in store.replicas] == ["current", "stale", "current"]
        (report,) = store.repair()
        assert (report.url, report.copied, report.deleted) == (urls[1], ("step-2",), ())
        assert [replica.state for replica in store.replicas] == ["current"] * 3
        assert store.verify()
    for gone in (daemons[0], daemons[2]):
        gone.kill()
        with feedrail.CheckpointStore(
            urls, mode="r", write_quorum=3, loss_timeout=1.0
        ) as store:
            assert bytes(store["step-2"].read("y")) == random_bytes(3, 3 * MIB).tobytes()


def test_damaged_units_are_rewritten(volume: Volume) -> None:
    daemons = [volume() for _ in range(3)]
    urls = [daemon.url for daemon in daemons]
    feedrail.CheckpointStore.format(urls)
    data = random_bytes(1, 3 * MIB + 5)
    with feedrail.CheckpointStore(urls) as store:
        with store.begin(1) as save:
            save.write("x", data)
            save.commit()
        damage(daemons[1], data[MIB : MIB + 64].tobytes())
        (unit,) = store.verify().damaged
        assert (unit.url, unit.entry, unit.offset) == (urls[1], "x", MIB)
        assert store.repair(missed_only=True) == ()
        (report,) = store.repair()
        assert (report.url, report.rewritten, report.damaged) == (urls[1], 1, ())
        assert store.verify() and store.repair() == ()
        for daemon in daemons:
            damage(daemon, data[:64].tobytes())
        reports = store.repair()
        assert [len(report.damaged) for report in reports] == [1, 1, 1]


def damage(daemon: Daemon, data: bytes) -> None:
    """Flips a bit of bytes that are in the image of a volume."""
    image = image_of(daemon)
    place = image.read_bytes().index(data)
    with image.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[0] ^ 1]))


def test_a_lease_is_kept_between_saves(daemon: Daemon) -> None:
    with feedrail.CheckpointStore(daemon.url, lease=2.0) as store:
        first = store.summary["generation"]
        while store.summary["generation"] == first:
            store.renew()
            time.sleep(0.05)
    with (
        feedrail.CheckpointStore(daemon.url, mode="r") as store,
        pytest.raises(feedrail.AccessDenied),
    ):
        store.renew()


def missing(urls: list[str]) -> list[str]:
    """URLs of replicas where nothing listens."""
    return [url.replace(":4420", ":4421") for url in (urls[0], urls[2])]
