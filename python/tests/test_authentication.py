"""Targets that require authentication: keys and key files, here and in other processes."""

from __future__ import annotations

import multiprocessing
import pickle
import urllib.request
from pathlib import Path

import pytest
from conftest import Daemon, Serve, loopback_address

import feedrail

#: Keys of 32 bytes, of the host and of the target, and one that neither has.
HOST_KEY = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
TARGET_KEY = "DHHC-1:03:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:"
OTHER_KEY = "DHHC-1:01:MjM0NTY3ODk6Ozw9Pj9AQUJDREVGR0hJSktMTU5PUFGALiae:"
HOST = "nqn.2014-08.org.nvmexpress:uuid:7f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b11"


def key_file(folder: Path, name: str, key: str) -> Path:
    path = folder / name
    path.write_text(key + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def closed(serve: Serve, tmp_path: Path) -> Daemon:
    """A daemon that requires the key of `HOST`, with a shard of 64 KiB and a namespace to write."""
    (tmp_path / "train.bin").write_bytes(bytes(range(256)) * 256)
    host = key_file(tmp_path, "host.key", HOST_KEY)
    target = key_file(tmp_path, "target.key", TARGET_KEY)
    address = loopback_address()
    entry = f'[[subsystem.host]]\nnqn = "{HOST}"\ndhchap_key = "{host}"\ndhchap_ctrl_key = "{target}"\n'
    configuration = tmp_path / "feedrail.toml"
    configuration.write_text(
        f"""
        metrics = "{address}:9420"
        [[port]]
        address = "{address}:4420"
        [[subsystem]]
        nqn = "nqn.2026-01.org.example:closed"
        allowed_hosts = []
        [[subsystem.namespace]]
        path = "{tmp_path / "train.bin"}"
        {entry}
        [[subsystem]]
        nqn = "nqn.2026-01.org.example:checkpoints"
        allowed_hosts = []
        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "64MiB"
        {entry}
        """
    )
    return serve("--config", configuration, address=address)


def url(daemon: Daemon, name: str = "closed") -> str:
    return f"nvmf://{daemon.address}:4420/nqn.2026-01.org.example:{name}"


def first_bytes(source: feedrail.Source) -> list[int]:
    return [int(byte) for byte in source.rows(0, [0], 256).as_numpy().ravel()]


def test_keys_and_key_files_open_a_source(closed: Daemon, tmp_path: Path) -> None:
    for secrets in (
        {"dhchap_secret": HOST_KEY},
        {"dhchap_secret_file": tmp_path / "host.key"},
        {"dhchap_secret": HOST_KEY, "dhchap_ctrl_secret": TARGET_KEY},
        {
            "dhchap_secret_file": str(tmp_path / "host.key"),
            "dhchap_ctrl_secret_file": tmp_path / "target.key",
        },
    ):
        with feedrail.open(url(closed), host_nqn=HOST, **secrets) as source:
            assert first_bytes(source) == list(range(256))


def test_what_is_missing_or_wrong_is_named(closed: Daemon, tmp_path: Path) -> None:
    def error(**secrets: object) -> str:
        with pytest.raises(feedrail.AuthenticationError) as raised:
            feedrail.open(url(closed), host_nqn=HOST, **secrets)
        assert isinstance(raised.value, feedrail.AccessDenied) and not raised.value.retryable
        message = str(raised.value)
        assert all(key[10:30] not in message for key in (HOST_KEY, TARGET_KEY, OTHER_KEY))
        return message

    assert "dhchap_secret_file" in error()
    assert "a different one" in error(dhchap_secret=OTHER_KEY)
    assert "controller key" in error(dhchap_secret=HOST_KEY, dhchap_ctrl_secret=OTHER_KEY)
    (tmp_path / "host.key").chmod(0o644)
    assert "chmod 600" in error(dhchap_secret_file=tmp_path / "host.key")
    assert "gen-dhchap-key" in error(dhchap_secret_file=tmp_path / "missing")
    for secrets in (
        {"dhchap_secret": "DHHC-1:00:AAAA"},
        {"dhchap_secret": HOST_KEY, "dhchap_secret_file": "host.key"},
        {"dhchap_ctrl_secret": TARGET_KEY},
    ):
        with pytest.raises(ValueError, match="dhchap"):
            feedrail.open(url(closed), host_nqn=HOST, **secrets)


def test_a_source_authenticates_again_after_each_period(closed: Daemon, tmp_path: Path) -> None:
    def attempts() -> int:
        with urllib.request.urlopen(f"http://{closed.address}:9420/metrics") as page:
            lines = page.read().decode().splitlines()
        counts = [line for line in lines if line.startswith("feedrail_authentications_total{")]
        return sum(int(line.rsplit(" ", 1)[1]) for line in counts if 'result="authenticated"' in line)

    options = {"host_nqn": HOST, "dhchap_secret_file": tmp_path / "host.key"}
    for period in (0.5, -1):
        with pytest.raises(ValueError, match="at least 1 s"):
            feedrail.open(url(closed), reauth_period=period, **options)
    with pytest.raises(ValueError, match="dhchap_secret_file"):
        feedrail.open(url(closed), host_nqn=HOST, reauth_period=60)
    with feedrail.open(url(closed), reauth_period=1, **options) as source:
        first = attempts()
        while attempts() < first + 4:
            assert first_bytes(source) == list(range(256))
        assert source.stats().reconnects == 0


def test_a_key_is_not_shown_and_not_pickled(closed: Daemon, tmp_path: Path) -> None:
    with feedrail.open(url(closed), host_nqn=HOST, dhchap_secret=HOST_KEY) as source:
        shown = f"{source!r} {source._specification!r} {vars(source)!r} {source._specification.secrets.options()!r}"
        assert HOST_KEY[10:30] not in shown
        with pytest.raises(pickle.PicklingError, match="dhchap_secret_file"):
            pickle.dumps(source)
    with feedrail.open(url(closed), host_nqn=HOST, dhchap_secret_file=tmp_path / "host.key") as source:
        pickled = pickle.dumps(source)
        assert HOST_KEY[10:30].encode() not in pickled
        with pickle.loads(pickled) as again:
            assert first_bytes(again) == list(range(256))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_authenticate_themselves(closed: Daemon, tmp_path: Path, method: str) -> None:
    secrets = {"dhchap_secret_file": tmp_path / "host.key", "dhchap_ctrl_secret_file": tmp_path / "target.key"}
    with feedrail.open(url(closed), host_nqn=HOST, **secrets) as source:
        with multiprocessing.get_context(method).Pool(2) as workers:
            assert workers.map(first_bytes, [source] * 4) == [list(range(256))] * 4


def test_a_forked_worker_has_the_key(closed: Daemon) -> None:
    with feedrail.open(url(closed), host_nqn=HOST, dhchap_secret=HOST_KEY) as source:
        receive, send = multiprocessing.Pipe(duplex=False)
        worker = multiprocessing.get_context("fork").Process(
            target=lambda: send.send(first_bytes(source))
        )
        worker.start()
        assert receive.recv() == list(range(256))
        worker.join()


def test_checkpoint_stores_and_fsspec_take_key_files(closed: Daemon, tmp_path: Path) -> None:
    where = url(closed, "checkpoints")
    options = {"host_nqn": HOST, "dhchap_secret_file": tmp_path / "host.key"}
    with pytest.raises(feedrail.AuthenticationError):
        feedrail.CheckpointStore.format(where, host_nqn=HOST)
    feedrail.CheckpointStore.format(where, **options)
    with feedrail.CheckpointStore(where, **options) as store:
        with store.begin(1) as save:
            save.write("weights", b"of a model")
            save.commit()
        assert bytes(store.latest().read("weights")) == b"of a model"
    pytest.importorskip("fsspec")
    from feedrail.fsspec import NvmfFileSystem

    system = NvmfFileSystem(**options)
    path = f"{closed.address}/nqn.2026-01.org.example:closed/train.bin"
    assert system.cat_file(path, 0, 4) == bytes(range(4))
