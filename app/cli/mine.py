"""`prep mine`: chat with, evaluate and serve the engine made of the learner's pieces."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.mine_race import bench, race
from app.cli.mine_shared import SolutionsOption, load, pieces_explained
from app.cli.options import JsonOption, option
from engine.sampling_params import SamplingParams
from prep_common.text import counted

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.zoo.evaluate import EvalReport
    from lessons.mine.identity import Identity, Run
    from lessons.mine.pieces import Pieces

TraceOption = Annotated[
    str | None, option("Write a step trace to this file; prep app --trace FILE opens it.", metavar="FILE")
]
WHOSE = {"yours": "[green]yours[/]", "reference": "reference", "engine": "ours"}


def list_(solutions: SolutionsOption = False, json: JsonOption = False) -> None:
    """List the seams of your engine: whose code fills each, and why.

    \b
    Examples:
      prep mine list
      prep mine list --solutions
    """
    from lessons.mine.pieces import is_lab

    pieces = load(solutions)
    if json:
        return terminal.print_json([terminal.pick(piece, "name exercise whose why ours") for piece in pieces])
    rows = [
        (piece.name, piece.exercise, WHOSE[piece.whose], terminal.literal(piece.why or "its checks pass"))
        for piece in pieces
    ]
    body = terminal.table(
        "piece", "exercise or lab", "whose", "why", left=("exercise or lab", "whose", "why"), rows=rows
    )
    terminal.show(f"{len(pieces.yours)} of {counted(len(rows), 'piece')} are yours", body)
    missing = next((piece.exercise for piece in pieces if piece.whose == "engine"), None)
    if missing and not solutions:
        begin = f"prep lab new {missing}" if is_lab(missing) else f"prep lesson open {missing[:2]}"
        terminal.next_command(begin, f"write the piece {missing}")
    else:
        terminal.next_command("prep mine eval", "check that your engine gives the right tokens")


def chat(
    shop: Annotated[int, option("Number of the shop.")] = 0,
    language: Annotated[str, option("Language of the shop: en or ja.")] = "en",
    temperature: Annotated[float, option("0 takes the most likely token.")] = 0.0,
    top_k: Annotated[int, option("Keep this many likely tokens; 0: all.")] = 0,
    top_p: Annotated[float, option("Keep the most likely tokens up to this probability.")] = 1.0,
    seed: Annotated[int | None, option("Same seed, same tokens.")] = None,
    max_tokens: Annotated[int, option("Maximum tokens of one answer.")] = 256,
    trace: TraceOption = None,
    solutions: SolutionsOption = False,
) -> None:
    """Chat with the shipped model through your pieces. Ctrl-C stops an answer, and quits at the prompt.

    \b
    Examples:
      prep mine chat
      prep mine chat --temperature 0.8 --top-p 0.9  through your sampler
      prep mine chat --trace mine.itrace  then: prep app --trace mine.itrace
    """
    from app.cli.chat import Conversation, converse, shop_notes

    system, questions = shop_notes(shop, language)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_tokens=max_tokens
    )
    pieces = load(solutions)
    with opened(pieces, trace=trace) as llm:
        converse("your engine", Conversation(llm, params, system), questions)
    if trace is not None:
        terminal.next_command(f"prep app --trace {trace}", "see what your scheduler decided")
    else:
        terminal.next_command("prep mine eval", "check that your engine gives the right tokens")


def eval_(
    limit: Annotated[int, option("Questions; conversations stay whole.", min=1)] = 200,
    seed: Annotated[int, option("Seed of the unseen shops.")] = 0,
    quantised: Annotated[
        bool, option("Round the weights with your quantiser: exact match before and after.", "--quantised")
    ] = False,
    bits: Annotated[int, option("With --quantised: bits of a weight.", min=2, max=8)] = 8,
    trace: TraceOption = None,
    solutions: SolutionsOption = False,
    json: JsonOption = False,
) -> None:
    """Check your engine against LLM("shop"): the same tokens, also with preemptions, chunks and prefix hits.

    Prints exact match on unseen shops for both. The exit code is 1 if a token differs or a piece breaks a rule.

    \b
    Examples:
      prep mine eval
      prep mine eval --limit 50 --json
      prep mine eval --quantised --bits 4
    """
    from engine.zoo.corpus import draw_cases
    from engine.zoo.evaluate import score

    pieces, cases = load(solutions), draw_cases(limit, seed, "test")
    prompts = [case.prompt for case in cases]
    if quantised:
        return _eval_quantised(pieces, prompts, bits, lambda run: score(cases, run.texts), json)
    from lessons.mine.identity import compare, serve

    with terminal.status("your engine", lines_in_pipe=not json) as tell, pieces_explained():
        if trace is not None:
            with opened(pieces, trace=trace) as llm:
                serve(llm, prompts)
        identity = compare(pieces, prompts, tell=tell)
    ours, mine = score(cases, identity.ours.texts).overall, score(cases, identity.roomy.texts).overall
    if json:
        runs = {name: _as_dict(identity, getattr(identity, name)) for name in ("ours", "roomy", "tight")}
        right = {"exact_match": mine.share, "exact_match_ours": ours.share}
        terminal.print_json({"identical": identity.is_identical, "prompts": len(prompts), **right, **runs})
    else:
        _show_identity(identity)
        answers = counted(ours.total, "answer")
        terminal.say(
            f"exact match: {mine.share:.1%} with your pieces, {ours.share:.1%} with ours ({answers})"
        )
        if (difference := identity.first_difference()) is not None:
            run, prompt, position = difference
            terminal.say(
                f"[bold red]first difference[/]: run {run}, prompt {prompt}, output token {position}"
            )
        terminal.next_command("prep mine race", "compare your scheduler with ours and with vLLM's policies")
    if not identity.is_identical:
        raise typer.Exit(terminal.CHECKS_FAILED)


def serve(
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("Port.", min=1, max=65535)] = 8000,
    max_running: Annotated[int, option("Requests that run at once.", min=1)] = 8,
    max_waiting: Annotated[int, option("Requests that may wait; more are rejected.", min=0)] = 16,
    trace: TraceOption = None,
    solutions: SolutionsOption = False,
) -> None:
    """Serve your engine over HTTP behind your admission control, until Ctrl-C.

    \b
    Examples:
      prep mine serve
      prep mine serve --port 8001 --max-running 2 --max-waiting 4
    """
    terminal.need_libraries(
        "the server needs", ["fastapi", "uvicorn", "uvloop", "prometheus_client"], "mine serve", "lesson"
    )
    from lessons.mine.engine import settings_for
    from lessons.mine.server import serve as run_server
    from lessons.mine.workspace import using

    pieces = load(solutions)
    settings = settings_for(pieces, model="shop", max_num_seqs=max_running, trace=trace)

    def ready() -> None:
        terminal.note(f"your engine listens on http://{host}:{port}/v1/chat/completions until Ctrl-C")

    with pieces_explained(), using(pieces):
        try:
            run_server(settings, pieces["admission"].item, host, port, max_waiting, ready)
            terminal.note("stopped")
        except OSError as error:
            why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
            raise terminal.Problem(
                f"cannot listen on {host}:{port}: {why}",
                "prep mine serve --port PORT   uses another port",
                code=terminal.ENVIRONMENT,
            ) from None


@contextmanager
def opened(pieces: Pieces, **engine: Any) -> Iterator[LLM]:
    """Open the learner's engine and shut it down at the end."""
    from lessons.mine.engine import open_mine

    with pieces_explained():
        with terminal.loading("your engine"):
            llm = open_mine(pieces, **engine)
        with llm:
            yield llm


def _eval_quantised(pieces: Pieces, prompts: list[str], bits: int, judge: Any, as_json: bool) -> None:
    from lessons.mine.identity import serve as serve_prompts
    from lessons.mine.quantiser import write_quantised

    if not pieces.has("quantiser"):
        raise terminal.Problem(f"no quantiser: {pieces['quantiser'].why}", "prep lesson open 13")
    reports: list[EvalReport] = []
    with tempfile.TemporaryDirectory(prefix="prep-mine-") as folder, pieces_explained():
        worst = write_quantised("shop", Path(folder), pieces, bits)
        for model in ("shop", folder):
            with opened(pieces, model=model) as llm:
                reports.append(judge(serve_prompts(llm, prompts)))
    before, after = (report.overall.share for report in reports)
    if as_json:
        return terminal.print_json({"bits": bits, "before": before, "after": after, "worst_error": worst})
    terminal.say(f"exact match: {before:.1%} before, {after:.1%} with {bits}-bit weights from your quantiser")
    terminal.say(f"largest error of a weight: {worst:.1%} of its row's largest")
    terminal.next_command(f"prep mine eval --quantised --bits {4 if bits != 4 else 3}", "fewer bits")


def _as_dict(identity: Identity, run: Run) -> dict[str, Any]:
    counters = terminal.pick(run, "preemptions chunks hit_tokens tokens_per_s")
    return {"same": identity.num_same(run), **counters}


def _show_identity(identity: Identity) -> None:
    runs = (("LLM(shop)", identity.ours), ("yours", identity.roomy), ("yours, tight", identity.tight))
    total = len(identity.ours.token_ids)
    rows = [
        (name, f"{identity.num_same(run)} of {total}", run.preemptions, run.chunks, f"{run.hit_tokens:,}")
        for name, run in runs
    ]
    body = terminal.table("engine", "same tokens", "preemptions", "chunks", "prefix-hit tokens", rows=rows)
    verdict = "[green]identical[/]" if identity.is_identical else "[bold red]different[/]"
    terminal.show(f"greedy tokens: {verdict}", body)


mine = terminal.command_app(
    list_, chat, eval_, serve, race, bench, help="Run the engine made of your own pieces from the lessons."
)
