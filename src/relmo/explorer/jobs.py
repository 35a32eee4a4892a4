"""Long work, one piece after the other in a thread of its own: with a share that is done, a result, and a way to stop.

Work is a function of a `progress` to be called with the share that is done; where its job was cancelled, that call
raises, and so the work ends.
"""

import logging
import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from relmo.errors import RelmoError, SettingError
from relmo.settings.arguments import Progress
from relmo.web.messages import OURS, one_line

Work = Callable[[Progress], dict[str, Any]]

WAITING, KEPT = 8, 32  # jobs that may wait; jobs whose results are kept


class CancelledWork(Exception):
    """The job was cancelled; no mistake of anybody's."""


@dataclass
class Job:
    """A piece of work and what has become of it."""

    name: str
    work: Work
    state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
    share: float = 0.0
    result: dict[str, Any] | None = None
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def tell(self, share: float) -> None:
        """Notes the share that is done; raises where the job was cancelled."""
        if self.stop.is_set():
            raise CancelledWork
        self.share = min(max(share, 0.0), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; with the result once it is done."""
        found: dict[str, Any] = {"job": self.name, "state": self.state, "share": round(self.share, 4)}
        if self.result is not None:
            found["result"] = self.result
        return found | ({"error": self.error} if self.error else {})


class Jobs:
    """The jobs of a server."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: OrderedDict[str, Job] = OrderedDict()
        self.queue: queue.Queue[Job | None] = queue.Queue()
        self.thread: threading.Thread | None = None

    def add(self, work: Work) -> Job:
        """A job that is done when those before it are."""
        with self.lock:
            if sum(job.state in ("waiting", "running") for job in self.all.values()) >= WAITING:
                raise SettingError("there is too much to do already; wait, or cancel something")
            job = Job(secrets.token_hex(8), work)
            self.all[job.name] = job
            over = [old for old in self.all.values() if old.state not in ("waiting", "running")]
            for old in over[: max(0, len(self.all) - KEPT)]:
                del self.all[old.name]
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="explorer work", daemon=True)
                self.thread.start()
            self.queue.put(job)
        return job

    def get(self, name: str) -> Job:
        """A job by its name."""
        with self.lock:
            if name not in self.all:
                raise SettingError(f"there is no job {name[:40]!r} (any more)")
            return self.all[name]

    def cancel(self, name: str) -> Job:
        """Stops a job as soon as it tells of its progress, or before it begins."""
        job = self.get(name)
        job.stop.set()
        with self.lock:
            if job.state == "waiting":
                job.state = "cancelled"
        return job

    def close(self) -> None:
        """Cancels everything, and lets the thread end."""
        for name in list(self.all):
            self.cancel(name)
        self.queue.put(None)

    def _run(self) -> None:
        while (job := self.queue.get()) is not None:
            with self.lock:
                if job.state != "waiting":
                    continue
                job.state = "running"
            try:
                job.result = job.work(job.tell)
                job.state, job.share = "done", 1.0
            except CancelledWork:
                job.state = "cancelled"
            except RelmoError as error:
                job.state, job.error = "failed", one_line(str(error))
            except Exception:
                logging.getLogger("relmo.explorer").exception("work failed")
                job.state, job.error = "failed", OURS
