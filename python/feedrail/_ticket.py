"""Batches in flight."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from feedrail._dtypes import CHECKSUM_STATUS, RESULT_DTYPE
from feedrail._errors import FeedrailError, ReadTimeout, batch_error

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Literal

    from numpy.typing import NDArray

    from feedrail import _core
    from feedrail._local import LocalTicket
    from feedrail._typing import Progress

#: Exceptions that are made for one batch; all failures are in its results.
_ERRORS_AT_MOST = 16


class Ticket:
    """A batch in flight. Dropping it cancels the ranges that have no result yet.

    It can be awaited in an asyncio event loop, and polled by its descriptor (`fileno`).
    """

    def __init__(self, ticket: _core.Ticket | LocalTicket, crc32c: bytes | None = None) -> None:
        self._ticket, self._crc32c = ticket, crc32c
        self._compared: dict[int, FeedrailError] | None = None

    def done(self) -> bool:
        """Whether every range has its result."""
        return self._ticket.done()

    def wait(
        self, timeout: float | None = None, *, progress: Progress | None = None
    ) -> NDArray[np.void]:
        """Waits for all results, and returns one of `RESULT_DTYPE` for each entry of the plan.

        The batch continues if the wait ends early, by `timeout` seconds, a signal, or an exception
        of `progress`. `progress` is as for `Source.read_many`.

        Raises:
            BatchError: ranges failed, or do not have their checksums.
            ReadTimeout: there are not all results within `timeout` seconds.
        """
        if not self._ticket.wait(timeout, progress):
            message = f"the batch has not ended within {timeout} s, and continues"
            raise ReadTimeout(message, retryable=True)
        return self.results()

    def cancel(self) -> int:
        """Gives up the ranges without a result, and returns how many ended immediately.

        The others end when their target has answered: it may use the buffer until then. A cancelled
        write may have reached the target or not.
        """
        return self._ticket.cancel()

    def fileno(self) -> int:
        """A descriptor that is readable once every range has its result; the ticket closes it."""
        return self._ticket.fileno()

    def results(self, errors: Literal["raise", "return"] = "raise") -> NDArray[np.void]:
        """The results of a batch that has ended, shape `(entries,)`, dtype `RESULT_DTYPE`.

        The first call compares checksums, if the batch was submitted with them, and must be before
        anything else is written to the buffer.

        Raises:
            BatchError: ranges failed or do not have their checksums, and `errors` is `"raise"`.
        """
        results = np.frombuffer(bytearray(self._ticket.results()), RESULT_DTYPE)
        mismatches = self._mismatches()
        if mismatches:
            results["status"][list(mismatches)] = CHECKSUM_STATUS
        if errors == "raise":
            failed = np.flatnonzero(results["status"])
            if len(failed):
                raise batch_error(results, failed, self.exceptions(_ERRORS_AT_MOST))
        return results

    def exceptions(self, at_most: int | None = None) -> dict[int, FeedrailError]:
        """The exceptions of the ranges that failed, by number of the entry."""
        at_most = sys.maxsize if at_most is None else at_most
        failed = dict(self._ticket.failures(at_most))
        mismatched = dict(list(self._mismatches().items())[:at_most])
        return dict(sorted({**failed, **mismatched}.items())[:at_most])

    def _mismatches(self) -> dict[int, FeedrailError]:
        """The exceptions of the ranges without their checksums; none before the batch has ended."""
        if self._crc32c is None or not self.done():
            return {}
        if self._compared is None:
            self._compared = dict(self._ticket.mismatches(self._crc32c))
        return self._compared

    def __await__(self) -> Generator[object, None, NDArray[np.void]]:
        yield from self.over().__await__()
        return self.wait()

    async def over(self) -> None:
        """Returns in an asyncio event loop once every range has its result, failed or not."""
        import asyncio  # It takes 50 ms, and few need it.

        loop = asyncio.get_running_loop()
        while not self.done():
            descriptor, readable = self.fileno(), asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
