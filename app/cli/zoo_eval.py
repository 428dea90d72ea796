"""`prep zoo eval`: exact match of a model, of an adapter beside its base, of a changed model beside its reference."""

from __future__ import annotations

import shlex
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.engine_options import engine_options, model_folder, open_llm, show_bar
from app.cli.options import JsonOption, argument, option
from engine.config import EngineArgs
from engine.sampling_params import SamplingParams
from engine.zoo.registry import MODELS

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.zoo.corpus import Case
    from engine.zoo.gates import Answers, Gate


GENEROUS_RANK = 64
NUM_PERPLEXITY_CASES = 150
"""Right answers with measured log-probabilities: each is a whole prompt that no cache shortens."""
EXIT = {"pass": 0, "fail": terminal.CHECKS_FAILED, "inconclusive": terminal.INCONCLUSIVE}


@engine_options
def eval_(
    model: Annotated[str, argument("A shipped model or a folder.")] = "shop",
    n: Annotated[int, option("Minimum answers to judge; conversations stay whole.", "-n", min=1)] = 500,
    seed: Annotated[int, option("Seed of the unseen shops.")] = 0,
    split: Annotated[str, option("test or validation: titles that training never showed.")] = "test",
    misses: Annotated[int, option("Show this many wrong answers.")] = 0,
    gates: Annotated[
        bool, option("Compare with --reference and decide whether this model may replace it.", "--gates")
    ] = False,
    reference: Annotated[str, option("With --gates: the model to compare with, at its defaults.")] = "shop",
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure exact match on unseen shops: an answer counts if every character is right.

    The engine answers greedily with batching, chunked prefill and prefix cache.

    \b
    Examples:
      prep zoo eval shop
      prep zoo eval shop -n 2000 --misses 5
      prep zoo eval shop-lora-support        an adapter beside its base
      prep zoo eval shop --gates --kv-cache-dtype fp8
      prep zoo eval ./shop-awq --gates --reference shop --json

    With --gates the exit code is 0 if all pass, 1 if one fails, 4 if more questions are needed.
    """
    from engine.zoo.evaluate import evaluate

    for name in (model, reference):
        model_folder(name)
    if is_adapter(model):
        eval_adapter(model, engine, n=n, seed=seed, split=split, misses=misses, as_json=json)
        return
    if gates:
        run_gates(model, reference, engine, n=n, seed=seed, split=split, as_json=json)
        return
    with open_llm(model, engine) as llm:
        report = evaluate(model, n, seed, split, lambda prompts: engine_answers(llm, prompts))
    if json:
        return terminal.print_json(report.as_dict())
    table = terminal.table("group", "which", "right", "of", "share", left=("which",))
    for name, group in report.groups().items():
        for key, tally in sorted(group.items()):
            table.add_row(name, key, str(tally.right), str(tally.total), f"{tally.share:.1%}")
        table.add_section()
    terminal.show(f"{escape(report.model)}: exact match on {report.split}", table)
    for case, output in report.misses[:misses]:
        question = case.prompt.rsplit("<|im_start|>user\n", 1)[-1].split("<|im_end|>")[0]
        terminal.out().print(f"[bold]{escape(question)}[/]")
        _show_miss(case, output)
    terminal.next_command(f"prep zoo eval {model} --misses 5", "show wrong answers")


def engine_answers(
    llm: LLM, prompts: list[str], adapters: list[Any] | None = None, bar: bool = True
) -> list[str]:
    """Return the engine's greedy answers, special tokens included, as `evaluate` compares them."""
    from engine.zoo.evaluate import MAX_NEW_TOKENS

    params = SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS, skip_special_tokens=False)
    outputs = llm.generate(prompts, params, use_tqdm=show_bar() if bar else False, lora_request=adapters)
    return [output.outputs[0].text for output in outputs]


def _show_miss(case: Case, output: str) -> None:
    terminal.out().print(f"  want {escape(case.answer)}\n  got  {escape(output)}")


def is_adapter(model: str) -> bool:
    """Whether a shipped name or a folder is an adapter, not a complete model."""
    return any((folder / "adapter_config.json").exists() for folder in (MODELS / model, Path(model)))


def eval_adapter(
    name: str, engine: dict[str, Any], *, n: int, seed: int, split: str, misses: int, as_json: bool
) -> None:
    """Send every question to the base and to the adapter, in the same batches."""
    from engine.frontend.llm_engine import find_adapter
    from engine.zoo.adapter_tasks import TASKS, draw_task_cases
    from engine.zoo.evaluate import score
    from engine.zoo.recipes import ADAPTER_RECIPES

    folder = find_adapter(name)
    if folder.name not in TASKS:
        raise terminal.Problem(
            f"the adapter {folder.name!r} has no task; adapters with one: {', '.join(TASKS)}", "prep zoo list"
        )
    cases = draw_task_cases(folder.name, n, seed, split)
    base_model = ADAPTER_RECIPES[folder.name].base
    settings = engine | {"enable_lora": True, "max_lora_rank": GENEROUS_RANK}
    with open_llm(base_model, settings) as llm:
        adapter = llm.load_lora_adapter(folder.name, str(folder))
        prompts = [case.prompt for case in cases for _ in range(2)]
        texts = engine_answers(llm, prompts, [adapter, None] * len(cases))
    with_adapter = score(cases, texts[::2], folder.name, split)
    base = score(cases, texts[1::2], base_model, split)
    if as_json:
        return terminal.print_json({"adapter": with_adapter.as_dict(), "base": base.as_dict()})
    terminal.out().print(f"{escape(folder.name)}: {TASKS[folder.name].says}, exact match on {split}")
    table = terminal.table("kind", "base", "with the adapter", "of", left=("kind",))
    for kind, tally in sorted(with_adapter.by_kind.items()):
        table.add_row(kind, str(base.by_kind[kind].right), str(tally.right), str(tally.total))
    table.add_section()
    shares = (f"{report.overall.share:.1%}" for report in (base, with_adapter))
    table.add_row("all", *shares, str(with_adapter.overall.total))
    terminal.out().print(table)
    for case, output in with_adapter.misses[:misses]:
        _show_miss(case, output)
    terminal.next_command(f"prep chat {base_model} --lora {folder.name}", "chat with it")


def run_gates(
    model: str, reference: str, engine: dict[str, Any], *, n: int, seed: int, split: str, as_json: bool
) -> None:
    """Ask both models the same questions and exit with the gates' verdict. `engine` applies to the candidate only."""
    from engine.zoo.gates import as_dict, draw_gate_cases, judge, overall

    model_folder(reference)
    tested = _flags(engine)
    if model == reference and not tested:
        raise terminal.Problem(
            f"{model} would be compared with itself", f"prep zoo eval {model} --gates --kv-cache-dtype fp8"
        )
    cases = draw_gate_cases(n, seed, split)
    answers = []
    for name, settings in ((reference, {}), (model, engine)):
        with open_llm(name, settings) as llm:
            answers.append(_ask(llm, cases))
    gates = judge(cases, answers[0], answers[1], n)
    verdict = overall(gates)
    if as_json:
        terminal.print_json({"model": model, "reference": reference, "n": len(cases), **as_dict(gates)})
    else:
        terminal.out().print(_gates_table(model + tested, reference, gates))
        terminal.out().print(f"verdict: [bold]{verdict}[/]")
        if verdict == "inconclusive":
            against = "" if reference == "shop" else f" --reference {reference}"
            terminal.next_command(
                f"prep zoo eval {model} --gates -n {4 * n}{against}{tested}",
                "four times the questions, half the width",
            )
        else:
            terminal.next_command(f"prep zoo eval {model} --misses 5{tested}", "show wrong answers")
    raise typer.Exit(EXIT[verdict])


def _flags(engine: dict[str, Any]) -> str:
    """The settings that differ from the defaults, as options."""
    words = []
    for name, value in engine.items():
        if value != getattr(EngineArgs(), name):
            words.append(f" --{'no-' if value is False else ''}{name.replace('_', '-')}")
            if not isinstance(value, bool):
                words.append(" " + shlex.quote(value if isinstance(value, str) else dumps(value)))
    return "".join(words)


def _ask(llm: LLM, cases: list[Case]) -> Answers:
    from engine.zoo.gates import Answers
    from engine.zoo.tokenizer import TURN_END

    texts = engine_answers(llm, [case.prompt for case in cases])
    tokenizer = llm.get_tokenizer()
    prompts, num_tokens = [], []
    for case in cases[:NUM_PERPLEXITY_CASES]:
        prompt = tokenizer.encode(case.prompt)
        answer = tokenizer.encode(case.answer + TURN_END, add_special_tokens=False)
        prompts.append([*prompt, *answer])
        num_tokens.append(len(answer))
    forced = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=show_bar())
    logprobs = [
        sum(
            position[token].logprob  # the token itself is always included
            for position, token in zip((output.prompt_logprobs or [])[-count:], prompt[-count:], strict=True)
            if position is not None
        )
        for output, prompt, count in zip(forced, prompts, num_tokens, strict=True)
    ]
    return Answers(texts, logprobs, num_tokens)


def _gates_table(model: str, reference: str, gates: list[Gate]) -> Any:
    colours = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
    table = terminal.table("gate", "answers", "before", "after", "95 % of the change", "limit", "verdict")
    table.title = escape(f"may {model} replace {reference}?")
    for gate in gates:
        if gate.name.startswith("perplexity"):
            before, after = f"{gate.reference:.3f}", f"{gate.candidate:.3f}"
            interval, limit = f"x {gate.low:.3f} to {gate.high:.3f}", f"{gate.limit:.2f}"
        else:  # in percentage points
            before, after = f"{gate.reference:.1%}", f"{gate.candidate:.1%}"
            interval, limit = f"{100 * gate.low:+.1f} to {100 * gate.high:+.1f}", f"{100 * gate.limit:+.0f}"
        name = gate.name.removeprefix("exact match, ").removesuffix(" (ratio)")
        verdict = f"[{colours[gate.verdict]}]{gate.verdict}[/]"
        table.add_row(name, str(gate.num_cases), before, after, interval, limit, verdict)
    return table
