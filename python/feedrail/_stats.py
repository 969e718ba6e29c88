"""Counters of a source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Stats:
    """What a process has read of a source since it connected.

    Attributes:
        batches: Plans that were accepted.
        stall_seconds: Seconds that threads waited for batches, the sum of all threads.
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
        providers: Which RDMA provider is used for each local address, and why.
    """

    batches: int
    stall_seconds: float
    commands: int
    ranges: int
    ranges_failed: int
    direct_bytes: int
    bounced_bytes: int
    retries: int
    reconnects: int
    connections_lost: int
    protocol_violations: int
    timeouts: int
    aborts: int
    providers: tuple[str, ...]

    @classmethod
    def of(cls, counters: dict[str, Any], providers: list[str]) -> Stats:
        """From the counters that `_core.Session` has."""
        return cls(**counters, providers=tuple(providers))

    def to_prometheus(self) -> str:
        """The counters in the text format of Prometheus, names beginning with `feedrail_`."""
        lines = []
        for field in fields(self):
            if field.name != "providers":
                name = f"feedrail_{field.name}_total"
                lines += [f"# TYPE {name} counter", f"{name} {getattr(self, field.name)}"]
        return "\n".join(lines) + "\n"
