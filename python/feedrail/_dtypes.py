"""Arrays of plans and of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: An entry of a plan: `length` bytes at `offset` of shard number `shard` go to byte `dst` of the
#: buffer, or come from there. 24 bytes.
PLAN_DTYPE = np.dtype([("shard", "<u4"), ("length", "<u4"), ("offset", "<u8"), ("dst", "<u8")])

#: `status` of an entry whose bytes were read, but do not have the checksum that was asked for.
CHECKSUM_STATUS = 0x8010

#: The result of an entry. `status` is 0 if all of its bytes were read or written, else the status of
#: NVMe that a target answered, or with bit 15 set what happened on this side. `path` has bit 0 set
#: if bytes moved without a copy and bit 1 if some were copied in a bounce buffer. `attempts` is how
#: often the range was begun, `latency_us` the time from its first command to its end. 8 bytes.
RESULT_DTYPE = np.dtype(
    [("status", "<u2"), ("path", "u1"), ("attempts", "u1"), ("latency_us", "<u4")]
)


def make_plan(
    offsets: ArrayLike, lengths: ArrayLike, *, shard: ArrayLike = 0, dst: ArrayLike | None = None
) -> NDArray[np.void]:
    """A plan of ranges; `lengths` and `shard` may be one number for all.

    Without `dst` each range follows the one before it in the buffer.

    Raises:
        ValueError: a number is negative or too large for its field.
    """
    offsets = _unsigned("offsets", offsets, np.uint64)
    lengths = _unsigned("lengths", lengths, np.uint32)
    plan = np.zeros(np.broadcast(offsets, lengths).shape or (1,), PLAN_DTYPE)
    plan["offset"], plan["length"] = offsets, lengths
    plan["shard"] = _unsigned("shard", shard, np.uint32)
    if dst is None:
        ends = np.cumsum(plan["length"], dtype=np.uint64)
        plan["dst"][1:] = ends[:-1]
    else:
        plan["dst"] = _unsigned("dst", dst, np.uint64)
    return plan


#: Bytes of the longest range that an entry of `plan_of_range` has.
_ENTRY_BYTES = 1 << 30


def plan_of_range(shard: int, offset: int, count: int) -> NDArray[np.void]:
    """A plan of one range of any length.

    Raises:
        ValueError: `offset` is negative.
    """
    starts = range(0, count, _ENTRY_BYTES)
    lengths = [min(_ENTRY_BYTES, count - start) for start in starts]
    return make_plan([offset + start for start in starts], lengths, shard=shard)


def as_plan(plan: ArrayLike) -> NDArray[np.void]:
    """A C-contiguous array of `PLAN_DTYPE` with the entries of `plan`.

    Raises:
        TypeError: it has another dtype.
    """
    plan = np.asarray(plan)
    if plan.dtype != PLAN_DTYPE:
        raise TypeError(f"a plan has dtype feedrail.PLAN_DTYPE, not {plan.dtype}: see make_plan")
    return np.ascontiguousarray(plan)


def as_checksums(crc32c: ArrayLike, entries: int) -> bytes:
    """CRC-32C of the ranges of a plan, a little-endian `uint32` for each.

    Raises:
        ValueError: they are not as many, or one is no `uint32`.
    """
    checksums = _unsigned("crc32c", crc32c, np.uint32)
    if checksums.shape != (entries,):
        raise ValueError(f"crc32c has shape {checksums.shape}, for a plan of {entries} entries")
    return checksums.astype("<u4").tobytes()


def _unsigned(name: str, values: ArrayLike, kind: type[np.unsignedinteger]) -> NDArray[np.integer]:
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(kind)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} are integers, not {array.dtype}")
    if int(array.min()) < 0 or int(array.max()) > np.iinfo(kind).max:
        raise ValueError(f"{name} are from 0 to {np.iinfo(kind).max}")
    return array.astype(kind)
