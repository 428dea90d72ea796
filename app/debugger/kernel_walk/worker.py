"""The process that has torch: loads a trace's model, computes a request's keys and values into the trace's own blocks,
and walks attention through them.

    python -m app.debugger.kernel_walk.worker      one question per line on stdin, JSON; answers on stdout

    {"id": 1, "question": {...}}  ->  {"id": 1, "progress": "Importing torch …"} ... {"id": 1, "answer": {...}}
                                                                               or   {"id": 1, "error": "sentence"}

It ends when stdin does, that is with its parent, also in the middle of an answer.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

Tell = Callable[[str], None]


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    questions: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    walker: Any = None

    def say(**record: Any) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    while True:
        request = questions.get()
        number = request["id"]

        def tell(text: str, number: int = number) -> None:
            say(id=number, progress=text)

        try:
            if walker is None:
                tell("Importing torch …")
                from app.debugger.kernel_walk.walker import Walker

                walker = Walker()
            say(id=number, answer=walker.answer(request["question"], tell))
        except Exception as error:  # every failure is a sentence on the page; the worker goes on
            say(id=number, error=_sentence(error))


def _listen(questions: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        questions.put(json.loads(line))
    os._exit(0)


def _sentence(error: Exception) -> str:
    """Our own errors speak for themselves; another's type says where to look."""
    kind = type(error).__name__
    ours = type(error).__module__.split(".")[0] in ("engine", "app")
    return str(error) if ours else f"{kind}: {error}"


if __name__ == "__main__":
    main()
