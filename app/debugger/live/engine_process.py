"""The process of a live engine: `python -m app.debugger.live.engine_process`, started by the page Live.

    stdin    first line   {"settings": {...}, "workload": [[step, request id, wish], ...]}
             then         {"rewind": 41}
             end of file  the page's server is gone: so is this process
    stdout   {"event": "engine", "url": ...}       an engine is ready; its debug port does the rest
             {"event": "refused", "request_id": ..., "error": ...}
             {"event": "answer", "request_id": ..., "text": ...}
             {"event": "died", "error": ...}       in a step; its port stays open so that the last lines can be read
             {"event": "failed", "error": ...}     it could not be started
             {"event": "replayed", ...}            before the "engine" that it belongs to

Rewinding is replay, not undo: a new engine with the same settings is given the same requests and aborts before the same
steps. Steps are deterministic, so it comes to the same state; every record is compared with the first run's.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from typing import Any

from app.debugger.live.settings import Arrival, LiveSettings
from engine.config import ConfigError, EngineArgs
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.debug.port import DebugPort
from engine.engine_core import EngineCore
from engine.frontend.llm_engine import LLMEngine
from engine.trace.format import TraceError
from prep_common.parent_link import JsonLink

IDLE_S = 0.5


class LiveEngine:
    """One engine with its workload, from its start until it ends or is rewound."""

    def __init__(self, settings: LiveSettings, workload: list[Arrival], say: Any, wake: Any) -> None:
        self._say = say
        self._due = list(workload)
        self._wishes: dict[str, dict[str, Any]] = {arrival.request_id: arrival.wish for arrival in workload}
        """The wishes of all requests, including injected ones."""
        self._tokens: dict[str, list[int]] = {}
        self._is_over = False
        self.llm = LLMEngine.from_args(EngineArgs.create(**settings.engine_args()))
        core = self.llm.engine_core
        assert isinstance(core, EngineCore) and core.debug is not None
        self.core: EngineCore = core
        self.debug: DebugPort = core.debug
        for adapter in settings.adapters:
            self.llm.load_lora_adapter(adapter, adapter)
        self._read = self.debug.read_requests
        self.debug.read_requests = self._read_and_remember
        self.debug.control.on_command = wake

    def _read_and_remember(self, request_id: str, wish: dict[str, Any]) -> list[Request]:
        requests = self._read(request_id, wish)
        self._wishes[requests[0].request_id] = wish
        return requests

    def run_once(self) -> bool:
        """Add the requests that are due and run a step. Returns False if there is nothing to do."""
        if self._is_over:
            return False
        now = self.debug.num_steps
        if self._due and not self.core.scheduler.has_unfinished():
            now = max(now, self._due[0].step)
        while self._due and self._due[0].step <= now:
            self._add(self._due.pop(0).request_id)
        if not self.core.has_unfinished():
            return False
        self._step()
        return True

    def _step(self) -> None:
        for output in self.core.step():
            self._note(output)
        if self.core.is_dead and not self._is_over:
            self._is_over = True
            error = self.debug.feed.end or "the engine died"
            self._say(event="died", error=error[:1].upper() + error[1:])

    def _note(self, output: EngineCoreOutput) -> None:
        tokens = self._tokens.setdefault(output.request_id, [])
        tokens += output.new_token_ids
        if output.finish_reason is not None:
            del self._tokens[output.request_id]
            text = self.llm.tokenizer.decode(tokens).strip() if self.llm.tokenizer else ""
            self._say(event="answer", request_id=output.request_id, reason=output.finish_reason, text=text)

    def _add(self, request_id: str) -> None:
        try:
            for request in self._read(request_id, self._wishes[request_id]):
                self.core.add_request(request)
        except ValueError as error:
            self._say(event="refused", request_id=request_id, error=str(error))

    def records(self) -> list[dict[str, Any]]:
        """The trace so far."""
        lines: list[bytes] = []
        while part := self.debug.feed.read(len(lines))[0]:
            lines += part.splitlines()
        return [json.loads(line) for line in lines]

    def replay(
        self,
        last: int,
        records: list[dict[str, Any]],
        wishes: dict[str, dict[str, Any]],
        steps_per_s: float | None,
    ) -> int | None:
        """Replay an earlier engine's records up to step `last`, then pause, with the pace set for the steps that
        follow. Returns the first step that differs."""
        names: dict[int, str] = {}
        added, aborted = defaultdict(list), defaultdict(list)  # by the step before which it happened
        records = [record for record in records if record["t"] != "hdr" and record["i"] <= last]
        for record in records:
            if record["t"] == "add":
                names[record["q"]] = record["r"]
                added[record["i"]].append(record["r"])
            elif record["t"] == "abort":
                aborted[record["i"]].append(names[record["q"]])
        self._wishes = {**wishes, **self._wishes}
        self._due = [arrival for arrival in self._due if arrival.request_id not in names.values()]
        for step in range(last + 1):
            for name in added[step]:
                self._add(name)
            for output in self.core.abort(aborted[step]):
                self._note(output)
            self._step()
            if self._is_over:
                break
        self.debug.control.resume(steps_per_s)
        self.debug.control.pause("it was rewound to here")
        before, again = (
            [record for record in run if record["t"] == "step"] for run in (records, self.records())
        )
        pairs = zip(before, again, strict=False)
        differs = next((a["i"] for a, b in pairs if _decisions(a) != _decisions(b)), None)
        return len(again) if differs is None and len(again) < len(before) else differs

    def close(self) -> dict[str, dict[str, Any]]:
        """End the engine; returns its wishes for a replay."""
        self.llm.shutdown()
        return self._wishes


def _decisions(record: dict[str, Any]) -> dict[str, Any]:
    """A step's record without its times."""
    return {name: value for name, value in record.items() if name not in ("ts", "dur", "cnt")}


class Host:
    """The main loop: commands from the page, and steps of the engine in between."""

    def __init__(self) -> None:
        self._link = JsonLink(on_hang_up=lambda: None)  # `run` ends and closes the engine
        self._job = self._link.read()

    def say(self, **event: Any) -> None:
        self._link.write(event)

    def run(self) -> int:
        engine = self._make()
        if engine is None:
            return 1
        if self._job.get("paused"):
            engine.debug.control.pause("it was started so")
        else:
            engine.debug.control.resume(self._job.get("steps_per_s"))
        self.say(event="engine", url=engine.debug.url)
        is_busy = True
        while self._link.is_open:
            if order := self._link.read(0.0 if is_busy else IDLE_S):
                engine = self._rewind(engine, order["rewind"])
            is_busy = engine.run_once()
        engine.close()
        return 0

    def _make(self) -> LiveEngine | None:
        settings = LiveSettings(**self._job["settings"])
        workload = [Arrival(*arrival) for arrival in self._job["workload"]]
        try:
            return LiveEngine(settings, workload, self.say, self._link.wake)
        except (ConfigError, TraceError, ValueError, OSError) as error:
            self.say(event="failed", error=str(error))
        except Exception as error:  # a user's scheduler class may raise anything
            self.say(event="failed", error=f"{type(error).__name__}: {error}")
        return None

    def _rewind(self, engine: LiveEngine, step: int) -> LiveEngine:
        pace = engine.debug.control.describe()["steps_per_s"]
        records, wishes = engine.records(), engine.close()
        began = time.perf_counter()
        again = self._make()
        if again is None:
            return engine
        differs = again.replay(step, records, wishes, pace)
        seconds = round(time.perf_counter() - began, 2)
        self.say(event="replayed", step=step, seconds=seconds, differs_at=differs)
        self.say(event="engine", url=again.debug.url)
        return again


if __name__ == "__main__":
    os._exit(Host().run())  # immediately: threads of libraries must not keep the process alive
