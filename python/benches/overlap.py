"""How much of a batch's time a loader hides behind compute.

    FEEDRAIL_BIN_DIR=out/release python python/benches/overlap.py

Prints the time of a batch alone, of 20 ms of compute alone, and of a step of both, as medians in
milliseconds, and the ratio of step and compute. Compute is that of an accelerator: this thread waits.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from conftest import Daemon

import feedrail
import feedrail.torch

ROWS, BLOCK, STEPS, COMPUTE_S = int(sys.argv[1]) if len(sys.argv) > 1 else 480, 1024, 200, 0.020


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(0, 50257, 32 << 20, dtype=np.uint16).tofile(path)
        daemon = Daemon(path)
        try:
            measure(daemon.url)
        finally:
            daemon.kill()


def measure(url: str) -> None:
    dataset = feedrail.torch.TokenDataset(feedrail.open(url), BLOCK, stride=1)
    random = np.random.default_rng(1)

    def alone() -> None:
        _ = dataset.__getitems__(random.integers(0, len(dataset), ROWS)).x

    batch = median(alone, 50)
    compute = median(lambda: time.sleep(COMPUTE_S), 50)
    with feedrail.torch.Loader(dataset, ROWS) as loader:
        next(loader)

        def step() -> None:
            _ = next(loader).x
            time.sleep(COMPUTE_S)

        both = median(step, STEPS)
    print(f"batch {batch:.1f} ms, compute {compute:.1f} ms, step {both:.1f} ms: {both / compute:.3f}")


def median(work: object, count: int) -> float:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
