"""Route prompts: to two plain engines in turn, or to a prefill engine and then a decode engine.

    co-located       prompt -> engine 0 or 1, in turn -> tokens
    disaggregated    prompt -> prefill engine, max_tokens = 1, {do_remote_decode: True}
                            -> its kv_transfer_params -> decode engine, the same prompt -> tokens

A router never sees KV: the engines move it between themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.disagg.engine_process import Ask, EngineProcess, News


class CoLocated:
    """Every engine does prefill and decode; requests go to them in turn."""

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        self.engines = engines
        self._next = 0

    def submit(self, ask: Ask) -> None:
        self.engines[self._next].write(ask)
        self._next = (self._next + 1) % len(self.engines)

    def on_news(self, engine: EngineProcess, news: News) -> News | None:
        return news


class Disaggregated:
    """One engine computes prompts, the other decodes."""

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        self.engines = engines
        self.prefill, self.decode = engines
        self._prefilling: dict[str, Ask] = {}

    def submit(self, ask: Ask) -> None:
        self._prefilling[ask.name] = ask
        self.prefill.write(replace(ask, max_tokens=1, kv_transfer_params={"do_remote_decode": True}))

    def on_news(self, engine: EngineProcess, news: News) -> News | None:
        if engine is self.decode or news.error:
            return news
        if news.finished:
            ask = self._prefilling.pop(news.name)
            # None if the prompt has no full block: the decode engine then computes all of it.
            self.decode.write(replace(ask, kv_transfer_params=news.kv_transfer_params))
        return None


Router = CoLocated | Disaggregated
