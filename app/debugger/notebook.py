"""The block map of the page Step inside a notebook, from the same JavaScript.

    from app.debugger.notebook import show
    show("run.itrace", step=12)

The browser asks for parts by key, as on the page (`step_view/parts.py`). Forking needs the debugger itself: `prep app`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from anywidget import AnyWidget
from traitlets import Bytes

from app.debugger.runs import RecordedRun, open_run
from app.debugger.step_view import FOLDER, parts, script
from app.debugger.step_view.envelope import envelope
from prep_common.text import counted

_RENDER = """
const MARKUP = %s;
export default {
  render({ model, el }) {
    const place = el.attachShadow({ mode: "open" });
    place.innerHTML = MARKUP;
    const show = () => {
      const { buffer, byteOffset, byteLength } = model.get("data");
      const data = new Uint8Array(buffer, byteOffset, byteLength);
      return stepView({ parentElement: place, data, setTriggerValue: (_, value) => model.send(value) });
    };
    model.on("change:data", show);
    return show();
  },
};
"""


class StepView(AnyWidget):
    """One run in a notebook's cell. `step` is where the reader is."""

    data = Bytes().tag(sync=True)

    def __init__(self, run: RecordedRun, step: int = 0) -> None:
        self.run, self._cut = run, parts.sizes(run)
        self.step = max(0, min(step, run.index.num_steps - 1))
        self.text = (
            f"{run.title}: {counted(run.index.num_steps, 'step')}, {counted(run.index.num_blocks, 'block')}"
        )
        first = self._envelope(parts.first_keys(self.run, self._cut, self.step), 0)
        super().__init__(data=first, _esm=_module())
        self.on_msg(self._answer)

    def _envelope(self, wanted: list[str], sequence: int) -> bytes:
        contents = {
            name: part for name in wanted if (part := parts.make(self.run, self._cut, name)) is not None
        }
        head = {
            "run": self.run.run_id,
            "title": self.run.title,
            "live": False,
            "num_steps": self.run.index.num_steps,
            "num_blocks": self.run.index.num_blocks,
            "budget": self.run.index.header.get("config", {})
            .get("scheduler", {})
            .get("max_num_batched_tokens"),
            "window": self._cut.window,
            "chunk": self._cut.chunk,
            "answer": sequence,
            "jump": {"id": 1, "step": self.step, "request": None, "block": None},
        }
        return envelope(head, contents)

    def _answer(self, _: Any, said: dict[str, Any], __: Any) -> None:
        """Send the parts that the browser asks for."""
        self.step = int(said.get("step", self.step))
        if wanted := said.get("need"):
            self.data = self._envelope(list(wanted), int(said.get("sequence", 0)))

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**(data or {}), "text/plain": self.text}


def show(trace: str | Path, step: int = 0) -> StepView:
    """Return the block map of a trace: a file, or the name of a run that ships ("memory-pressure").

    Raises TraceError.
    """
    is_shipped = isinstance(trace, str) and not Path(trace).suffix
    return StepView(open_run(str(trace) if is_shipped else f"file:{Path(trace).resolve()}"), step)


@cache
def _module() -> str:
    style = (FOLDER / "step_view.css").read_text("utf-8")
    host = ":host { display: block; background: #0b1020; padding: 8px; }"
    markup = f"<style>{host}{style}</style>" + (FOLDER / "step_view.html").read_text("utf-8")
    return re.sub(r"^export default ", "", script(), flags=re.MULTILINE) + _RENDER % json.dumps(markup)
