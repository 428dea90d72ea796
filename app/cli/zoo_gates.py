"""`prep zoo eval --gates`: a changed model against its reference, question by question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from app.cli import terminal
from app.cli.session import open_llm

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.zoo.corpus import Case
    from engine.zoo.gates import Answers, Gate

NUM_PERPLEXITY_CASES = 150
"""Right answers with measured log-probabilities: each is a whole prompt that no cache shortens."""
EXIT = {"pass": 0, "fail": terminal.CHECKS_FAILED, "inconclusive": terminal.INCONCLUSIVE}


def run_gates(
    model: str, reference: str, engine: dict[str, Any], *, n: int, seed: int, split: str, as_json: bool
) -> None:
    """Ask both models the same questions and exit with the gates' verdict. `engine` applies to the candidate only."""
    from engine.config import EngineArgs
    from engine.zoo.gates import as_dict, draw_gate_cases, judge, overall
    from engine.zoo.registry import resolve

    resolve(reference)
    defaults = EngineArgs()
    is_changed = any(value != getattr(defaults, name) for name, value in engine.items())
    if model == reference and not is_changed:
        raise terminal.Problem(
            f"{model} would be compared with itself",
            next_step=f"prep zoo eval {model} --gates --kv-cache-dtype fp8",
            code=terminal.USAGE,
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
        terminal.out().print(_table(model, reference, gates))
        terminal.out().print(f"verdict: [bold]{verdict}[/]")
        if verdict == "inconclusive":
            terminal.next_command(
                f"prep zoo eval {model} --gates -n {4 * n}", "four times the questions, half the width"
            )
        else:
            terminal.next_command(f"prep zoo eval {model} --misses 5", "show wrong answers")
    raise typer.Exit(EXIT[verdict])


def _ask(llm: LLM, cases: list[Case]) -> Answers:
    from engine.sampling_params import SamplingParams
    from engine.zoo.evaluate import MAX_NEW_TOKENS
    from engine.zoo.gates import Answers
    from engine.zoo.tokenizer import TURN_END

    show_bar = None if terminal.is_live(terminal.err()) else False
    params = SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS, skip_special_tokens=False)
    outputs = llm.generate([case.prompt for case in cases], params, use_tqdm=show_bar)

    tokenizer = llm.get_tokenizer()
    prompts, num_tokens = [], []
    for case in cases[:NUM_PERPLEXITY_CASES]:
        prompt = tokenizer.encode(case.prompt)
        answer = tokenizer.encode(case.answer + TURN_END, add_special_tokens=False)
        prompts.append([*prompt, *answer])
        num_tokens.append(len(answer))
    forced = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=show_bar)
    logprobs = [
        sum(
            position[token].logprob  # the token itself is always included
            for position, token in zip((output.prompt_logprobs or [])[-count:], prompt[-count:], strict=True)
            if position is not None
        )
        for output, prompt, count in zip(forced, prompts, num_tokens, strict=True)
    ]
    return Answers([output.outputs[0].text for output in outputs], logprobs, num_tokens)


def _table(model: str, reference: str, gates: list[Gate]) -> Any:
    colours = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
    table = terminal.table("gate", "answers", "before", "after", "95 % of the change", "limit", "verdict")
    table.title = f"may {model} replace {reference}?"
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
