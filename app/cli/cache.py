"""`prep cache`: check prompts for what keeps them from hitting the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from prep_common.text import counted
from prep_common.text_file import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.frontend.prefix_audit import PrefixAudit
    from engine.frontend.prompt_log import LoggedPrompt

ADVICE = {
    "date or time": "move it behind the stable text",
    "id": "move it behind the stable text",
    "number": "move it behind the stable text",
    "order": "write these parts in one order, such as sorted",
    "white space": "write white space in one way",
    "text": "move it behind the stable text, if the prompt allows",
}
SHOWN = 40
"""Characters of a text in the table."""


def lint(
    file: Annotated[Path, argument("Prompts as JSON Lines, in order of arrival.", metavar="FILE")],
    model: Annotated[str, option("Model whose tokenizer and chat template apply.")] = "shop",
    block_size: Annotated[int, option("Tokens per KV block.", min=1, max=1024)] = 16,
    min_hit_rate: Annotated[
        float | None, option("Exit with 1 below this share of prompt tokens, such as 0.6.", min=0, max=1)
    ] = None,
    limit: Annotated[int, option("Places to show.", min=1)] = 10,
    json: JsonOption = False,
) -> None:
    """Measure the prefix hits of logged prompts, and find the texts that cost hits.

    Each line is a request body of OpenAI's API (messages or prompt), a line of its batch files, or a line of prep serve
    --request-log with --log-prompts. The cache of this check never evicts, so no server reaches a higher hit rate with
    these prompts. Requests for other models or with other cache_salts share nothing.

    \b
    Examples:
      prep cache lint engine/frontend/example_prompts.jsonl
      prep cache lint engine/frontend/example_prompts.jsonl --min-hit-rate 0.05 --json
    """
    from engine.config.model import ModelArgs
    from engine.frontend.prefix_audit import audit_prompts
    from engine.frontend.prompt_log import read_prompts
    from engine.frontend.tokenizer import Tokenizer
    from engine.models.hf_config import find_model

    tokenizer = Tokenizer.from_folder(find_model(ModelArgs(model=model)))
    try:
        prompts = read_prompts(file, tokenizer)
    except OSError as error:
        raise terminal.Problem(str(unreadable(file, error)), "prep cache lint --help") from None
    with terminal.progress(len(prompts), "prompts") as advance:
        audit = audit_prompts(_counted(prompts, advance), tokenizer.decode, block_size)
    if json:
        rates = {"hit_rate": audit.hit_rate, "possible_hit_rate": audit.possible_hit_rate}
        terminal.print_json(asdict(audit) | rates)
    else:
        show(audit, limit)
    if min_hit_rate is not None and audit.hit_rate < min_hit_rate:
        terminal.note(f"[red]hit rate {audit.hit_rate:.1%} is below {min_hit_rate:.1%}[/]")
        raise typer.Exit(terminal.CHECKS_FAILED)


def _counted(prompts: list[LoggedPrompt], advance: Callable[..., None]) -> Iterator[LoggedPrompt]:
    for done, prompt in enumerate(prompts):
        advance(done=done)
        yield prompt


def show(audit: PrefixAudit, limit: int) -> None:
    """Print the rates, and the places as a table."""
    terminal.say(
        f"{counted(audit.num_requests, 'request')}, {counted(audit.num_tokens, 'prompt token')}, "
        f"blocks of {audit.block_size}; an unlimited cache"
    )
    terminal.say(
        f"hit rate [bold]{audit.hit_rate:.1%}[/]; [bold]{audit.possible_hit_rate:.1%}[/] if these places were stable"
    )
    if not audit.places:
        terminal.say("no text changes inside stable prompts")
        return
    for number, place in enumerate(audit.places[:limit], 1):
        terminal.say(
            f"\n{number}. [bold]{place.kind}[/] in {counted(place.num_requests, 'request')}, "
            f"cost {counted(place.num_tokens, 'token')}"
        )
        terminal.say(f"   after  {_shown(place.after, last=True) or '(start of the prompt)'}")
        terminal.say(f"   was    {_shown(place.was)}")
        terminal.say(f"   now    {_shown(place.now)}")
        terminal.say(f"   advice {ADVICE[place.kind]}")
    if len(audit.places) > limit:
        terminal.say(f"\n{counted(len(audit.places) - limit, 'more place')}: --limit {len(audit.places)}")
    terminal.next_command("prep run prefix_cache.volatile_token", "what the position of one token costs")


def _shown(text: str, *, last: bool = False) -> str:
    """Return a text on one line, shortened at its start (last) or end."""
    line = "".join(char if char.isprintable() else "⏎" if char == "\n" else " " for char in text)
    if len(line) > SHOWN:
        line = f"...{line[-SHOWN:]}" if last else f"{line[:SHOWN]}..."
    return escape(line)


cache = terminal.command_app(lint, help="Check prompts for what keeps them from hitting the prefix cache.")
