"""`prep generate`: complete prompts with any model the engine can load."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape

from app.cli import terminal
from app.cli.engine_options import Lora, engine_options, open_llm, show_bar, speed_line
from app.cli.options import argument, option, option_groups
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from engine.zoo.shop import is_shop_model, open_shop
from prep_common.text import counted
from prep_common.text_file import UnreadableFile, read_text

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.lora.request import LoRARequest


@dataclass(frozen=True)
class SamplingOptions:
    """Fields of `SamplingParams` as options."""

    n: Annotated[int, option("Completions of each prompt.", "-n")] = 1
    best_of: Annotated[int | None, option("Compute this many completions, keep the n likeliest.")] = None
    temperature: Annotated[float, option("0 takes the most likely token.")] = 0.0
    top_p: Annotated[float, option("Keep the most likely tokens up to this probability.")] = 1.0
    top_k: Annotated[int, option("Keep this many of the most likely tokens; 0: all.")] = 0
    min_p: Annotated[float, option("Drop tokens below this share of the likeliest.")] = 0.0
    repetition_penalty: Annotated[float, option("Above 1: penalise tokens seen so far.")] = 1.0
    presence_penalty: Annotated[float, option("Subtracted once a token was generated.")] = 0.0
    frequency_penalty: Annotated[float, option("Subtracted for each time it was.")] = 0.0
    seed: Annotated[int | None, option("Same seed, same tokens.")] = None
    max_tokens: Annotated[int, option("Maximum tokens to generate.")] = 128
    min_tokens: Annotated[int, option("Minimum tokens to generate.")] = 0
    stop: Annotated[list[str] | None, option("End at this text; repeatable.")] = None
    ignore_eos: Annotated[bool, option("Continue after the end-of-sequence token.", "--ignore-eos")] = False
    logprobs: Annotated[int | None, option("Show this many alternatives per token.")] = None


@dataclass(frozen=True)
class StructureOptions:
    """Constraints on the output; at most one may be given."""

    json_schema: Annotated[Path | None, option("File with a JSON schema that the output satisfies.")] = None
    regex: Annotated[str | None, option("Regular expression that the output matches.")] = None
    choice: Annotated[list[str] | None, option("The output is one of these; repeatable.")] = None

    def structured_outputs(self) -> StructuredOutputsParams | None:
        """Return the value of `SamplingParams.structured_outputs`."""
        given: dict[str, Any] = {"json": self.json_schema, "regex": self.regex, "choice": self.choice}
        chosen = {name: value for name, value in given.items() if value}
        if len(chosen) > 1:
            raise terminal.Problem(
                "--json-schema, --regex and --choice exclude each other", "give one of them"
            )
        if self.json_schema is None:
            return StructuredOutputsParams(**chosen) if chosen else None
        try:  # whitespace disabled: a small model may generate it without end
            schema = read_text(self.json_schema)
            return StructuredOutputsParams(json=schema, disable_any_whitespace=True)
        except UnreadableFile as error:
            raise terminal.Problem(
                f"--json-schema: {error}", "--json-schema must name a file with a JSON schema"
            ) from None
        except ValueError as error:
            raise terminal.Problem(
                f"--json-schema {self.json_schema} {str(error).removeprefix('json ')}",
                "--json-schema must name a file with a JSON schema",
            ) from None


@engine_options
@option_groups
def generate(
    model: Annotated[
        str, argument("A shipped model (prep zoo list), a folder, or a Hugging Face id.")
    ] = "shop",
    prompt: Annotated[
        list[str] | None, option("Repeatable; without it, stdin is the prompt.", "--prompt", "-p")
    ] = None,
    chat: Annotated[bool, option("Wrap prompts in the model's chat template.", "--chat")] = False,
    system: Annotated[
        str | None, option("With --chat: system prompt; by default a shop's notes for shop models.")
    ] = None,
    beam_width: Annotated[int | None, option("Beam search: keep this many continuations.")] = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    structure: StructureOptions = StructureOptions(),  # noqa: B008 - frozen
    lora: Lora = Lora(),  # noqa: B008 - frozen
    json: Annotated[bool, option("Print RequestOutputs as JSON.", "--json")] = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Complete prompts: text on stdout, everything else on stderr.

    The options from --tokenizer on set up the engine and have vLLM's names.

    \b
    Examples:
      prep generate shop --chat --prompt "What do you recommend?"
      prep generate shop --chat -p "What do you recommend?" --temperature 0.8 -n 2 --logprobs 3 --json
      prep generate shop --chat -p "What do you recommend?" --beam-width 4
      prep generate shop --chat -p "What is the price of Honest Fox?" --regex "Honest Fox costs [0-9]{3} yen\\."
      prep generate shop --chat -p "How much is shipping?" --lora shop-lora-support
      echo "Once upon a time" | prep generate path/to/checkpoint --max-tokens 40
      prep generate Qwen/Qwen3-0.6B --load-format dummy --prompt x --num-gpu-blocks-override 64
    """
    _check(sampling, beam_width, engine)
    params = SamplingParams(**asdict(sampling), structured_outputs=structure.structured_outputs())
    prompts = prompt or [_from_stdin()]
    is_single = len(prompts) == params.n == 1 and params.best_of is None
    with open_llm(model, engine, lora) as llm:
        adapter = lora.load(llm)
        if chat:
            prompts = [_as_chat(llm, model, system, text) for text in prompts]
        if beam_width is not None:
            _beam_search(llm, prompts, beam_width, sampling.max_tokens, sampling.ignore_eos, as_json=json)
        elif is_single and not json and terminal.is_live(terminal.out()):
            _stream(llm, prompts[0], params, adapter)
        else:
            _complete(llm, prompts, params, adapter, as_json=json)
    if json:
        return
    if model == "shop" and not chat:
        terminal.next_command("prep chat shop", "chat with the model: it was trained on conversations")
    else:
        terminal.next_command(
            f"prep generate {model} --trace run.itrace …", "then: prep trace info run.itrace"
        )


def _check(sampling: SamplingOptions, beam_width: int | None, engine: dict[str, Any]) -> None:
    """Refuse combinations that the engine would explain by its own names."""
    if beam_width is None:
        if sampling.temperature == 0 and sampling.n > 1:
            raise terminal.Problem(
                "-n: n must be 1 when temperature is 0, where all completions are equal",
                "add --temperature 0.8",
            )
        return
    if sampling.temperature:
        raise terminal.Problem(
            "--beam-width is deterministic and takes no temperature", "leave out --temperature"
        )
    most = engine.get("max_logprobs", 20)
    if 0 <= most < 2 * beam_width:
        raise terminal.Problem(
            f"--beam-width must be at most {most // 2}, got {beam_width}: it needs two log-probabilities per beam, "
            f"and --max-logprobs is {most}",
            f"add --max-logprobs {2 * beam_width}",
        )


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise terminal.Problem("no prompt", 'prep generate shop --chat --prompt "What do you recommend?"')
    return sys.stdin.read().removesuffix("\n")


def _as_chat(llm: LLM, model: str, system: str | None, text: str) -> Any:
    if system is None and is_shop_model(model):
        system = open_shop().system
    opening = [{"role": "system", "content": system}] if system else []
    return llm.llm_engine.input_processor.chat_prompt([*opening, {"role": "user", "content": text}])


def _stream(llm: LLM, prompt: Any, params: SamplingParams, adapter: LoRARequest | None) -> None:
    start, num_tokens, output, completion = time.perf_counter(), 0, None, None
    pieces: list[CompletionOutput] = []
    for output in llm.stream(prompt, params, lora_request=adapter):
        completion = output.outputs[0]
        pieces.append(completion)
        num_tokens += len(completion.token_ids)
        print(completion.text, end="", flush=True)
    print()
    _raise_if_failed(output)
    if params.logprobs is not None:
        _show_logprobs([position for piece in pieces for position in piece.logprobs or []])
    if output is not None:
        terminal.err().print(f"[dim]{speed_line(output, num_tokens, time.perf_counter() - start)}[/]")


def _complete(
    llm: LLM, prompts: list[Any], params: SamplingParams, adapter: LoRARequest | None, *, as_json: bool
) -> None:
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=show_bar(), lora_request=adapter)
    seconds = time.perf_counter() - start
    if as_json:
        terminal.print_json([asdict(output) for output in outputs])
    for number, output in enumerate(outputs, start=1):
        if not as_json:
            _show(output, number, len(outputs))
        _raise_if_failed(output)
    if not as_json:
        num_tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
        line = f"{counted(num_tokens, 'token')} in {seconds:.2f} s ({num_tokens / seconds:,.0f} tok/s)"
        if len(outputs) == 1:
            line = speed_line(outputs[0], num_tokens, seconds)
        terminal.err().print(f"[dim]{line}[/]")


def _beam_search(
    llm: LLM, prompts: list[Any], width: int, max_tokens: int, ignore_eos: bool, *, as_json: bool
) -> None:
    from engine.frontend.beam_search import BeamSearchParams

    outputs = llm.beam_search(prompts, BeamSearchParams(width, max_tokens, ignore_eos))
    if as_json:
        return terminal.print_json([asdict(output) for output in outputs])
    for number, output in enumerate(outputs, start=1):
        for rank, beam in enumerate(output.sequences, start=1):
            terminal.err().print(
                f"[dim]-- prompt {number}/{len(outputs)}, beam {rank}, log-probability {beam.cum_logprob:.2f}[/]"
            )
            print(beam.text)
        memory = output.memory
        terminal.err().print(
            f"[dim]most blocks at once: {memory.peak_blocks_cow} shared, {memory.peak_blocks_unshared} unshared; "
            f"copies on write in V0's design: {memory.cow_copies}; tokens computed {memory.num_computed_tokens}, "
            f"from the prefix cache {memory.num_cached_tokens}[/]"
        )


def _show(output: RequestOutput, number: int, total: int) -> None:
    for completion in output.outputs:
        if total > 1 or len(output.outputs) > 1:
            which = f"prompt {number}/{total}, completion {completion.index + 1}/{len(output.outputs)}"
            terminal.err().print(f"[dim]-- {which}[/]")
        print(completion.text)
        if completion.logprobs is not None:
            _show_logprobs(completion.logprobs)


def _show_logprobs(positions: list[Any]) -> None:
    """Print a row for each token: rank and log-probability, then the alternatives."""
    table = terminal.table("token", "rank", "logprob", "alternatives", left=("alternatives",))
    for position in positions:
        (_, chosen), *others = position.items()
        alternatives = "  ".join(f"{other.decoded_token!r} {other.logprob:.2f}" for _, other in others)
        token = escape(repr(chosen.decoded_token))
        table.add_row(token, str(chosen.rank), f"{chosen.logprob:.3f}", escape(alternatives))
    terminal.err().print(table)


def _raise_if_failed(output: RequestOutput | None) -> None:
    if output is not None and output.error:
        is_pattern = output.error.startswith("structured_outputs: regex")
        raise terminal.Problem(output.error, code=terminal.USAGE if is_pattern else terminal.CHECKS_FAILED)
