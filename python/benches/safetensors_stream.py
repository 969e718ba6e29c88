"""How long a stream of tensors takes, beside one read of the same bytes.

    FEEDRAIL_BIN_DIR=out/release python python/benches/safetensors_stream.py [GIB]

For shared memory and for soft, prints medians of rounds in random order (what ran before leaves free
memory, or none): seconds until the first tensor is there and until the last one is, for a consumer
that drops tensors and for one that keeps them, and their ratios to one `read_many` into new memory
and into memory that was used before.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from conftest import Daemon

import feedrail
from feedrail import _core
from feedrail.formats import safetensors

ROUNDS = 7
#: Bytes of the tensors of a layer: those of Llama 3.2 1B.
LAYER = [32 << 20, 32 << 20, 32 << 20, 8 << 20, 8 << 20, 2 << 20, 2 << 20, 4 << 10, 4 << 10]


def main() -> None:
    wanted = int(float(sys.argv[1] if len(sys.argv) > 1 else 2) * (1 << 30))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write(path, wanted)
        daemon = Daemon(path)
        try:
            for provider in ("shm", "soft"):
                measure(daemon.url, provider)
        finally:
            daemon.kill()


def write(path: Path, nbytes: int) -> None:
    header, at = {}, 0
    while at < nbytes:
        for number, length in enumerate(LAYER):
            entry = {"dtype": "BF16", "shape": [length // 2], "data_offsets": [at, at + length]}
            header[f"{at // sum(LAYER)}.{number}"] = entry
            at += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for done in range(0, at, len(block)):
            file.write(block[: at - done])


def measure(url: str, provider: str) -> None:
    with feedrail.open(url, provider=provider) as source:
        nbytes = source.shards[0].nbytes
        used = _core.Buffer.allocate(nbytes)
        plan = feedrail.make_plan([0, nbytes // 2], [nbytes // 2, nbytes - nbytes // 2])
        first: list[float] = []

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            begin = time.perf_counter()
            stream = safetensors.stream(source)
            next(stream)
            first.append(time.perf_counter() - begin)
            return stream

        ways: dict[str, Callable[[], object]] = {
            "one read, new memory": lambda: source.read_many(plan, _core.Buffer.allocate(nbytes)),
            "stream, dropped": lambda: [None for _ in tensors()],
            "one read, used memory": lambda: source.read_many(plan, used),
            "stream, kept": lambda: dict(tensors()),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        dice = random.Random(1)
        for number in range(1 + ROUNDS):
            for way in dice.sample(list(ways), len(ways)):
                begin = time.perf_counter()
                ways[way]()
                if number:
                    times[way].append(time.perf_counter() - begin)
    medians = {way: statistics.median(every) for way, every in times.items()}
    print(f"{provider}: first tensor {1e3 * statistics.median(first):.0f} ms, at most {1e3 * max(first):.0f} ms")
    for way, median in medians.items():
        to_new, to_used = median / medians["one read, new memory"], median / medians["one read, used memory"]
        print(f"  {way:22} {median:.3f} s: {to_new:.3f} and {to_used:.3f} of one read")


if __name__ == "__main__":
    main()
