"""Start, ask and end the worker process. The page polls a `Job`, so it never waits for torch."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from app.debugger.kernel_walk.question import Question
from prep_common.child_process import JsonChild, ProcessEnded

LIMIT_S = 120.0
"""Maximum seconds for an answer, including the import of torch and loading the model."""
KEPT_ANSWERS = 64
WORKER = "app.debugger.kernel_walk.worker"


@dataclass
class Job:
    """A question in progress. The thread that reads the worker writes its fields, the page reads them."""

    began: float
    progress: str = "Starting a process for the model …"
    answer: dict[str, Any] | None = None
    error: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_done(self) -> bool:
        return self.done.is_set()

    def end(self, answer: dict[str, Any] | None, error: str) -> None:
        """End the job; only the first call counts, because a worker killed for a timeout ends it twice."""
        if not self.is_done:
            self.answer, self.error = answer, error
            self.done.set()


class WalkClient:
    """One worker for all tabs of this server. The first question starts it; it ends with this process."""

    def __init__(self, command: str | Sequence[str] = WORKER, limit_s: float = LIMIT_S) -> None:
        self._command, self._limit_s = command, limit_s
        self._lock = threading.Lock()
        self._process: JsonChild | None = None
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        """Jobs by question, the newest last."""
        self._waiting: dict[int, Job] = {}
        """Jobs of the running worker, by number."""
        self._number = 0

    def ask(self, question: Question) -> Job:
        """The job of a question; results are kept, also failures."""
        key = _key(question)
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(time.monotonic())
                if self._process is not None:
                    job.progress = "Asking the model …"
                self._send(job, question)
            self._jobs.move_to_end(key)
            while len(self._jobs) > KEPT_ANSWERS:
                self._jobs.popitem(last=False)
            return job

    def forget(self, question: Question) -> None:
        """Forget a result, so that the question is asked again."""
        with self._lock:
            self._jobs.pop(_key(question), None)

    def check_time(self, job: Job) -> None:
        """End a worker that exceeds the time limit; the next question starts a new one."""
        if not job.is_done and time.monotonic() - job.began > self._limit_s:
            job.end(None, f"There was no answer within {self._limit_s:g} s, so the process was ended")
            self.close()

    def close(self) -> None:
        """End the worker, if there is one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _send(self, job: Job, question: Question) -> None:
        self._number += 1
        name = "The process for the model"
        offline = {"HF_HUB_OFFLINE": "1"}  # a page must not download anything
        try:
            if self._process is None or not self._process.is_running:
                self._process = JsonChild(self._command, name=name, environment=offline, grace_s=0.0)
                self._waiting = {}
                threading.Thread(target=_read, args=(self._process, self._waiting), daemon=True).start()
            self._waiting[self._number] = job
            self._process.write({"id": self._number, "question": asdict(question)})
        except (OSError, ProcessEnded) as error:
            job.end(None, f"{name} cannot be reached: {error}")


def _key(question: Question) -> str:
    return json.dumps(asdict(question), sort_keys=True)


def _read(process: JsonChild, waiting: dict[int, Job]) -> None:
    """Write the worker's answers into its jobs; when the worker ends, the open jobs end too."""
    try:
        for record in process.records():
            job = waiting[record["id"]]
            if "progress" in record:
                job.progress = record["progress"]
            else:
                job.end(record.get("answer"), record.get("error", ""))
                del waiting[record["id"]]
    except ProcessEnded as ended:
        for job in waiting.values():
            job.end(None, str(ended))
