#!/usr/bin/env python3
"""One batch of random rows: feedrail beside the ways that loaders read a local file.

Each reader gets the same number of batches, in turns, so that a busy machine slows all of them
down. Local readers read a file in the page cache; feedrail reads the same file, or a copy in the
memory of a target, over `shm` and `soft`. Each reader's first batch is compared with the file.
Processor time is that of both processes until the end of a pause after the batch (`--rest`),
which is not counted in the time of the batch; without one, some of it counts for the next reader.

    python benches/batch_readers.py --target out/release/feedrail-target --cli out/release/feedrail
    python benches/batch_readers.py --rows 32 --row-bytes 131072 --align 4096 ...
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import feedrail

try:
    import torch
except ImportError:
    torch = None

CONFIGURATION = """
[limits]
queue_depth = 128

[[port]]
address = "{address}:4420"

[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:bench"
allow_any_host = true

[[subsystem.namespace]]
name = "train.bin"
{medium}
"""
NQN = "nqn.2026-01.io.feedrail:bench"

Batch = Callable[[np.ndarray], np.ndarray]


class Target:
    """A target that serves a file, or memory with the bytes of it."""

    def __init__(
        self, program: Path, cli: Path, content: Path, folder: Path, medium: str
    ) -> None:
        self.address = free_address()
        configuration = folder / "target.toml"
        medium_lines = {
            "file": f'kind = "file"\npath = "{content}"\nread_only = true',
            "memory": f'kind = "memory"\nsize_bytes = {content.stat().st_size}',
        }
        configuration.write_text(
            CONFIGURATION.format(address=self.address, medium=medium_lines[medium])
        )
        self.process = subprocess.Popen(
            [program, "--config", configuration], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        if json.loads(self.process.stdout.readline())["event"] != "listening":
            raise RuntimeError("the target does not listen")
        if medium == "memory":
            write = [cli, "write", "-a", self.address, "-n", NQN, "--file", content]
            subprocess.run(write, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def url(self) -> str:
        return f"nvmf://{self.address}:4420/{NQN}/train.bin"

    def cpu_seconds(self) -> float:
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def free_address() -> str:
    """An address of the loopback network on which nothing has the port of RoCE v2."""
    for last in range(2, 255):
        address = f"127.91.{os.getpid() % 250 + 1}.{last}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 4791))
            except OSError:
                continue
            return address
    raise RuntimeError("no address of the loopback network is free")


def readers(path: Path, row_bytes: int) -> dict[str, Batch]:
    """What reads a batch of rows from the local file, by name."""
    file = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    view = memoryview(mapped)
    tokens = row_bytes // 2
    buffers: dict[int, np.ndarray] = {}

    def batch(rows: int) -> np.ndarray:
        return buffers.setdefault(rows, np.empty((rows, row_bytes), np.uint8))

    def preadv(offsets: np.ndarray) -> np.ndarray:
        out = batch(len(offsets))
        for row, offset in enumerate(offsets):
            os.preadv(file, [out[row]], int(offset))
        return out

    def file_reader(offsets: np.ndarray) -> np.ndarray:
        """Opens, seeks and reads for each piece, as Megatron's reader without mmap does."""
        rows = []
        for offset in offsets:
            row = np.empty(tokens, np.uint16)
            with open(path, "rb", buffering=0) as opened:
                opened.seek(int(offset))
                opened.readinto(row)
            rows.append(row)
        return np.stack(rows)

    def mmap_reader(offsets: np.ndarray) -> np.ndarray:
        """Copies each piece out of a mapping, as Megatron's reader with mmap does."""
        return np.stack([np.frombuffer(view, np.uint16, tokens, int(at)).copy() for at in offsets])

    def mds_reader(offsets: np.ndarray) -> np.ndarray:
        """Opens, reads 8 bytes of the offset table, seeks and reads, as readers of MDS do."""
        rows = []
        for offset in offsets:
            with open(path, "rb", buffering=0) as opened:
                opened.seek(4)
                np.frombuffer(opened.read(8), np.uint32)
                opened.seek(int(offset))
                rows.append(opened.read(row_bytes))
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, row_bytes)

    found: dict[str, Batch] = {
        "preadv loop": preadv,
        "open, seek, read (Megatron's file reader)": file_reader,
        "mmap and copy (Megatron's mmap reader)": mmap_reader,
        "open, table, sample (MDS)": mds_reader,
    }
    if torch is not None:
        torch.set_num_threads(1)

        def memmap_stack(offsets: np.ndarray) -> np.ndarray:
            """A memmap and two stacks of int64 tensors, as nanoGPT's get_batch has them."""
            data = np.memmap(path, dtype=np.uint16, mode="r")
            starts = [int(at) // 2 for at in offsets]
            wide = [data[at : at + tokens].astype(np.int64) for at in starts]
            x = torch.stack([torch.from_numpy(row[:-1]) for row in wide])
            y = torch.stack([torch.from_numpy(row[1:]) for row in wide])
            return torch.cat([x[:, :1], y], dim=1).numpy().astype(np.uint16)

        found["memmap and stack (nanoGPT's get_batch)"] = memmap_stack
    return found


def remote(source: feedrail.Source, row_bytes: int) -> Batch:
    """Reads a batch of rows from the target, into one buffer that is used again."""
    buffers: dict[int, feedrail.Buffer] = {}

    def read(offsets: np.ndarray) -> np.ndarray:
        rows = len(offsets)
        if rows not in buffers:
            buffers[rows] = source.register(np.empty(rows * row_bytes, np.uint8))
        return source.rows(0, offsets, row_bytes, buffers[rows]).as_numpy("u1", (rows, row_bytes))

    return read


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    path = folder / "train.bin"
    generator = np.random.default_rng(arguments.seed)
    content = generator.integers(0, 256, arguments.bytes // 512 * 512, dtype=np.uint8)
    content.tofile(path)
    target = Target(arguments.target, arguments.cli, path, folder, arguments.medium)
    try:
        sources = {name: feedrail.open(target.url, provider=name) for name in ("shm", "soft")}
        all_readers = {
            f"feedrail, over {name}": remote(source, arguments.row_bytes)
            for name, source in sources.items()
        }
        all_readers |= readers(path, arguments.row_bytes)
        if arguments.quick:
            names = ("feedrail, over shm", "feedrail, over soft", "preadv loop")
            all_readers = {name: all_readers[name] for name in names}

        def offsets() -> np.ndarray:
            last = (len(content) - arguments.row_bytes) // arguments.align
            return generator.integers(0, last, arguments.rows, dtype=np.int64) * arguments.align

        for name, read in all_readers.items():
            at = offsets()
            got = np.ascontiguousarray(read(at)).view(np.uint8).reshape(len(at), -1)
            expected = np.stack([content[o : o + arguments.row_bytes] for o in at])
            if not np.array_equal(got, expected):
                raise SystemExit(f"{name}: wrong bytes")
        times: dict[str, list[float]] = {name: [] for name in all_readers}
        cpu: dict[str, float] = dict.fromkeys(all_readers, 0.0)
        served: dict[str, float] = dict.fromkeys(all_readers, 0.0)
        for _ in range(arguments.batches):
            for name, read in all_readers.items():
                at = offsets()
                served_before = target.cpu_seconds()
                cpu_before, before = time.process_time(), time.perf_counter()
                read(at)
                times[name].append(time.perf_counter() - before)
                time.sleep(arguments.rest)
                cpu[name] += time.process_time() - cpu_before
                served[name] += target.cpu_seconds() - served_before
        for source in sources.values():
            source.close()
    finally:
        target.close()
    results = {
        name: {
            "p50_ms": statistics.median(took) * 1e3,
            "p99_ms": percentile(took, 99) * 1e3,
            "cpu_ms": cpu[name] / arguments.batches * 1e3,
            "target_cpu_ms": served[name] / arguments.batches * 1e3,
        }
        for name, took in times.items()
    }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", type=Path, required=True, help="the program feedrail-target")
    parser.add_argument("--cli", type=Path, required=True, help="the program feedrail")
    parser.add_argument("--bytes", type=int, default=512 << 20, help="size of the file")
    parser.add_argument("--rows", type=int, default=480, help="rows of a batch")
    parser.add_argument("--row-bytes", type=int, default=2050, help="bytes of a row, even")
    parser.add_argument("--align", type=int, default=2, help="what offsets are multiples of")
    parser.add_argument("--medium", choices=("file", "memory"), default="file")
    parser.add_argument("--quick", action="store_true", help="only `preadv` of the local readers")
    parser.add_argument("--rest", type=float, default=0.003, help="seconds after each batch")
    parser.add_argument("--batches", type=int, default=60, help="batches of each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedrail-bench-") as folder:
        results = measure(arguments, Path(folder))
    if arguments.json:
        json.dump(results, sys.stdout, indent=2)
        return
    best = min(v["p50_ms"] for name, v in results.items() if not name.startswith("feedrail"))
    for name, values in results.items():
        line = f"{name:45} p50 {values['p50_ms']:7.2f} ms  p99 {values['p99_ms']:7.2f} ms"
        line += f"  CPU {values['cpu_ms']:7.2f} ms  target's CPU {values['target_cpu_ms']:.2f} ms"
        print(line)
    for name, values in results.items():
        if name.startswith("feedrail"):
            print(f"speed of {name}, by that of the best local reader: {best / values['p50_ms']:.2f}")


if __name__ == "__main__":
    main()
