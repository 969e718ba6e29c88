"""The hierarchy of exceptions, and which is raised when."""

from __future__ import annotations

import copy
import errno
import pickle
import socket
from pathlib import Path

import numpy as np
import pytest
from conftest import ROCE_PORT, Daemon, Serve, loopback_address

import feedrail
from feedrail import _checkpoint_errors, _errors

CLASSES = [
    kind
    for module in (_errors, _checkpoint_errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, feedrail.FeedrailError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_is_an_os_error_and_survives_pickling(
    kind: type[feedrail.FeedrailError],
) -> None:
    error = kind("said", errno=5, shard=1, offset=2, length=3, tried=("a",), status=4, retryable=True)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind and isinstance(again, OSError)
        assert str(again) == "said"
        assert vars(again) == vars(error) and again.errno == 5
    assert str(kind("alone")) == "alone" and kind("alone").shard is None


def test_builtin_classes_catch_them() -> None:
    assert issubclass(feedrail.TargetLost, ConnectionError)
    assert issubclass(feedrail.ReadTimeout, TimeoutError)
    assert issubclass(feedrail.PoolFull, BufferError)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/nqn",
        "nvmf:///nqn",
        "nvmf://127.0.0.1:0/nqn",
        "nvmf://127.0.0.1:99999/nqn",
        "nvmf://127.0.0.1:x/nqn",
        "nvmf://user@127.0.0.1/nqn",
        "nvmf://127.0.0.1/nqn?x=1",
        "nvmf://127.0.0.1/",
        "nvmf://127.0.0.1/" + "n" * 300,
        "127.0.0.1",
        "",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=r".+"):
        feedrail.open(url)


@pytest.mark.parametrize(
    "options",
    [
        {"provider": "tcp"},
        {"local_address": "here"},
        {"io_queues": -1},
        {"io_queues": 1 << 20},
        {"io_timeout": float("nan")},
        {"io_timeout": -1.0},
        {"loss_timeout": float("inf")},
    ],
)
def test_options_out_of_bounds(daemon: Daemon, options: dict[str, object]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        feedrail.open(daemon.url, **options)


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(feedrail.TargetLost, match="start a target there") as raised:
        feedrail.open(f"nvmf://{loopback_address()}/nqn.2026-01.org.example:none")
    assert isinstance(raised.value, ConnectionError) and raised.value.retryable


def test_an_address_that_swallows_all_packets() -> None:
    address = loopback_address()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((address, ROCE_PORT))
        with pytest.raises(feedrail.TargetLost, match="UDP port 4791 ") as raised:
            feedrail.open(f"nvmf://{address}/nqn.2026-01.org.example:none", loss_timeout=0.1)
    assert raised.value.retryable and address in raised.value.tried[0]


def test_what_a_target_does_not_have(daemon: Daemon, source: feedrail.Source) -> None:
    """It answers, so it is not lost."""
    address, name = f"nvmf://{daemon.address}", "nqn.2026-01.org.example:none"
    for use, said in [
        (lambda: feedrail.open(f"{address}/{name}"), name),
        (lambda: feedrail.open(f"{address}/{daemon.nqn}/none"), "no such namespace"),
        (lambda: source.open("none"), "no shard 'none'"),
        (lambda: source.rows("none", [0], 1), "no shard 'none'"),
        (lambda: feedrail.open("/no/such/file"), "nor a file"),
    ]:
        with pytest.raises(feedrail.NotFound, match=said) as raised:
            use()
        error = raised.value
        assert isinstance(error, FileNotFoundError) and not isinstance(error, feedrail.TargetLost)
        assert error.errno == errno.ENOENT and not error.retryable


def test_a_host_that_is_not_allowed(serve: Serve, tmp_path: Path) -> None:
    address, nqn = loopback_address(), "nqn.2026-01.org.example:private"
    (tmp_path / "shard.bin").write_bytes(bytes(4096))
    configuration = tmp_path / "feedrail.toml"
    configuration.write_text(
        f"""
        [[port]]
        address = "{address}:4420"
        [[subsystem]]
        nqn = "{nqn}"
        allowed_hosts = ["nqn.2026-01.org.example:another"]
        [[subsystem.namespace]]
        path = "{tmp_path}/shard.bin"
        """
    )
    serve("--config", configuration, address=address)
    with pytest.raises(feedrail.AccessDenied, match="does not allow this host") as raised:
        feedrail.open(f"nvmf://{address}/{nqn}")
    assert isinstance(raised.value, PermissionError) and not raised.value.retryable


def test_a_name_that_cannot_be_looked_up() -> None:
    with pytest.raises(feedrail.TargetLost, match="address of 'no-such-host.invalid' is not known"):
        feedrail.open("nvmf://no-such-host.invalid/nqn.2026-01.org.example:none")


def test_a_ticket_that_is_waited_for_too_briefly(serve: Serve, shard_file: Path) -> None:
    daemon = serve(shard_file)
    source = feedrail.open(daemon.url)
    daemon.stop()
    ticket = source.submit(feedrail.make_plan([0], [4096]), bytearray(4096))
    with pytest.raises(feedrail.ReadTimeout, match="continues"):
        ticket.wait(0)
    daemon.resume()
    ticket.wait()


def test_a_target_that_dies(serve: Serve, shard_file: Path, content: np.ndarray) -> None:
    daemon = serve(shard_file)
    source = feedrail.open(daemon.url, loss_timeout=0.3)
    plan = feedrail.make_plan([0, 5000], 4096)
    daemon.kill()
    with pytest.raises(feedrail.TargetLost) as raised:
        source.read_many(plan, bytearray(8192))
    error = raised.value
    assert isinstance(error, ConnectionError) and error.retryable
    assert daemon.nqn in str(error) and daemon.nqn in error.tried[0]
    daemon.start()
    reopened = feedrail.open(daemon.url)
    assert bytes(reopened.rows(0, [0], 10)) == content[:10].tobytes()


@pytest.mark.parametrize("change", ["grown", "rewritten", "replaced", "truncated"])
def test_a_shard_that_changes_while_the_target_is_down(
    serve: Serve, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "shard.bin"
    path.write_bytes(bytes(20_000))
    daemon = serve(path)
    source = feedrail.open(daemon.url)
    source.rows(0, [0], 10)
    daemon.kill()
    if change == "replaced":
        path.unlink()
    path.write_bytes(b"\1" * {"grown": 30_000, "truncated": 10_000}.get(change, 20_000))
    daemon.start()
    with pytest.raises(feedrail.DatasetChanged) as raised:
        source.rows(0, [0], 10)
    assert raised.value.shard == 0 and not raised.value.retryable
    with pytest.raises(feedrail.DatasetChanged):
        pickle.loads(pickle.dumps(source)).rows(0, [0], 10)
    assert bytes(feedrail.open(daemon.url).rows(0, [0], 3)) == b"\1\1\1"


def test_failures_of_several_reasons_are_a_plain_batch_error(
    source: feedrail.Source,
) -> None:
    results = np.zeros(3, feedrail.RESULT_DTYPE)
    error = _errors.batch_error(
        results,
        np.array([0, 2]),
        {0: feedrail.RangeError("a", retryable=True), 2: feedrail.TargetLost("b")},
    )
    assert type(error) is feedrail.BatchError and not error.retryable
    assert str(error) == "2 of 3 ranges failed, the first: a"
