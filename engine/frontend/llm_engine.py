"""The core with its frontend: the one synchronous engine that LLM and AsyncLLM both drive.

Source: vLLM v1/engine/llm_engine.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.config import EngineArgs
from engine.engine_core import EngineCore
from engine.exec.dp import DataParallelCore
from engine.frontend.input_processor import InputProcessor, InvalidRequestError
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.frontend.tokenizer import Tokenizer
from engine.models.hf_config import find_model
from engine.outputs import RequestOutput
from engine.resolve import check_args


class LLMEngine:
    """Requests in, outputs out, one step at a time. Not thread-safe: one thread steps it.

    `input_processor` may be used from any thread: it never touches the core.
    """

    def __init__(self, engine_core: EngineCore | DataParallelCore, tokenizer: Tokenizer | None) -> None:
        self.engine_core = engine_core
        self.tokenizer = tokenizer
        self.input_processor = InputProcessor(engine_core.config, tokenizer)
        self.output_processor = OutputProcessor(tokenizer)

    @classmethod
    def from_args(cls, args: EngineArgs) -> LLMEngine:
        tokenizer = load_tokenizer(args)  # first: it fails in milliseconds, weights load in minutes
        check_args(args)
        if args.data_parallel_size > 1:
            return cls(DataParallelCore.from_args(args, tokenizer), tokenizer)
        return cls(EngineCore.from_args(args, tokenizer), tokenizer)

    def add(self, submitted: SubmittedRequest) -> None:
        """Queue a request with all its completions, or raise and queue none of them."""
        if submitted.request_id in self.output_processor:
            raise InvalidRequestError(
                f"a request with id {submitted.request_id!r} is not finished yet; use another id"
            )
        added: list[str] = []
        try:
            for child in submitted.children:
                self.engine_core.add_request(child)
                added.append(child.request_id)
        except ValueError:
            self.engine_core.abort(added)
            raise
        self.output_processor.add(submitted)

    def step(self) -> list[RequestOutput]:
        """Run one step of the core; return what callers should see of it, or raise EngineDeadError."""
        processor = self.output_processor
        try:
            core_outputs = self.engine_core.step()
        except KeyboardInterrupt:  # in the middle of a step: the core has dropped all its requests
            processor.clear()
            raise
        self.engine_core.check_alive()  # if this step was its last, that is for everyone to know
        processor.update(core_outputs)
        processor.update(self.engine_core.abort(processor.take_stopped()))
        return processor.take_outputs()

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests now, with what they have. Unknown and finished ids are ignored."""
        processor = self.output_processor
        processor.update(self.engine_core.abort(processor.core_ids(request_ids)))
        return processor.take_outputs()

    def has_unfinished(self) -> bool:
        return self.engine_core.has_unfinished()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with nothing changed, while requests hold blocks."""
        return self.engine_core.reset_prefix_cache()

    def shutdown(self) -> None:
        self.engine_core.shutdown()


def load_tokenizer(args: EngineArgs) -> Tokenizer | None:
    """The tokenizer of `args.tokenizer` or else of the model; None with `skip_tokenizer_init`."""
    if args.skip_tokenizer_init:
        return None
    return Tokenizer.from_folder(find_model(replace(args, model=args.tokenizer or args.model)))
