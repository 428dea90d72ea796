"""The engine core with its frontend, used by LLM and AsyncLLM.

Source: vLLM v1/engine/llm_engine.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from engine.config import EngineArgs
from engine.core.request import Request
from engine.core.stats import StepStats
from engine.engine_core import EngineCore
from engine.exec.core_process import CoreProcess
from engine.exec.dp import DataParallelCore
from engine.frontend.input_processor import InputProcessor, InvalidRequestError, Prompt
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.frontend.stat_logger import StatLogger
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.turns import AT_ONCE, PORTION, QUEUED, TOKENS
from engine.lora.request import LoRARegistry, LoRARequest
from engine.models.hf_config import find_model
from engine.outputs import RequestOutput
from engine.resolve import resolve
from engine.sampling_params import SamplingParams
from prep_common.paths import expanded

logger = logging.getLogger(__name__)

PROMPTS = ("messages", "prompt", "prompt_token_ids")
OPTIONS = ("request_id", "max_tokens", "temperature", "seed", "ignore_eos", "priority", "lora")


AnyCore = EngineCore | CoreProcess | DataParallelCore


class LLMEngine:
    """Requests in, outputs out, one step at a time. Not thread-safe: one thread steps it.

    `input_processor` may be used from any thread: it does not use the core.
    """

    def __init__(self, engine_core: AnyCore, tokenizer: Tokenizer | None) -> None:
        self.engine_core = engine_core
        self.tokenizer = tokenizer
        self.loras = None if engine_core.config.lora is None else LoRARegistry()
        """Adapters that requests may name."""
        self.input_processor = InputProcessor(engine_core.config, tokenizer, self.loras)
        self.output_processor = OutputProcessor(tokenizer)
        self.stat_loggers: list[StatLogger] = []
        if isinstance(engine_core, EngineCore) and engine_core.debug is not None:
            engine_core.debug.read_requests = self.read_requests

    @classmethod
    def from_args(cls, args: EngineArgs, *, own_process: bool = False) -> LLMEngine:
        """own_process: run the core in a process of its own; data-parallel replicas always have one."""
        config = resolve(args)
        tokenizer = load_tokenizer(args)
        kind: type[AnyCore] = CoreProcess if own_process else EngineCore
        if config.parallel.data_parallel_size > 1:
            kind = DataParallelCore
        return cls(kind.create(config, tokenizer), tokenizer)

    def add(self, submitted: SubmittedRequest) -> None:
        """Queue a request with all its completions, or raise and queue none of them."""
        submitted.children, submitted.rest = [], iter(submitted.children)
        for _ in self.add_in_parts(submitted):
            pass

    def add_in_parts(self, submitted: SubmittedRequest) -> Iterator[int]:
        """Queue a request, and yield the cost after some completions: steps may run between them (`BetweenSteps`).

        It ends early if the request is aborted meanwhile. Raises as `add` does; then what was queued is aborted.
        """
        if submitted.request_id in self.output_processor:
            raise InvalidRequestError(
                f"a request with id {submitted.request_id!r} is not finished yet; use another id"
            )
        key = None
        if submitted.lora_request is not None:  # its weights may have been replaced since it was processed
            key = self.input_processor.lora_key(submitted.lora_request)
        cost = QUEUED + len(submitted.prompt_token_ids) // TOKENS
        at_once = max(1, min(AT_ONCE, PORTION // cost))
        while children := list(islice(submitted.rest, at_once)):
            for index, child in enumerate(children):
                child.lora_key = key
                try:
                    self.engine_core.add_request(child)
                except ValueError:
                    self.engine_core.abort([earlier.request_id for earlier in children[:index]])
                    self.abort([submitted.request_id])
                    raise
            submitted.children += children
            self.output_processor.add(submitted)
            self._tell(lambda stat_logger: stat_logger.add(submitted))
            yield len(children) * cost
            if not self.output_processor.is_open(submitted):
                return

    def step(self) -> list[RequestOutput]:
        """Run one step of the core and return its outputs. Raises EngineDeadError if the engine is dead."""
        processor = self.output_processor
        try:
            core_outputs = self.engine_core.step()
        except KeyboardInterrupt:  # in the middle of a step: the core has dropped all its requests
            processor.clear()
            raise
        self.engine_core.check_alive()  # the engine may have died in this step
        processor.update(core_outputs)
        stopped = self.engine_core.abort(processor.take_stopped())
        processor.update(stopped)
        outputs = processor.take_outputs()
        if self.stat_loggers:
            stats, when = self._last_step()
            self._tell(lambda stat_logger: stat_logger.step(stats, when, core_outputs, outputs))
            if stopped:
                self._tell_levels([])
        return outputs

    def _tell_levels(self, outputs: list[RequestOutput]) -> None:
        """Tell every logger of an abort, with the levels after it; a core in another process tells them later."""
        core = self.engine_core
        stats = core.levels() if isinstance(core, EngineCore) else None
        self._tell(lambda stat_logger: stat_logger.step(stats, time.monotonic(), [], outputs))

    def _tell(self, event: Callable[[StatLogger], None]) -> None:
        """Tell every logger of an event. One that fails is removed: statistics must not end the engine."""
        for stat_logger in list(self.stat_loggers):
            try:
                event(stat_logger)
            except Exception:
                self.stat_loggers.remove(stat_logger)
                logger.exception("%s failed and gets no more events", type(stat_logger).__name__)

    def _last_step(self) -> tuple[StepStats | None, float]:
        """Return the figures of the last step, None if the core returned without one, and when it ended."""
        core = self.engine_core
        if isinstance(core, EngineCore):
            return core.scheduler.stats, time.monotonic()
        done = core.last_step if isinstance(core, CoreProcess) else None
        return (None, time.monotonic()) if done is None else (done.stats, done.when)

    def wake(self) -> None:
        """Let a `step` that waits for another process return now. Callable from any thread."""
        if isinstance(self.engine_core, CoreProcess):
            self.engine_core.wake()

    @property
    def ran_step(self) -> bool:
        """Whether the last call of `step` ran one; a core in another process may only have been woken."""
        return not isinstance(self.engine_core, CoreProcess) or self.engine_core.last_step is not None

    @property
    def has_own_process(self) -> bool:
        return isinstance(self.engine_core, CoreProcess)

    def need_process(self) -> CoreProcess:
        """Return the core's process. Raises InvalidRequestError if it has none and thus cannot sleep."""
        if not isinstance(self.engine_core, CoreProcess):
            raise InvalidRequestError("only an engine in a process of its own can sleep")
        return self.engine_core

    @property
    def is_asleep(self) -> bool:
        return isinstance(self.engine_core, CoreProcess) and self.engine_core.is_asleep

    def sleep(self) -> None:
        """Give the memory of weights and KV cache back until `wake_up`. Raises ValueError with unfinished requests."""
        self.need_process().sleep()

    def wake_up(self) -> None:
        """Load the model and the adapters again."""
        self.need_process().wake_up()

    def kill(self) -> None:
        """Kill the process of the core, so that who waits for it goes on. Callable from any thread."""
        if isinstance(self.engine_core, CoreProcess):
            self.engine_core.kill()

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests with their tokens so far. Ignore unknown and finished ids."""
        return [output for _, outputs in self.abort_in_parts(request_ids) for output in outputs]

    def abort_in_parts(self, request_ids: Iterable[str]) -> Iterator[tuple[int, list[RequestOutput]]]:
        """End requests, and yield the cost and the outputs after some completions: steps may run between them.

        A request whose completions are not all queued ends with those that are.
        """
        processor = self.output_processor
        core_ids = processor.close(request_ids)
        for start in range(0, max(1, len(core_ids)), PORTION):
            aborted = self.engine_core.abort(core_ids[start : start + PORTION])
            processor.update(aborted)
            outputs = processor.take_outputs()
            self._tell_levels(outputs)
            yield QUEUED + len(aborted), outputs

    def add_lora(self, request: LoRARequest) -> bool:
        """Load an adapter. Return False if it is loaded already; raise InvalidRequestError if it cannot be served.

        With `load_inplace` the new weights replace those of a loaded adapter: unfinished requests finish with the old
        weights, whose cached prefixes are never read again.
        """
        if not isinstance(request, LoRARequest):
            raise InvalidRequestError(f"lora_request must be a LoRARequest, got {request!r}")
        loras = self._need_loras()
        if loras.key(request) is not None:
            return False
        key = loras.new_key(request)
        self.engine_core.load_lora(key, str(find_adapter(request.lora_path)))
        before = loras.add(replace(request, load_inplace=False), key)
        if before is not None:
            self.engine_core.unload_lora(before)
        return True

    def remove_lora(self, lora_name: str) -> None:
        """Unload an adapter; unfinished requests still finish with it. Raises InvalidRequestError if unknown."""
        self.engine_core.unload_lora(self._need_loras().remove(lora_name))

    def find_lora(self, lora_name: str) -> LoRARequest:
        """Return the loaded adapter of this name. Raises InvalidRequestError if there is none."""
        return self._need_loras().find(lora_name)

    def load_lora_adapter(self, lora_name: str, lora_path: str, *, load_inplace: bool = False) -> LoRARequest:
        """Load an adapter by name and folder. The name must be new, unless `load_inplace` replaces it."""
        loras = self._need_loras()
        known = loras.find(lora_name) if lora_name in loras else None
        if known is not None and not load_inplace:
            raise InvalidRequestError(
                f"adapter {lora_name!r} is loaded already, from {known.lora_path}; unload it or use load_inplace=True"
            )
        int_id = loras.next_int_id() if known is None else known.lora_int_id
        self.add_lora(LoRARequest(lora_name, int_id, lora_path, load_inplace))
        return loras.find(lora_name)

    def list_loras(self) -> list[LoRARequest]:
        """Return the loaded adapters, oldest first."""
        return self._need_loras().requests()

    def is_loaded(self, request: LoRARequest) -> bool:
        """Whether `generate` may use this adapter at once. Callable from any thread."""
        is_request = isinstance(request, LoRARequest) and not request.load_inplace
        return is_request and self.loras is not None and request.lora_name in self.loras

    def _need_loras(self) -> LoRARegistry:
        if self.loras is None:
            raise InvalidRequestError("this engine takes no adapters: start it with enable_lora=True")
        return self.loras

    def read_requests(self, request_id: str, wish: dict[str, Any]) -> list[Request]:
        """Turn a request of the debug port, such as `{"prompt": "..."}`, into requests of the core.

        A prompt is text, token ids or chat messages; OPTIONS may be beside it. Its tokens are seen in the trace only.
        The default seed is 0, so that it does not change the seeds that the engine draws for other requests.
        """
        unknown = ", ".join(sorted(wish.keys() - {*PROMPTS, *OPTIONS}))
        given = [name for name in PROMPTS if name in wish]
        if unknown or len(given) != 1:
            problem = f"it does not know {unknown}" if unknown else f"got {given or 'none'}"
            raise InvalidRequestError(
                f"a request has one of {', '.join(PROMPTS)}, and may have {', '.join(OPTIONS)}; {problem}"
            )
        prompt: Prompt = wish[given[0]]
        if given[0] == "messages":
            prompt = self.input_processor.chat_prompt(wish["messages"])
        params = SamplingParams(
            max_tokens=wish.get("max_tokens", 32),
            temperature=wish.get("temperature", 0.0),
            seed=wish.get("seed", 0),
            ignore_eos=bool(wish.get("ignore_eos", False)),
        )
        lora = self.find_lora(wish["lora"]) if wish.get("lora") else None
        options: dict[str, Any] = {"lora_request": lora, "priority": wish.get("priority", 0)}
        return self.input_processor.process(request_id, prompt, params, **options).children

    def has_unfinished(self) -> bool:
        return self.engine_core.has_unfinished()

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Return False, and change nothing, while requests hold blocks."""
        return self.engine_core.reset_prefix_cache()

    def shutdown(self) -> None:
        self.engine_core.shutdown()


def find_adapter(path: str) -> Path:
    """Return the folder of an adapter, given as the name of a shipped one or as a path."""
    from engine.zoo.registry import MODELS

    try:
        folder = expanded(path)
    except ValueError as error:
        raise InvalidRequestError(f"lora_path {error}") from None
    shipped = MODELS / path
    is_name = Path(path).name == path and shipped.is_dir() and not folder.is_dir()
    return shipped if is_name else folder


def load_tokenizer(args: EngineArgs) -> Tokenizer | None:
    """Return the tokenizer of `args.tokenizer` or of the model; None with `skip_tokenizer_init`."""
    if args.skip_tokenizer_init:
        return None
    return Tokenizer.from_folder(find_model(replace(args, model=args.tokenizer or args.model)))
