"""Exceptions of the package. Each is an `OSError`, and can be pickled and made of a message alone."""

from __future__ import annotations

import errno as errno_numbers
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray


class FeedrailError(OSError):
    """A call that failed, and what it was about as far as that is known.

    Attributes:
        shard: Number of the shard in `Source.shards`.
        offset: First byte of the range in the shard.
        length: Number of bytes of the range.
        tried: The targets that were asked, as `nqn at address:port`.
        status: Status of NVMe that a target answered: type in bits 10:8, code in bits 7:0.
        retryable: Whether the same call may succeed later, with nothing else changed.
    """

    shard: int | None
    offset: int | None
    length: int | None
    tried: tuple[str, ...]
    status: int | None
    retryable: bool
    #: `errno` where a call says none.
    _ERRNO: ClassVar[int | None] = None

    def __init__(
        self,
        message: str = "",
        *,
        errno: int | None = None,
        shard: int | None = None,
        offset: int | None = None,
        length: int | None = None,
        tried: tuple[str, ...] = (),
        status: int | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.errno = self._ERRNO if errno is None else errno
        self.shard = shard
        self.offset = offset
        self.length = length
        self.tried = tried
        self.status = status
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {**vars(self), "errno": self.errno}

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ReplicaWarning(UserWarning):
    """A target of a manifest that is not there, or a replica that has other bytes than its shard.

    Reads continue from other targets. `Source.shards[i].replicas` has the reasons.
    """


class RangeError(FeedrailError):
    """A range that is not within its shard."""


class DatasetChanged(FeedrailError):
    """A shard that is not the one that was opened: replaced, or of another size or generation."""


class TargetLost(FeedrailError, ConnectionError):
    """A target that cannot be reached, or did not come back in time.

    A write that it ends may have reached the target or not. As the error of `Source.flush` it may
    also say that a connection was lost after the writes, and that they have to be repeated.
    """


class NotFound(FeedrailError, FileNotFoundError):
    """A subsystem, namespace, shard or file that is not there."""

    _ERRNO = errno_numbers.ENOENT


class AccessDenied(FeedrailError, PermissionError):
    """A subsystem that does not allow this host; `ReadOnly`: a write to what is only read;
    `AuthenticationError`: a host or a target that has not proved who it is.
    """

    _ERRNO = errno_numbers.EACCES


class AuthenticationError(AccessDenied):
    """A target that this host could not prove itself to, or that did not prove itself.

    The message says what to do. A target requires it, or a key is wrong, missing or not readable.
    """


class ReadOnly(AccessDenied):
    """Bytes that cannot be written: the namespace is write protected, or the source is a manifest
    or files of this machine.

    Set `read_only = false` in the target's configuration, start its quick form with `--writable`, or
    end the protection with `feedrail target protect --undo`. The shards of a manifest are written one by one, each through
    the URL of its namespace.
    """

    _ERRNO = errno_numbers.EROFS


class IsDirectory(FeedrailError, IsADirectoryError):
    """The beginning of shards' names, where a shard is wanted."""

    _ERRNO = errno_numbers.EISDIR


class ReadTimeout(FeedrailError, TimeoutError):
    """A range that is read or written, or a flush, without a result before its deadline.

    A write that it ends may have reached the target or not.
    """


class ForkedHandleError(FeedrailError):
    """A buffer, pool or ticket that belongs to the process that this one was forked from."""


class ChecksumError(FeedrailError):
    """Bytes that do not have the checksum of the index or the manifest.

    `shard`, `offset` and `length` are those of the range, and `tried` names the target that the
    bytes came from.
    """


class FormatError(FeedrailError, ValueError):
    """Bytes that are not what their format says, or that it does not let be decoded safely.

    Attributes:
        sample: Number of the sample in the data set, if it is one of a batch.
        offset: The first byte in the shard that is wrong; in the sample if its place is not known.
    """

    sample: int | None

    def __init__(self, message: str = "", *, sample: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.sample = sample


class PoolFull(FeedrailError, BufferError):
    """A pool that does not have the memory free, or not in one piece."""


class BufferInUse(FeedrailError, BufferError):
    """Bytes of a buffer that another batch, which is not over, uses. Writes may share bytes."""


class BatchError(FeedrailError):
    """Ranges of a batch that failed, while others may have succeeded.

    If all failed for the same reason the exception is of that reason's class as well: `TargetLost`,
    `DatasetChanged` and so on can be caught as such.

    Attributes:
        indices: Numbers of the entries that failed, `int64`, shape `(failed,)`.
        results: A result of `RESULT_DTYPE` for each entry, shape `(entries,)`.
        errors: The exceptions of the first of them, by number of the entry; at most 16.
    """

    indices: NDArray[np.int64]
    results: NDArray[np.void]
    errors: Mapping[int, FeedrailError]


class BatchDatasetChanged(BatchError, DatasetChanged):
    """Ranges of a batch whose shards changed."""


class BatchTargetLost(BatchError, TargetLost):
    """Ranges of a batch whose targets were lost."""


class BatchNotFound(BatchError, NotFound):
    """Ranges of a batch whose subsystems were removed."""


class BatchAccessDenied(BatchError, AccessDenied):
    """Ranges of a batch whose subsystems no longer allow this host."""


class BatchAuthenticationError(BatchError, AuthenticationError):
    """Ranges of a batch whose targets no longer authenticate this host."""


class BatchReadOnly(BatchError, ReadOnly):
    """Ranges of a batch whose shards are write protected."""


class BatchReadTimeout(BatchError, ReadTimeout):
    """Ranges of a batch that had no result before the deadline."""


class BatchChecksumError(BatchError, ChecksumError):
    """Ranges of a batch that were read, but do not have their checksums."""


class BatchForkedHandleError(BatchError, ForkedHandleError):
    """Ranges of a batch that was in flight when this process was forked."""


_OF_ONE_REASON: dict[type[FeedrailError], type[BatchError]] = {
    DatasetChanged: BatchDatasetChanged,
    TargetLost: BatchTargetLost,
    NotFound: BatchNotFound,
    AccessDenied: BatchAccessDenied,
    AuthenticationError: BatchAuthenticationError,
    ReadOnly: BatchReadOnly,
    ReadTimeout: BatchReadTimeout,
    ChecksumError: BatchChecksumError,
    ForkedHandleError: BatchForkedHandleError,
}


def batch_error(
    results: NDArray[np.void], indices: NDArray[np.int64], errors: Mapping[int, FeedrailError]
) -> BatchError:
    """The exception for a batch, of the class of its errors where these have one."""
    first = errors[min(errors)]
    classes = {type(error) for error in errors.values()}
    kind = _OF_ONE_REASON.get(type(first), BatchError) if len(classes) == 1 else BatchError
    details: dict[str, Any] = {name: getattr(first, name) for name in _DETAILS}
    details["retryable"] = all(error.retryable for error in errors.values())
    error = kind(f"{len(indices)} of {len(results)} ranges failed, the first: {first}", **details)
    error.indices, error.results, error.errors = indices, results, errors
    return error


_DETAILS = ("errno", "shard", "offset", "length", "tried", "status")
