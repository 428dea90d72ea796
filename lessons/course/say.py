"""Say it in 60 seconds: an answer in prose, tested by probes. Prose itself is not graded."""

from __future__ import annotations

import html
import math
from typing import Any

from lessons.course import progress
from lessons.course.lesson_files import Lesson, Probe
from quizzes.state import StateError


def is_right(probe: Probe, reply: str) -> bool:
    """Whether a reply is the probe's answer; numbers within its tolerance, units are ignored."""
    if isinstance(probe.answer, bool):
        return reply.strip().lower() in (("yes", "true", "y") if probe.answer else ("no", "false", "n"))
    if isinstance(probe.answer, str):
        return reply.strip().lower() == probe.answer.strip().lower()
    number = reply.replace(",", "").split()
    try:
        value = float(number[0].rstrip("%")) if number else math.nan
    except ValueError:
        return False
    return math.isclose(value, probe.answer, rel_tol=max(probe.tolerance, 1e-9), abs_tol=1e-12)


class SayIt:
    """The prompt, a text area and the probes."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson

    def answer(self, spoken: str, replies: list[str]) -> str:
        """Keep the prose, grade the probes, and return the result in words."""
        lines = []
        try:
            progress.record_prediction(self.lesson, "say", spoken)
        except StateError as error:
            lines = [f"Your answer is not saved: {error}. {error.next_step}"]
        probes = self.lesson.say.probes
        for probe, reply in zip(probes, replies, strict=True):
            right = is_right(probe, reply)
            unit = f" {probe.unit}" if probe.unit else ""
            lines.append(
                f"{'right' if right else 'wrong'}: {probe.q} {_plain(probe.answer)}{unit}"
                + ("" if right else f" (you said {reply.strip() or 'nothing'})")
            )
        good = sum(line.startswith("right") for line in lines)
        return "\n".join([*lines, f"{good} of {len(probes)} probes right"])

    @property
    def text(self) -> str:
        probes = [
            f"{number}. {probe.q}" + (f" ({' / '.join(probe.options)})" if probe.options else "")
            for number, probe in enumerate(self.lesson.say.probes, 1)
        ]
        return "\n".join([self.lesson.say.prompt, "Then test yourself:", *probes])

    def widget(self) -> Any:
        """Return the prompt, a place for prose, and a field per probe."""
        import ipywidgets

        spoken = ipywidgets.Textarea(
            placeholder="Say it aloud first, then write it down in about 150 words.",
            layout=ipywidgets.Layout(width="95%", height="8em"),
        )
        inputs = [
            ipywidgets.Dropdown(options=["", *probe.options]) if probe.options else ipywidgets.Text()
            for probe in self.lesson.say.probes
        ]
        button = ipywidgets.Button(description="Check the probes")
        result = ipywidgets.HTML()

        def check(_: Any) -> None:
            text = self.answer(spoken.value, [str(each.value) for each in inputs])
            result.value = f"<pre role='status'>{html.escape(text)}</pre>"

        button.on_click(check)
        probes = [
            ipywidgets.VBox([ipywidgets.HTML(html.escape(probe.q)), field])
            for probe, field in zip(self.lesson.say.probes, inputs, strict=True)
        ]
        prompt = ipywidgets.HTML(f"<b>{html.escape(self.lesson.say.prompt)}</b>")
        return ipywidgets.VBox([prompt, spoken, *probes, button, result])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {**(self.widget()._repr_mimebundle_() or {}), "text/plain": self.text}


def _plain(value: float | str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
