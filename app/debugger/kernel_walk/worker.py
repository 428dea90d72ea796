"""The worker process with torch: load a trace's model, compute a request's keys and values into the trace's blocks, and
walk attention through them.

    python -m app.debugger.kernel_walk.worker      one question per line on stdin, JSON; answers on stdout

    {"id": 1, "question": {...}}  ->  {"id": 1, "progress": "Importing torch …"} ... {"id": 1, "answer": {...}}
                                                                               or   {"id": 1, "error": "sentence"}

It ends when stdin does, that is with its parent, also in the middle of an answer.
"""

from __future__ import annotations

from typing import Any

from prep_common.parent_link import JsonLink


def main() -> None:
    link = JsonLink()
    walker: Any = None
    while True:
        request = link.read()
        number = request["id"]

        def tell(text: str, number: int = number) -> None:
            link.write({"id": number, "progress": text})

        try:
            if walker is None:
                tell("Importing torch …")
                from app.debugger.kernel_walk.walker import Walker

                walker = Walker()
            link.write({"id": number, "answer": walker.answer(request["question"], tell)})
        except Exception as error:  # every failure is shown on the page; the worker continues
            link.write({"id": number, "error": _sentence(error)})


def _sentence(error: Exception) -> str:
    """An error as a sentence; with its type if it is not one of prep's."""
    kind = type(error).__name__
    ours = type(error).__module__.split(".")[0] in ("engine", "app")
    return str(error) if ours else f"{kind}: {error}"


if __name__ == "__main__":
    main()
