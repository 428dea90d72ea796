"""The one helper for interactive pictures: every control reaches the picture and the text."""

from __future__ import annotations

from typing import Any

import ipywidgets
import pytest

from lessons.course import plots
from lessons.course.lesson_files import find_lesson
from lessons.course.questions import InlineQuestion
from lessons.course.say import SayIt
from lessons.course.widgets import Explorer, Order


def draw(**values: Any) -> tuple[Any, str]:
    drawing, plot = plots.figure()
    plot.plot([0, values["size"]])
    return drawing, " ".join(f"{key}={value}" for key, value in values.items())


CONTROLS: dict[str, Any] = {
    "size": [8, 16],
    "count": (1, 9, 3),
    "share": (0.0, 1.0, 0.5),
    "name": "a",
    "on": True,
    "order": Order(["x", "y", "z"]),
}


@pytest.mark.parametrize("with_widgets", [False, True])
def test_every_control_changes_the_text(with_widgets: bool) -> None:
    explorer = Explorer("demo", draw, CONTROLS)
    if with_widgets:
        explorer.widget()
    assert explorer.text == "size=8 count=3 share=0.5 name=a on=True order=('x', 'y', 'z')"
    assert "count=9" in explorer.drive(count=9)
    assert "order=('z', 'y', 'x')" in explorer.drive(order=("z", "y", "x"))
    driven = explorer.drive_all()
    assert {"size=16", "size=8", "count=1", "count=9", "share=0.0", "share=1.0", "on=False"} <= driven.keys()
    assert "share=1.0" in driven["share=1.0"]
    with pytest.raises(KeyError, match="no control 'zoom'"):
        explorer.drive(zoom=1)


def test_a_picture_has_a_text_beside_it() -> None:
    bundle = Explorer("demo", draw, {"size": [8]})._repr_mimebundle_()
    assert bundle["text/plain"] == "size=8"
    assert bundle["image/png"] and "application/vnd.jupyter.widget-view+json" in bundle


def test_a_question_says_what_each_field_asks_for() -> None:
    question = InlineQuestion("scheduling.chunks_beside_decodes", seed=1)
    [_, *parts, _, button, area] = question.widget().children
    words = [part.children[0].value for part in parts]
    assert words == [
        "steps until its first token, that one included (steps)",
        "prompt tokens in the last of these steps (tokens)",
        "decode tokens that are skipped in these steps (tokens)",
    ]
    assert all(word in question.text for word in words)
    button.click()
    assert "the reply is empty" in area.value and "q to quit" not in area.value


def test_a_long_probe_is_not_cut_off() -> None:
    box = SayIt(find_lesson("07")).widget()
    shown = [part.children[0] for part in box.children if isinstance(part, ipywidgets.VBox)]
    assert [label.value for label in shown] == [probe.q for probe in find_lesson("07").say.probes]
    assert not any(isinstance(label, ipywidgets.Label) for label in shown), "a Label does not wrap"


@pytest.mark.parametrize("values", [[94.0, 243.0], [7.3, 92.1], [0.9, 700.0]])
def test_a_short_logarithmic_axis_has_more_than_one_label(values: list[float]) -> None:
    drawing, axes = plots.figure(yscale="log")
    axes.plot([1, 2], values)
    plots.png(drawing)
    low, high = axes.get_ylim()
    assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 2


def test_an_item_that_is_removed_goes_to_the_end() -> None:
    explorer = Explorer("order", lambda order: (None, "".join(order)), {"order": Order(["a", "b", "c"])})
    explorer.widget()
    (chips,) = explorer._inputs.values()
    chips.value = ["b", "c"]
    assert explorer.text == "bca" and list(chips.value) == ["b", "c", "a"]
    chips.value = []
    assert explorer.text == "abc" and list(chips.value) == ["a", "b", "c"]
