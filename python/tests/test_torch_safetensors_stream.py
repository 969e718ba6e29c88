"""Tensors of safetensors files as they arrive: what is read, when, and what is left behind."""

from __future__ import annotations

import contextlib
import gc
import json
import queue
import random
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Daemon, Serve, binary
from test_manifest import Copy
from test_processes import in_child

import feedrail

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from feedrail.formats.safetensors import load_file, shard_slices, stream

pytestmark = pytest.mark.torch

#: Seconds that nothing here takes; what hangs ends then.
LONG = 120
MIB = 1 << 20
#: Tensors of the model.
COUNT = 60

Tensors = dict[str, "torch.Tensor"]


def write(path: Path, tensors: Tensors, *, block: int = 8) -> Path:
    """Writes a file whose tensors begin at a multiple of `block` bytes."""
    safetensors.save_file(tensors, path)
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[8:end] + b" " * (-end % block)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])
    return path


def names_in_order(path: Path) -> list[str]:
    """Names of a file's tensors by their places."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether types, shapes and bytes are the same."""
    if one.dtype != other.dtype or one.shape != other.shape or not one.is_contiguous():
        return False
    data = [it.contiguous().reshape(-1).view(torch.uint8) for it in (one, other)]
    return torch.equal(*data)


def read_bytes(source: feedrail.Source) -> int:
    """Bytes that a source has read."""
    return sum(source.stats().bytes_by_path.values())


def sent_bytes(daemon: Daemon) -> int:
    """Bytes that a target has read of its files."""
    daemon.process.send_signal(signal.SIGUSR1)
    assert daemon.process.stdout is not None
    for line in daemon.process.stdout:
        said = json.loads(line)
        if said["event"] == "stats":
            return int(said["io"]["read_bytes"])
    raise RuntimeError("the daemon ended")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of many small tensors and some larger ones, of several types."""
    torch.manual_seed(1)
    tensors: Tensors = {f"layer.{i}.norm": torch.rand(i) for i in range(40)}
    tensors |= {f"layer.{i}.up": torch.rand(300, 101 + i).bfloat16() for i in range(12)}
    tensors |= {f"layer.{i}.ids": torch.randint(0, 9, (2, 3, 50, 40)) for i in range(4)}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "bits": torch.ones(5).bool()}
    tensors["head"] = torch.rand(1000, 1031)
    return write(tmp_path_factory.mktemp("model") / "model.safetensors", tensors)


@pytest.fixture(scope="module")
def target(model: Path) -> Iterator[Daemon]:
    running = Daemon(model)
    yield running
    running.kill()


@pytest.fixture
def source(target: Daemon) -> Iterator[feedrail.Source]:
    with feedrail.open(target.url) as opened:
        yield opened


@pytest.mark.parametrize("buffer_bytes", [1, 3 * MIB, 256 * MIB])
@pytest.mark.parametrize("where", ["remote", "local"])
def test_each_tensor_comes_once_in_the_order_of_the_file(
    target: Daemon, model: Path, where: str, buffer_bytes: int
) -> None:
    url = target.url if where == "remote" else str(model)
    come = list(stream(url, buffer_bytes=buffer_bytes))
    assert [name for name, _ in come] == names_in_order(model)
    local = safetensors.load_file(model)
    assert all(same(tensor, local[name]) for name, tensor in come)
    come[0][1].add_(1)
    assert all(same(tensor, local[name]) for name, tensor in come[1:])


def test_what_is_read_ahead_is_bounded(source: feedrail.Source) -> None:
    tensors = stream(source, buffer_bytes=2 * MIB)
    for _ in tensors:
        memories = {id(step.memory): step.memory.nbytes for step, _ in tensors._in_flight}
        assert sum(memories.values()) <= 2 * MIB or len(memories) == 1
    assert tensors.nbytes == sum(tensor.nbytes for tensor in load_file(source).values())


def test_memory_that_is_dropped_is_used_again(serve: Serve, tmp_path: Path) -> None:
    block = np.zeros((MIB,), np.uint8)
    path = tmp_path / "model.safetensors"
    safetensors.save_file({f"{i:03}": torch.from_numpy(block + i % 251) for i in range(192)}, path)
    source = feedrail.open(serve(path).url)
    list(stream(source, names=["000"]))
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_of_process("VmRSS")
    for number, (_, tensor) in enumerate(stream(source, buffer_bytes=16 * MIB)):
        assert int(tensor[-1]) == number % 251
    assert memory_of_process("VmHWM") - before < 48 * MIB


def memory_of_process(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


SPECS = [
    np.s_[:],
    np.s_[...],
    np.s_[10:200],
    np.s_[:, 5:50],
    np.s_[..., -7:],
    np.s_[-20:, ..., :40],
    np.s_[3:4, 100:101],
    np.s_[250:9999, :-60],
    np.s_[5:5],
    np.s_[200:100, 3:],
    np.s_[9999:],
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_slices_are_those_of_indexing(source: feedrail.Source, model: Path, spec: object) -> None:
    local = safetensors.load_file(model)
    before = read_bytes(source)
    tensors = stream(source, slices=lambda name, *_: spec if name.endswith("up") else False)
    header_bytes = read_bytes(source) - before
    come = dict(tensors)
    assert len(come) == 12
    assert all(same(tensor, local[name][spec].contiguous()) for name, tensor in come.items())
    wanted = sum(tensor.nbytes for tensor in come.values())
    assert tensors.nbytes == read_bytes(source) - before - header_bytes == wanted


def test_slices_of_four_dimensions(source: feedrail.Source, model: Path) -> None:
    local, dice = safetensors.load_file(model), random.Random(3)

    def any_slice(size: int) -> slice:
        ends = [None, *range(-size - 3, size + 3)]
        return slice(dice.choice(ends), dice.choice(ends), dice.choice([None, 1]))

    for _ in range(40):
        spec = tuple(any_slice(size) for size in (2, 3, 50, 40)[: dice.randint(0, 4)])
        for name, tensor in stream(source, slices={"layer.1.ids": spec}, names=["layer.1.ids"]):
            assert same(tensor, local[name][spec].contiguous()), spec


def test_many_short_runs(serve: Serve, tmp_path: Path) -> None:
    tensor = torch.randint(0, 255, (40_000, 4), dtype=torch.uint8)
    source = feedrail.open(serve(write(tmp_path / "a.safetensors", {"a": tensor})).url)
    ((_, come),) = stream(source, slices={"a": np.s_[:, 1:3]})
    assert same(come, tensor[:, 1:3].contiguous())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("block", [8, 512])
def test_ranks_read_the_bytes_once(serve: Serve, tmp_path: Path, dim: int, block: int) -> None:
    """All ranks together read each byte once, and the target what lies in the same blocks."""
    tensors = {f"{i}": torch.rand(64, 1024 * (1 + i)) for i in range(4)}
    daemon = serve(write(tmp_path / "model.safetensors", tensors, block=block))
    wanted = sum(tensor.nbytes for tensor in tensors.values())
    halves, read, sent = [], 0, 0
    for rank in range(2):
        source = feedrail.open(daemon.url)
        slices = shard_slices(rank, 2, dict.fromkeys(tensors, dim).get)
        half = stream(source, slices=slices)
        before = read_bytes(source), sent_bytes(daemon)
        halves.append(dict(half))
        read += read_bytes(source) - before[0]
        sent += sent_bytes(daemon) - before[1]
    assert read == wanted
    # A block that two ranks have bytes of is read twice.
    shared = 0 if block == 512 else 4 * 512 * (64 if dim else 1) * 2
    assert wanted <= sent <= wanted + shared
    assert all(same(torch.cat([half[name] for half in halves], dim), tensors[name]) for name in tensors)


@pytest.mark.parametrize("size", [0, 1, 7, 8])
@pytest.mark.parametrize("world_size", [1, 3, 8, 9])
def test_ranks_have_the_chunks_of_torch(size: int, world_size: int) -> None:
    whole = torch.arange(5 * size).reshape(5, size)
    chunks = list(torch.chunk(whole, world_size, -1))
    for rank in range(world_size):
        spec = shard_slices(rank, world_size, lambda name: -1)("a", "I64", (5, size))
        expected = chunks[rank] if rank < len(chunks) else whole[:, :0]
        assert torch.equal(whole[spec], expected)
    assert shard_slices(0, world_size, {}.get)("a", "I64", (5,)) is None


def test_ranks_that_are_none() -> None:
    for rank, world_size in [(-1, 2), (2, 2), (0, 0)]:
        with pytest.raises(ValueError, match=f"rank {rank} of {world_size}"):
            shard_slices(rank, world_size, {}.get)
    with pytest.raises(IndexError, match="no dimension 2"):
        shard_slices(0, 2, lambda name: 2)("a", "F32", (3, 4))


def test_packed_values_are_cut_at_whole_bytes(serve: Serve, tmp_path: Path) -> None:
    packed = torch.arange(24, dtype=torch.uint8).reshape(3, 8).view(torch.float4_e2m1fn_x2)
    path = write(tmp_path / "a.safetensors", {"a": packed})
    source = feedrail.open(serve(path).url)
    ((_, come),) = stream(source, slices={"a": np.s_[1:, 4:10]})
    assert same(come.view(torch.uint8), packed.view(torch.uint8)[1:, 2:5].contiguous())
    for spec in (np.s_[:, 3:], np.s_[:, :5]):
        with pytest.raises(ValueError, match=r"tensor 'a' of shape \[3, 16\]: values .* not whole bytes"):
            stream(source, slices={"a": spec})


@pytest.mark.parametrize(
    ("spec", "kind", "said"),
    [
        (np.s_[::2], ValueError, "tensor 'head' of shape .*: the step is 2, and only 1 is possible"),
        (np.s_[:, ::-1], ValueError, "the step is -1"),
        (np.s_[::0], ValueError, "the step is 0"),
        (np.s_[:, :, :], IndexError, "there are 3 slices"),
        (np.s_[..., :, ...], IndexError, "several ellipses"),
        (3, TypeError, "3 is no slice"),
        ([slice(3)], TypeError, "is no slice"),
        (True, TypeError, "True is no slice"),
    ],
)
def test_slices_that_are_none(
    source: feedrail.Source, spec: object, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        stream(source, slices={"head": spec})
    with pytest.raises(kind, match=said):
        stream(source, slices=lambda name, *_: spec if name == "head" else None)


def test_names_select_tensors(source: feedrail.Source, model: Path) -> None:
    wanted = ["head", "layer.7.norm", "layer.11.up", "head"]
    come = dict(stream(source, names=iter(wanted), slices={"head": np.s_[:9], "layer.11.up": False}))
    assert list(come) == [name for name in names_in_order(model) if name in ("head", "layer.7.norm")]
    assert come["head"].shape == (9, 1031)
    assert list(stream(source, names=[])) == []


@pytest.mark.parametrize("how", [{"names": ["layer.3.pu"]}, {"slices": {"layer.3.pu": None}}])
def test_a_name_that_is_not_there(target: Daemon, model: Path, how: dict[str, object]) -> None:
    source = feedrail.open(target.url)
    with pytest.raises(feedrail.NotFound, match="'layer.3.pu': is it 'layer.3.up' or"):
        stream(source, **how)
    assert read_bytes(source) < model.stat().st_size // 2
    with pytest.raises(feedrail.NotFound, match=f"no tensor 'unlike' among {COUNT}"):
        stream(source, names=["unlike"])


def test_for_meta_no_tensor_is_read(source: feedrail.Source, model: Path) -> None:
    before = read_bytes(source)
    tensors = stream(source, "meta", slices={"head": np.s_[:, :3]})
    headers = read_bytes(source) - before
    come, local = dict(tensors), safetensors.load_file(model)
    assert read_bytes(source) - before == headers and tensors.nbytes == 0
    assert list(come) == names_in_order(model) and come.pop("head").shape == (1000, 3)
    assert all(tensor.is_meta and tensor.shape == local[name].shape for name, tensor in come.items())
    assert load_file(source, torch.device("meta")).keys() == local.keys()


def test_copies_to_cuda_are_from_pinned_memory(
    source: feedrail.Source, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CUDA: what torch is asked for, and that the bytes go there."""
    empty, asked, copied = torch.empty, list[bool](), list[tuple[str, bool]]()

    def make(*size: int, pin_memory: bool = False, **options: object) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*size, **options)

    def copy(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        copied.append((device.type, non_blocking))
        return tensor

    local = safetensors.load_file(model)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", make)
        patch.setattr(torch.Tensor, "to", copy)
        come = dict(stream(source, "cuda"))
    assert any(asked) and copied == [("cuda", True)] * COUNT
    assert all(same(come[name], tensor) for name, tensor in local.items())


def test_progress_is_told(source: feedrail.Source) -> None:
    told: list[tuple[int, int]] = []
    tensors = stream(source, buffer_bytes=MIB, progress=lambda *done: told.append(done))
    assert [*tensors] and told == sorted(told)
    assert told[-1] == (tensors.nbytes, tensors.nbytes)

    def fail(done: int, all_of_them: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        load_file(source, progress=fail)


def test_a_stream_that_is_closed(source: feedrail.Source) -> None:
    with stream(source) as tensors:
        next(tensors)
    with pytest.raises(ValueError, match="closed before its end"):
        next(tensors)
    with stream(source) as tensors:
        assert len(list(tensors)) == COUNT
    for _ in range(2):
        assert next(tensors, None) is None
    with pytest.raises(ValueError, match="buffer_bytes=0"):
        stream(source, buffer_bytes=0)


def memory_in_flight(tensors: object) -> list[weakref.ref[object]]:
    """The memory that a stream reads into."""
    return [weakref.ref(step.memory._buffer) for step, _ in tensors._in_flight]


def left(way: str, source: feedrail.Source) -> list[weakref.ref[object]]:
    """Leaves a loop with reads in flight, and returns their memory."""
    tensors = stream(source, buffer_bytes=8 * MIB)
    for _ in tensors:
        memory = memory_in_flight(tensors)
        if memory and way == "break":
            break
        if memory and way == "exception":
            with contextlib.suppress(KeyError):
                for _ in tensors:
                    raise KeyError
            break
        if memory and way == "close":
            tensors.close()
            assert not any(reference() for reference in memory)
            break
    return memory


@pytest.mark.parametrize("way", ["break", "exception", "close"])
def test_a_loop_that_is_left(source: feedrail.Source, way: str) -> None:
    gc.collect()
    gc.disable()
    try:
        memory = left(way, source)
        assert memory and not any(reference() for reference in memory)
    finally:
        gc.enable()


@pytest.fixture
def hung(serve: Serve, model: Path) -> Iterator[tuple[Daemon, feedrail.Source]]:
    """A daemon, which tests stop, and a source of it."""
    daemon = serve(model)
    with feedrail.open(daemon.url, io_timeout=600, loss_timeout=600) as source:
        yield daemon, source
        daemon.resume()


def test_closing_ends_a_wait(hung: tuple[Daemon, feedrail.Source], model: Path) -> None:
    daemon, source = hung
    tensors, said = stream(source), queue.Queue[BaseException]()
    daemon.stop()

    def wait() -> None:
        try:
            next(tensors)
        except BaseException as error:
            said.put(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not tensors._in_flight:
        select.select([], [], [], 0.001)
    tensors.close()
    # The target has the commands, and may use the memory until it has answered.
    daemon.resume()
    error = said.get(timeout=LONG)
    waiting.join(LONG)
    assert isinstance(error, ValueError) and "closed" in str(error)
    assert load_file(source).keys() == safetensors.load_file(model).keys()


def test_threads_share_a_stream(source: feedrail.Source, model: Path) -> None:
    tensors, come = stream(source, buffer_bytes=MIB), queue.Queue[tuple[str, "torch.Tensor"]]()

    def take() -> None:
        for pair in tensors:
            come.put(pair)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert come.qsize() == COUNT
    local = safetensors.load_file(model)
    found = dict(come.get_nowait() for _ in range(COUNT))
    assert all(same(found[name], tensor) for name, tensor in local.items())


def test_an_interrupt_ends_a_wait(serve: Serve, model: Path) -> None:
    daemon = serve(model)
    script = f"""
        import os, signal, torch, feedrail
        from feedrail.formats.safetensors import stream
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        source = feedrail.open({daemon.url!r}, io_timeout=600, loss_timeout=600)
        tensors = stream(source, buffer_bytes=1 << 20)
        next(tensors)
        print("waiting", flush=True)
        input()
        try:
            for name, tensor in tensors:
                pass
        except KeyboardInterrupt:
            print("interrupted", len(tensors._in_flight), flush=True)
        os.kill({daemon.process.pid}, signal.SIGCONT)
        print(len(dict(stream(source))), flush=True)
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(script)]
    child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    daemon.stop()
    child.stdin.write("\n")
    child.stdin.flush()
    select.select([], [], [], 0.3)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=LONG)[0] == f"interrupted 0\n{COUNT}\n"
    assert child.returncode == 0


@pytest.mark.parametrize("provider", ["shm", "soft"])
@pytest.mark.parametrize(("leave", "status"), [("pass", 0), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_program_that_ends_amid_a_stream(
    target: Daemon, provider: str, leave: str, status: int
) -> None:
    script = f"""
        import sys, torch, feedrail
        from feedrail.formats.safetensors import stream
        source = feedrail.open({target.url!r}, provider={provider!r})
        tensors = stream(source, buffer_bytes=1 << 20)
        cycle = [tensors]
        cycle.append(cycle)
        name, tensor = next(tensors)
        {leave}
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert ended.returncode == status, ended.stderr
    assert (ended.stderr == "") == (status != 1), ended.stderr


def test_a_child_cannot_use_it(source: feedrail.Source, model: Path) -> None:
    tensors, local = stream(source, buffer_bytes=MIB), safetensors.load_file(model)
    name, tensor = next(tensors)

    def use() -> None:
        with pytest.raises(feedrail.ForkedHandleError):
            next(tensors)
        tensors.close()
        # Operations of torch may hang in a child: their threads are the parent's.
        assert tensor.numpy().tobytes() == local[name].numpy().tobytes()
        assert len(list(stream(source))) == COUNT

    in_child(use)
    assert 1 + sum(same(tensor, local[name]) for name, tensor in tensors) == COUNT


def test_a_target_that_is_lost(serve: Serve, model: Path) -> None:
    daemon = serve(model)
    source = feedrail.open(daemon.url, loss_timeout=0.5)
    tensors = stream(source, buffer_bytes=MIB)
    next(tensors)
    daemon.kill()
    with pytest.raises(feedrail.TargetLost):
        list(tensors)
    with pytest.raises(ValueError, match="closed"):
        next(tensors)


@pytest.fixture
def copies(model: Path, tmp_path: Path) -> Iterator[list[Copy]]:
    """Two targets with the file."""
    made = [Copy(tmp_path / name) for name in ("a", "b")]
    for copy in made:
        copy.folder.mkdir()
        shutil.copy(model, copy.folder)
        copy.start()
    yield made
    for copy in made:
        copy.kill()


def test_a_replica_is_read_where_a_target_is_lost(
    copies: list[Copy], model: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.json"
    targets = [f"--target={copy.folder.name}={copy.url}" for copy in copies]
    shards = [f"{copy.url}/{model.name}" for copy in copies]
    command = [binary("feedrail"), "manifest", "--crc", "--name=m", f"--output={manifest}", *targets]
    subprocess.run([*command, *shards], check=True, capture_output=True, timeout=LONG)
    local = safetensors.load_file(model)
    for victim in copies:
        source = feedrail.open(manifest)
        tensors = stream(source, buffer_bytes=MIB)
        come = [next(tensors)]
        victim.kill()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", feedrail.ReplicaWarning)
            come += tensors
        assert len(come) == COUNT and all(same(tensor, local[name]) for name, tensor in come)
        victim.start()
