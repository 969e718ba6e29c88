"""Counters of a source."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from typing import Any


class UsageClock:
    """How long a training loop computed, and how long it waited for batches, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.compute_seconds = 0.0
        self.stall_seconds = 0.0

    def add(self, *, compute: float, stall: float) -> None:
        """Adds seconds that a loop spent between two batches, and waited for the second."""
        with self._lock:
            self.compute_seconds += compute
            self.stall_seconds += stall


@dataclass(frozen=True)
class Histogram:
    """How long things took. Buckets are a quarter of a power of two wide: log-linear.

    Attributes:
        edges: Seconds; bucket `i` has what took less than `edges[i]`, and not less than the edge
            before it. One bucket more has the rest.
        counts: The number in each bucket, `len(edges) + 1` of them.
        sum: Seconds of all.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """The number of all."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """The upper edge of the bucket that has the quantile, in seconds; 0 if nothing was counted.

        Raises:
            ValueError: `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"quantile {q} is not from 0 to 1")
        below, wanted = 0, q * self.count
        for edge, count in zip(self.edges, self.counts, strict=False):
            below += count
            if count and below >= wanted:
                return edge
        return float("inf") if self.counts[-1] else 0.0


def _of(about: str, path: str | None = None) -> Any:
    """A counter, with its description for Prometheus."""
    return field(metadata={"about": about, "path": path})


@dataclass(frozen=True)
class Stats:
    """What a process has read of a source since it connected.

    Attributes:
        latency: How long batches took, from `submit` until a thread found them over.
        providers: Which RDMA provider is used for each local address, and why.
        batches: Plans that were accepted.
        stall_seconds: Seconds that threads waited for batches, the sum of all threads; a loader's
            threads wait ahead of time.
        commands: Commands sent to targets, on all queues.
        ranges: Ranges that were read.
        ranges_failed: Ranges that ended with an error.
        direct_bytes: Bytes that went to their destination without a copy.
        bounced_bytes: Bytes that were copied through a bounce buffer.
        retries: Ranges that were issued again, after a reconnect or a status that allowed it.
        reconnects: Connections that were made again after a loss.
        connections_lost: Connections that ended without being asked to.
        protocol_violations: Times that a target broke the protocol.
        timeouts: Ranges without a result before their deadline.
        aborts: Abort commands sent.
        loader_compute_seconds: Seconds that training loops spent between two batches of a `Loader`.
        loader_stall_seconds: Seconds that they waited for a batch of a `Loader`.
        targets_away: Names of the targets of a manifest that have no connection now.
    """

    latency: Histogram
    targets_away: tuple[str, ...]
    providers: tuple[str, ...]
    batches: int = _of("Plans that were accepted.")
    stall_seconds: float = _of("Seconds that threads waited for batches.")
    commands: int = _of("Commands sent to targets.")
    ranges: int = _of("Ranges that were read.")
    ranges_failed: int = _of("Ranges that ended with an error.")
    direct_bytes: int = _of("Bytes read, by how they came to their destination.", "direct")
    bounced_bytes: int = _of("Bytes read, by how they came to their destination.", "bounce")
    retries: int = _of("Ranges that were issued again.")
    reconnects: int = _of("Connections that were made again after a loss.")
    connections_lost: int = _of("Connections that ended without being asked to.")
    protocol_violations: int = _of("Times that a target broke the protocol.")
    timeouts: int = _of("Ranges without a result before their deadline.")
    aborts: int = _of("Abort commands sent.")
    loader_compute_seconds: float = _of("Seconds that training loops spent between two batches.")
    loader_stall_seconds: float = _of("Seconds that training loops waited for a batch.")

    @classmethod
    def of(
        cls,
        counters: dict[str, Any],
        targets_away: list[str],
        providers: list[str],
        usage: UsageClock,
    ) -> Stats:
        """From the counters that `_core.Session` has, and those of loaders."""
        counters = dict(counters)
        latency = Histogram(
            edges=tuple(edge / 1e6 for edge in counters.pop("latency_edges_us")),
            counts=tuple(counters.pop("latency_counts")),
            sum=counters.pop("latency_seconds"),
        )
        return cls(
            **counters,
            loader_compute_seconds=usage.compute_seconds,
            loader_stall_seconds=usage.stall_seconds,
            latency=latency,
            targets_away=tuple(targets_away),
            providers=tuple(providers),
        )

    @property
    def bytes_by_path(self) -> dict[str, int]:
        """Bytes read, by how they came to their destination."""
        return {"direct": self.direct_bytes, "bounce": self.bounced_bytes}

    @property
    def utilisation(self) -> float | None:
        """Accelerator utilisation (AU) as loaders see it: compute time over compute and stall time.

        `None` before a loop has taken two batches of a `Loader`.
        """
        total = self.loader_compute_seconds + self.loader_stall_seconds
        return self.loader_compute_seconds / total if total > 0 else None

    def to_prometheus(self) -> str:
        """The counters in the text format of Prometheus, names beginning with `feedrail_`."""
        lines: list[str] = []
        described = set()
        for counter in fields(self):
            if "about" not in counter.metadata:
                continue
            path = counter.metadata["path"]
            name = "feedrail_read_bytes_total" if path else f"feedrail_{counter.name}_total"
            if name not in described:
                described.add(name)
                lines += _head(name, "counter", counter.metadata["about"])
            label = f'{{path="{path}"}}' if path else ""
            lines.append(f"{name}{label} {getattr(self, counter.name)}")
        if self.utilisation is not None:
            name = "feedrail_loader_utilisation"
            lines += _head(name, "gauge", "Compute time over compute and stall time of loaders.")
            lines.append(f"{name} {self.utilisation}")
        lines += _histogram("feedrail_batch_seconds", "How long batches took.", self.latency)
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _histogram(name: str, about: str, histogram: Histogram) -> list[str]:
    """All buckets are there, so that sums over processes and times can be made."""
    lines, below = _head(name, "histogram", about), 0
    for edge, count in zip(histogram.edges, histogram.counts, strict=False):
        below += count
        lines.append(f'{name}_bucket{{le="{edge}"}} {below}')
    lines.append(f'{name}_bucket{{le="+Inf"}} {histogram.count}')
    return [*lines, f"{name}_sum {histogram.sum}", f"{name}_count {histogram.count}"]
