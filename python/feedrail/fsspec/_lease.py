"""Leases of checkpoint volumes, which all files that a process writes share."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from feedrail._checkpoint_errors import CommitUnknown, Leased, LeaseLost, NoQuorum
from feedrail._checkpoints import CheckpointStore
from feedrail._errors import FeedrailError, TargetLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedrail._core import EntryFile

#: Seconds for which a lease is kept after its last use, and those between looks at the time.
_LINGER, _LOOK = 1.0, 0.2
#: Seconds after which other writers get a turn once no file is open, and the pause for it, which is
#: longer than those between their attempts.
_TURN, _PAUSE = 30.0, 0.75
#: Errors after which a store is of no use.
_BROKEN = (CommitUnknown, LeaseLost, NoQuorum, TargetLost)


class Lease:
    """The lease of a volume in this process: taken by its first use, given back after the last."""

    def __init__(self, url: str) -> None:
        self._url = url
        #: Held while a store is opened or closed.
        self._changing = threading.Lock()
        #: A file may be dropped, and abort, at any time.
        self._lock = threading.RLock()
        self._held: HeldLease | None = None
        #: How often the volume was changed through it.
        self.changes = 0

    @classmethod
    def of(cls, url: str) -> Lease:
        """The lease of a volume."""
        with _leases_lock:
            return _leases.setdefault(url, cls(url))

    def take(self, options: dict[str, Any]) -> HeldLease:
        """Takes the lease if this process does not have it, and waits for other writers.

        `HeldLease.give_back` ends the use.

        Args:
            options: Those of the store, if one is opened.

        Raises:
            Leased: another writer has had it all the time.
            FeedrailError: as for `CheckpointStore`.
        """
        # Another thread may wait for longer.
        if not self._changing.acquire(timeout=options["wait"] + _PAUSE):
            raise Leased("another writer has the lease, and this process waits for it", retryable=True)
        try:
            with self._lock:
                held = self._held
                if held is not None and (held.users or not held.is_turn_over()):
                    held.users += 1
                    return held
                self._held = None
            if held is not None:
                held.close()
                time.sleep(_PAUSE)
            held = HeldLease(self, CheckpointStore(self._url, **options))
            with self._lock:
                self._held = held
            threading.Thread(target=self._keep, args=(held,), daemon=True).start()
            return held
        finally:
            self._changing.release()

    @contextlib.contextmanager
    def use(self, options: dict[str, Any]) -> Iterator[CheckpointStore]:
        """The store for one change."""
        held = self.take(options)
        with held.watch():
            try:
                yield held.store
            finally:
                self.changes += 1
                held.give_back()

    def release(self, held: HeldLease) -> None:
        """Notes that one use has ended."""
        with self._lock:
            held.users -= 1
            held.used = time.monotonic()

    def forget(self, held: HeldLease) -> None:
        """Has the next use open the volume, and take the lease, again."""
        with self._lock:
            if self._held is held:
                self._held = None

    def _keep(self, held: HeldLease) -> None:
        """Renews a lease that is in use, and gives it back when it no longer is."""
        while not self._has_let_go(held):
            time.sleep(_LOOK)
            held.renew()

    def _has_let_go(self, held: HeldLease) -> bool:
        with self._lock:
            is_forgotten, is_used = self._held is not held, held.users > 0
        if is_forgotten:
            # It is closed while the next use may wait for its lease.
            if not is_used:
                held.close()
            return not is_used
        with self._changing:
            with self._lock:
                is_idle = not held.users and time.monotonic() - held.used > _LINGER
                if self._held is not held or not is_idle:
                    return False
                self._held = None
            held.close()
            return True


class HeldLease:
    """A store that has the lease, and how many use it.

    Attributes:
        used: When the last use ended.
    """

    def __init__(self, lease: Lease, store: CheckpointStore) -> None:
        self.lease, self.store = lease, store
        #: Files that are written.
        self.files: weakref.WeakSet[EntryFile] = weakref.WeakSet()
        self.users = 1
        self.used = self._since = time.monotonic()
        # Processes of multiprocessing end without what `atexit` runs.
        self._at_exit = Finalize(None, self._close, exitpriority=0)

    def is_turn_over(self) -> bool:
        """Whether other writers are due."""
        return time.monotonic() - self._since > _TURN

    def give_back(self) -> None:
        """Ends one use."""
        self.lease.release(self)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Has later uses open the volume again if the block fails since the store is of no use."""
        try:
            yield
        except _BROKEN:
            self.lease.forget(self)
            raise

    def renew(self) -> None:
        """Renews the lease if half of it has passed. A failure shows in the next use."""
        with contextlib.suppress(FeedrailError, ValueError):
            self.store.renew()

    def close(self) -> None:
        """Gives the lease back. Closing twice is no error."""
        self._at_exit.cancel()
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(FeedrailError), self.store:
            for file in list(self.files):
                file.abort()


_leases: weakref.WeakValueDictionary[str, Lease] = weakref.WeakValueDictionary()
_leases_lock = threading.Lock()


def _forget_all() -> None:
    """In a child: its parent has the leases, and a thread of it may have held the lock."""
    global _leases, _leases_lock
    _leases, _leases_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget_all)
