"""Job queue: long computations run one after the other in a thread, with progress, a result and cancellation.

Work is a function of a progress callback. The callback raises if the job was cancelled, which ends the work.
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
from relmo.web.guard import INTERNAL_ERROR, one_line

Work = Callable[[Progress], dict[str, Any]]

MAX_WAITING, MAX_JOBS = 8, 32  # jobs in the queue, and jobs whose results are stored


class CancelledWork(Exception):
    """Raised inside the work of a cancelled job."""


@dataclass
class Job:
    """A piece of work, its state and its result."""

    name: str
    work: Work
    state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
    share: float = 0.0
    result: dict[str, Any] | None = None
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def on_progress(self, share: float) -> None:
        """Store the completed share; raise if the job was cancelled."""
        if self.stop.is_set():
            raise CancelledWork
        self.share = min(max(share, 0.0), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the job as JSON."""
        record: dict[str, Any] = {"job": self.name, "state": self.state, "share": round(self.share, 4)}
        if self.result is not None:
            record["result"] = self.result
        return record | ({"error": self.error} if self.error else {})


class Jobs:
    """Jobs of a server."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        self.queue: queue.Queue[Job | None] = queue.Queue()
        self.thread: threading.Thread | None = None

    def add(self, work: Work) -> Job:
        """Add a job to the queue; the oldest finished jobs are dropped."""
        with self.lock:
            finished = [job for job in self.jobs.values() if job.state not in ("waiting", "running")]
            if len(self.jobs) - len(finished) >= MAX_WAITING:
                raise SettingError("Too many jobs are waiting; try again later or cancel one.")
            job = Job(secrets.token_hex(8), work)
            self.jobs[job.name] = job
            for old in finished[: max(0, len(self.jobs) - MAX_JOBS)]:
                del self.jobs[old.name]
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="explorer work", daemon=True)
                self.thread.start()
            self.queue.put(job)
        return job

    def get(self, name: str) -> Job:
        """Return a job by name."""
        with self.lock:
            if name not in self.jobs:
                raise SettingError(f"Unknown job {name[:40]!r}; it may have expired.")
            return self.jobs[name]

    def cancel(self, name: str) -> Job:
        """Cancel a job: before it starts, or at its next progress report."""
        job = self.get(name)
        job.stop.set()
        with self.lock:
            if job.state == "waiting":
                job.state = "cancelled"
        return job

    def close(self) -> None:
        """Cancel all jobs and end the thread."""
        for name in list(self.jobs):
            self.cancel(name)
        self.queue.put(None)

    def _run(self) -> None:
        while (job := self.queue.get()) is not None:
            with self.lock:
                if job.state != "waiting":
                    continue
                job.state = "running"
            try:
                job.result = job.work(job.on_progress)
                job.state, job.share = "done", 1.0
            except CancelledWork:
                job.state = "cancelled"
            except RelmoError as error:
                job.state, job.error = "failed", one_line(str(error))
            except Exception:
                logging.getLogger("relmo.explorer").exception("A job failed.")
                job.state, job.error = "failed", INTERNAL_ERROR
