"""A file with one JSON line per request: a log, a workload to replay, and metrics for CloudWatch.

    {"arrival": 1795438075.6, "prompt": 57, "output": 32, "prefix": 81, "prefix_len": 48, "priority": 0,
     "request_id": "…", "model": "shop", "finish_reason": "length", "num_preemptions": 0,
     "QueueWaitMs": 0.4, "TTFTMs": 9.1, "E2EMs": 210.0, "PrefixCacheHit": 0.84, "_aws": {…}}

`prep load --replay` and `prep sim` read the first line. Prompts are not written unless asked for; `salt` tells apart
requests with different cache salts, and is absent without one. Lines are in the
embedded metric format of CloudWatch, which any log shipper can send; other tools ignore `_aws`. The first request of a
prefix does not know yet that others will share it, so a replay has one miss more per prefix.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from engine.frontend.parallel_sampling import SubmittedRequest
from engine.outputs import RequestOutput
from engine.server.ended_requests import EndedRequests

logger = logging.getLogger(__name__)

UNITS = {
    "QueueWaitMs": "Milliseconds",
    "TTFTMs": "Milliseconds",
    "E2EMs": "Milliseconds",
    "PrefixCacheHit": "None",
}
NAMESPACE = "prep"


class RequestLog(EndedRequests):
    """A StatLogger that writes requests as they end. A disk that is full costs lines, not requests."""

    def __init__(
        self, path: Path, model: str, block_size: int, decode: Callable[[list[int]], str] | None = None
    ) -> None:
        """Append to the file. decode: of the tokenizer, to write prompts. Raises OSError if it cannot be written."""
        super().__init__()
        self._file = path.open("a", encoding="utf-8", errors="replace", buffering=1)
        self._model, self._block_size, self._decode = model, block_size, decode
        self._num_lost = 0

    def ended(self, submitted: SubmittedRequest, output: RequestOutput) -> None:
        self._write(self.entry(submitted, output))

    def close(self) -> None:
        self._file.close()

    def entry(self, submitted: SubmittedRequest, output: RequestOutput) -> dict[str, Any]:
        """Return the line of a request that has ended."""
        metrics, prompt = output.metrics, output.prompt_token_ids
        adapter = submitted.lora_request
        values = {"E2EMs": 1000 * ((metrics.finished_time or time.monotonic()) - metrics.arrival_time)}
        if metrics.scheduled_ts:
            values["QueueWaitMs"] = 1000 * metrics.queued_time
        if (
            metrics.num_generation_tokens
        ):  # also of a request whose client left before the engine told its times
            values["TTFTMs"] = 1000 * metrics.first_token_latency
            values["PrefixCacheHit"] = output.num_cached_tokens / len(prompt)
        entry: dict[str, Any] = {
            "arrival": round(self._epoch + submitted.arrival_time, 6),
            "prompt": len(prompt),
            "output": metrics.num_generation_tokens,
            "prefix": crc32(repr(prompt[: self._block_size]).encode()) & 0x7FFF,
            "prefix_len": output.num_cached_tokens,
            "priority": submitted.children[0].priority,
            "request_id": output.request_id,
            "model": self._model if adapter is None else adapter.lora_name,
            "finish_reason": output.outputs[0].finish_reason if output.outputs else "abort",
            "num_preemptions": metrics.num_preemptions,
            **{name: round(value, 3) for name, value in values.items()},
        }
        if (salt := submitted.children[0].cache_salt) is not None:
            entry["salt"] = crc32(salt.encode()) & 0x7FFF
        if self._decode is not None:
            entry["prompt_text"] = self._decode(list(prompt))
        listed = [{"Name": name, "Unit": UNITS[name]} for name in values]
        scope = {"Namespace": NAMESPACE, "Dimensions": [["model"]], "Metrics": listed}
        entry["_aws"] = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [scope]}
        return entry

    def _write(self, entry: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")
        except OSError as error:
            self._num_lost += 1
            if self._num_lost == 1:
                logger.error(
                    "the request log cannot be written: %s; its lines are lost until it can", error.strerror
                )
