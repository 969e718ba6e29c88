"""Counters of checkpoint stores, and the times of a save of many ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoreReplicaStats:
    """What one replica of a store has saved and read.

    Attributes:
        url: URL that the store was opened with.
        saves: Saves that were committed on it.
        saved_nbytes: Bytes of their entries, those that other processes wrote included.
        save_seconds: Seconds from the beginning of each of these saves to the end of its commit.
        reads: Reads of entries that ended without an error.
        read_nbytes: Bytes that they returned.
        read_seconds: Seconds that they took; of concurrent ones the sum.
        failed_reads: Reads that found damaged bytes or failed at the target. The store then
            read the bytes from the next current replica, if it had one.
    """

    url: str
    saves: int
    saved_nbytes: int
    save_seconds: float
    reads: int
    read_nbytes: int
    read_seconds: float
    failed_reads: int


@dataclass(frozen=True)
class CheckpointStats:
    """What a store has saved and read since it was opened; `refresh` and `repair` open it again.

    Attributes:
        replicas: Counters of each replica, in the order of the URLs.
    """

    replicas: tuple[StoreReplicaStats, ...]

    @property
    def saves(self) -> int:
        """Saves that were committed."""
        return max(one.saves for one in self.replicas)

    @property
    def saved_nbytes(self) -> int:
        """Bytes of the committed saves, each counted once for all replicas."""
        return max(one.saved_nbytes for one in self.replicas)

    @property
    def save_seconds(self) -> float:
        """Seconds from the beginning of each save to the end of its commit."""
        return max(one.save_seconds for one in self.replicas)

    @property
    def read_nbytes(self) -> int:
        """Bytes of entries that were read, from any replica."""
        return sum(one.read_nbytes for one in self.replicas)

    @property
    def read_seconds(self) -> float:
        """Seconds that reads took, the sum of all replicas and threads."""
        return sum(one.read_seconds for one in self.replicas)

    @property
    def failed_reads(self) -> int:
        """Reads that failed on a replica; each was tried on the next one, if there was one."""
        return sum(one.failed_reads for one in self.replicas)

    @property
    def saved_bytes_per_second(self) -> float:
        """Rate of the saves; 0 if there were none."""
        return self.saved_nbytes / self.save_seconds if self.save_seconds > 0 else 0.0

    @property
    def read_bytes_per_second(self) -> float:
        """Rate of the reads; 0 if there were none."""
        return self.read_nbytes / self.read_seconds if self.read_seconds > 0 else 0.0


@dataclass(frozen=True)
class SaveStats:
    """Times of a save of many ranks that was committed.

    Attributes:
        name: Name of the checkpoint.
        nbytes: Bytes of all tensors and objects.
        seconds: Seconds on the coordinator, from the reservation of the space to the end of the
            commit.
        rank_seconds: Seconds that each rank took to write and flush its tensors.
    """

    name: str
    nbytes: int
    seconds: float
    rank_seconds: tuple[float, ...]

    @property
    def slowest_rank(self) -> int:
        """The rank that took longest."""
        return self.rank_seconds.index(max(self.rank_seconds))

    @property
    def bytes_per_second(self) -> float:
        """Rate of the save."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0
