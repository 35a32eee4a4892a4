"""Layers in plain torch, the definition and its faster twins (`kernels/`). They know no settings, no text, no files."""

import os
from threading import Lock
from typing import Any
from weakref import WeakSet

_LOCKS: "WeakSet[Any]" = WeakSet()


def fork_safe_lock() -> Lock:
    """Return a lock that is open in every forked child; what it protects must recover from a change that broke off."""
    lock = Lock()
    _LOCKS.add(lock)
    return lock


def _renew_locks() -> None:
    for lock in _LOCKS:
        lock._at_fork_reinit()  # as the standard library does for its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
