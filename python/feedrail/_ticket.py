"""Batches under way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from feedrail._dtypes import RESULT_DTYPE
from feedrail._errors import FeedrailError, batch_error

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Literal

    from numpy.typing import NDArray

    from feedrail import _core

#: Exceptions that are made for one batch; all failures are in its results.
_ERRORS_AT_MOST = 16


class Ticket:
    """A batch under way. Dropping it cancels the ranges that have no result yet.

    It can be awaited in an asyncio event loop, and polled by its descriptor (`fileno`).
    """

    def __init__(self, ticket: _core.Ticket) -> None:
        self._ticket = ticket

    def done(self) -> bool:
        """Whether every range has its result."""
        return self._ticket.done()

    def wait(self, timeout: float | None = None) -> NDArray[np.void]:
        """Waits for all results, and returns one of `RESULT_DTYPE` for each entry of the plan.

        The batch goes on if the wait ends early, by `timeout` seconds or by a signal.

        Raises:
            BatchError: ranges failed.
            TimeoutError: there are not all results within `timeout` seconds.
        """
        if not self._ticket.wait(timeout):
            raise TimeoutError(f"the batch is not over within {timeout} s, and goes on")
        return self.results()

    def cancel(self) -> int:
        """Gives up the ranges without a result, and returns their number."""
        return self._ticket.cancel()

    def fileno(self) -> int:
        """A descriptor that is readable once every range has its result; the ticket closes it."""
        return self._ticket.fileno()

    def results(self, errors: Literal["raise", "return"] = "raise") -> NDArray[np.void]:
        """The results of a batch that is over, shape `(entries,)`, dtype `RESULT_DTYPE`.

        Raises:
            BatchError: ranges failed, and `errors` is `"raise"`.
        """
        results = np.frombuffer(self._ticket.results(), RESULT_DTYPE)
        if errors == "raise":
            failed = np.flatnonzero(results["status"])
            if len(failed):
                raise batch_error(results, failed, self._errors())
        return results

    def _errors(self) -> dict[int, FeedrailError]:
        return dict(self._ticket.failures(_ERRORS_AT_MOST))

    def __await__(self) -> Generator[object, None, NDArray[np.void]]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> NDArray[np.void]:
        if not self.done():
            loop, descriptor = asyncio.get_running_loop(), self.fileno()
            over: asyncio.Future[None] = loop.create_future()
            loop.add_reader(descriptor, lambda: over.done() or over.set_result(None))
            try:
                await over
            finally:
                loop.remove_reader(descriptor)
        return self.wait()
