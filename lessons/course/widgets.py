"""One helper for every interactive picture: controls, a picture and the result in words.

    explorer = explore("block-size", draw, block_size=[8, 16, 32], prompt=(1, 200, 33))
    explorer.drive(block_size=32)          what a user would do; returns the text

`draw(**values)` is pure and returns (figure or None, text). Tests drive every control to its ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lessons.course.plots import png

Draw = Callable[..., tuple[Any, str]]


@dataclass(frozen=True)
class Order:
    """A control whose items the reader drags into an order."""

    items: tuple[str, ...]

    def __init__(self, items: list[str] | tuple[str, ...]) -> None:
        object.__setattr__(self, "items", tuple(items))


Control = list[Any] | tuple[Any, ...] | str | bool | Order


class Explorer:
    """A picture with controls. Displays as widgets in a notebook, and as picture and text where there are none."""

    def __init__(self, name: str, draw: Draw, controls: dict[str, Control]) -> None:
        self.name = name
        self._draw = draw
        self.controls = controls
        self.values = {key: _start(control) for key, control in controls.items()}
        self.text = ""
        self.picture: bytes | None = None
        self._inputs: dict[str, Any] = {}
        self._area: Any = None
        self._update()

    def drive(self, **values: Any) -> str:
        """Set controls as a user would, and return the text. Raises KeyError for an unknown control."""
        for key, value in values.items():
            if key not in self.controls:
                raise KeyError(f"{self.name} has no control {key!r}; it has {', '.join(self.controls)}")
            if key in self._inputs:
                self._inputs[key].value = list(value) if isinstance(self.controls[key], Order) else value
            else:
                self.values[key] = value
        if not self._inputs:
            self._update()
        return self.text

    def drive_all(self) -> dict[str, str]:
        """Drive each control through its ends and back; return "control=value" -> text."""
        found = {}
        for key, control in self.controls.items():
            for value in _ends(control):
                found[f"{key}={value}"] = self.drive(**{key: value})
            self.drive(**{key: _start(control)})
        return found

    def _update(self) -> None:
        drawing, self.text = self._draw(**self.values)
        self.picture = None if drawing is None else png(drawing)

    def widget(self) -> Any:
        """Return the ipywidgets box."""
        import ipywidgets

        style = {"description_width": "9em"}
        layout = ipywidgets.Layout(width="26em")
        for key, control in self.controls.items():
            self._inputs[key] = _input(key, control, style, layout)
            self._inputs[key].observe(self._changed, names="value")
        self._area = ipywidgets.VBox()
        self._refresh()
        controls = ipywidgets.VBox(list(self._inputs.values()))
        return ipywidgets.VBox([controls, self._area])

    def _changed(self, _: Any) -> None:
        for key, control in self.controls.items():
            value = self._inputs[key].value
            if isinstance(control, Order):  # an item that the reader removes goes to the end
                value = (*value, *(item for item in control.items if item not in value))
                if len(self._inputs[key].value) < len(value):
                    self._inputs[key].value = list(value)
            self.values[key] = value
        self._update()
        self._refresh()

    def _refresh(self) -> None:
        import ipywidgets

        shown: list[Any] = []
        if self.picture is not None:
            shown.append(ipywidgets.Image(value=self.picture, format="png"))
        text = ipywidgets.HTML(f"<pre role='status' aria-live='polite'>{_html(self.text)}</pre>")
        self._area.children = (*shown, text)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show the widget; where widgets are unavailable, the picture, and the text in any case."""
        bundle: dict[str, Any] = {"text/plain": self.text}
        if self.picture is not None:
            import base64

            bundle["image/png"] = base64.b64encode(self.picture).decode()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                view = self.widget()._repr_mimebundle_()
        except ImportError:
            return bundle
        return {**(view or {}), **bundle}


def _start(control: Control) -> Any:
    if isinstance(control, Order):
        return control.items
    if isinstance(control, tuple):
        return control[2]
    return control[0] if isinstance(control, list) else control


def _ends(control: Control) -> list[Any]:
    if isinstance(control, Order):
        return [tuple(reversed(control.items))]
    if isinstance(control, tuple):
        return [control[0], control[1]]
    if isinstance(control, list):
        return [control[-1], control[0]]
    return [not control] if isinstance(control, bool) else [control]


def _input(key: str, control: Control, style: dict[str, str], layout: Any) -> Any:
    import ipywidgets

    options = {"description": key.replace("_", " "), "style": style, "layout": layout}
    if isinstance(control, Order):
        return ipywidgets.TagsInput(
            value=list(control.items), allowed_tags=list(control.items), allow_duplicates=False
        )
    if isinstance(control, tuple):
        low, high, start = control[:3]
        kind = ipywidgets.FloatSlider if isinstance(start, float) else ipywidgets.IntSlider
        step = control[3] if len(control) > 3 else (high - low) / 100 if isinstance(start, float) else 1
        return kind(value=start, min=low, max=high, step=step, continuous_update=False, **options)
    if isinstance(control, list):
        return ipywidgets.Dropdown(options=control, value=control[0], **options)
    if isinstance(control, bool):
        return ipywidgets.Checkbox(value=control, **options)
    return ipywidgets.Text(value=control, continuous_update=False, **options)


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
