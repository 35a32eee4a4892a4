"""Locks that do not stay locked in a forked child.

A child has only the thread that forked. A lock that another thread held at that moment would never be released there,
so it is made new. What the lock protects must be able to recover from a change that was broken off.
"""

import os
from threading import Lock
from typing import Any
from weakref import WeakSet

_LOCKS: "WeakSet[Any]" = WeakSet()


def fork_safe_lock() -> Lock:
    """Return a lock that is open in every forked child."""
    lock = Lock()
    _LOCKS.add(lock)
    return lock


def _renew_locks() -> None:
    for lock in _LOCKS:
        lock._at_fork_reinit()  # as the standard library does for its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
