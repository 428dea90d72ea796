"""`prep chat`: a streamed conversation with a model; the prefix cache holds the earlier turns."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape

from app.cli import terminal
from app.cli.engine_options import Lora, engine_options, open_llm, speed_line
from app.cli.options import argument, option, option_groups
from engine.sampling_params import SamplingParams
from engine.zoo.shop import is_shop_model, open_shop

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.lora.request import LoRARequest
HELP = "/reset clear the conversation · /system show or set the system prompt · /help · /quit (or Ctrl-D)"


@engine_options
@option_groups
def chat(
    model: Annotated[
        str, argument("A shipped model (prep zoo list), a folder, or a Hugging Face id.")
    ] = "shop",
    system: Annotated[str | None, option("System prompt.")] = None,
    shop: Annotated[int, option("For shop models: number of the shop.")] = 0,
    language: Annotated[str, option("Language of the shop: en or ja.")] = "en",
    temperature: Annotated[float, option("0 takes the most likely token.")] = 0.0,
    top_p: Annotated[float, option("Keep the most likely tokens up to this probability.")] = 1.0,
    seed: Annotated[int | None, option("Same seed, same tokens.")] = None,
    max_tokens: Annotated[int, option("Maximum tokens of one answer.")] = 256,
    lora: Lora = Lora(),  # noqa: B008 - frozen
    *,
    engine: dict[str, Any],
) -> None:
    """Chat with a model. Ctrl-C stops an answer, and quits at the prompt. Questions may be piped in.

    \b
    Examples:
      prep chat shop
      prep chat shop --language ja
      prep chat shop --lora shop-lora-recommend
      printf 'What do you recommend?\\nWho wrote it?\\n' | prep chat shop
    """
    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
    questions: list[str] = []
    if is_shop_model(model) and system is None:
        system, questions = shop_notes(shop, language)
    with open_llm(model, engine, lora) as llm:
        converse(model, Conversation(llm, params, system, lora.load(llm)), questions)
    terminal.next_command("prep demo", "see the engine at work")


def shop_notes(shop: int, language: str) -> tuple[str, list[str]]:
    """Return a shop's notes, the system prompt of its conversations, and questions to ask."""
    if language not in ("en", "ja"):
        raise terminal.Problem(f"--language must be en or ja, got {language!r}")
    notes = open_shop(shop, language=language)
    return notes.system, notes.questions


def converse(name: str, conversation: Conversation, questions: list[str]) -> None:
    """Greet, then answer lines until the input ends."""
    _greet(name, conversation.system, questions)
    while (line := _read_line()) is not None:
        if line.startswith("/"):
            if not _command(conversation, line):
                break
        elif line:
            conversation.ask(line)


@dataclass
class Conversation:
    """Messages so far. Each question sends all of them; the KV of the earlier ones is cached."""

    llm: LLM
    params: SamplingParams
    system: str | None
    adapter: LoRARequest | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, question: str) -> None:
        """Stream the answer. Ctrl-C keeps the text so far."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*self.messages, {"role": "user", "content": question}]
        prompt = self.llm.llm_engine.input_processor.chat_prompt([*opening, *asked])
        start, answer, num_tokens, output = time.perf_counter(), "", 0, None
        try:
            for output in self.llm.stream(prompt, self.params, lora_request=self.adapter):
                delta = output.outputs[0]
                answer += delta.text
                num_tokens += len(delta.token_ids)
                print(delta.text, end="", flush=True)
        except KeyboardInterrupt:
            terminal.err().print(" [yellow](stopped)[/]", end="")
        print(flush=True)
        if output is not None:
            if output.error:
                raise RuntimeError(output.error)
            terminal.err().print(f"[dim]{speed_line(output, num_tokens, time.perf_counter() - start)}[/]")
        self.messages = [*asked, {"role": "assistant", "content": answer}]


def _greet(model: str, system: str | None, questions: list[str]) -> None:
    console = terminal.err()
    if system and questions:
        console.print("[dim]The model knows only these notes:[/]")
        console.print(f"[dim]{escape(system)}[/]")
        console.print(
            "\n[dim]Ask, for example:[/] " + escape(questions[0]) + " [dim]or[/] " + escape(questions[2])
        )
    console.print(f"[dim]{model} · {HELP}[/]")


def _read_line() -> str | None:
    """Return the next question; None at the end of the input or after Ctrl-C."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if line:
            terminal.note(f"[bold cyan]> [/]{line.rstrip()}")
        return line.strip() if line else None
    try:
        import readline  # noqa: F401 - arrow keys and history in input()
    except ImportError:
        pass
    try:
        return input("\n> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def _command(conversation: Conversation, line: str) -> bool:
    """Run a line that starts with a slash. Return False to end the chat."""
    console = terminal.err()
    name, _, argument = line.partition(" ")
    if name in ("/quit", "/exit", "/q"):
        return False
    if name == "/reset":
        conversation.messages = []
        console.print("[dim]conversation cleared[/]")
    elif name == "/system":
        if argument:
            conversation.system, conversation.messages = argument.strip(), []
            console.print("[dim]new system prompt; conversation cleared[/]")
        else:
            console.print(escape(conversation.system or "(none)"))
    elif name == "/help":
        console.print(f"[dim]{HELP}[/]")
    else:
        console.print(f"[red]no command {escape(name)}[/] [dim]{HELP}[/]")
    return True
