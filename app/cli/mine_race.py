"""`prep mine race` and `prep mine bench`: the learner's pieces in virtual time and in seconds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

from app.cli import terminal
from app.cli.mine_shared import SolutionsOption, load, pieces_explained
from app.cli.options import JsonOption, option
from prep_common.text import counted

PICTURES = (".png", ".svg")


def race(
    plot: Annotated[
        Path | None, option("Draw goodput and P99 ITL to this PNG or SVG.", metavar="FILE")
    ] = None,
    scale: Annotated[float, option("Multiplies the number of requests.", min=0.02, max=20)] = 1.0,
    solutions: SolutionsOption = False,
    json: JsonOption = False,
) -> None:
    """Race your scheduler, memory and router against ours and vLLM's policies, on a simulated H100.

    Three workloads, and one on two replicas. Time is virtual: results are exact and the same on every machine.
    Takes about 15 s.

    \b
    Examples:
      prep mine race
      prep mine race --plot race.png
      prep mine race --scale 0.2 --json
    """
    from lessons.mine.race import GPU, MODEL, TPOT_SLO, TTFT_SLO, contestants, tracks
    from lessons.mine.race import plot as draw
    from lessons.mine.race import race as run

    if plot is not None and (plot.suffix.lower() not in PICTURES or not plot.parent.is_dir()):
        raise terminal.Problem(
            f"cannot draw to {plot}: choose a file in a folder that exists, ending in {' or '.join(PICTURES)}"
        )
    pieces = load(solutions)
    runs = tracks(scale)
    with pieces_explained(), terminal.progress(len(runs) * len(contestants(pieces)), "runs") as advance:
        results = run(pieces, scale=scale, tell=advance)
    if plot is not None:
        draw(results).savefig(plot, dpi=120)
        terminal.note(f"drew {plot}")
    if json:
        slo = {"ttft": TTFT_SLO, "tpot": TPOT_SLO}
        return terminal.print_json(
            {"model": MODEL, "gpu": GPU, "slo": slo, "results": [*map(asdict, results)]}
        )
    left = ("contestant",)
    for track in runs:
        body = terminal.table(
            "contestant", "TTFT p50", "p99", "ITL p99", "preempt.", "hits", "goodput", left=left
        )
        for result in (r for r in results if r.track == track.name):
            times = [f"{1e3 * t:,.0f} ms" for t in (result.ttft_p50, result.ttft_p99)]
            itl, hits = f"{1e3 * result.itl_p99:.1f} ms", f"{result.hit_rate:.0%}"
            body.add_row(
                result.contestant, *times, itl, str(result.preemptions), hits, f"{result.goodput:.2f}/s"
            )
        terminal.show(f"{track.name}: {track.says}", body)
    limits = f"TTFT of at most {TTFT_SLO:g} s and TPOT of at most {1e3 * TPOT_SLO:.0f} ms"
    terminal.say(f"[dim]{MODEL} on {GPU}, virtual time; goodput: requests/s with {limits}[/]")
    terminal.next_command("prep mine race --plot race.png", "draw it")


def bench(
    prompts: Annotated[int, option("Prompts of a round.", min=1)] = 64,
    rounds: Annotated[int, option("Rounds, each with new prompts; engines take turns.", min=1)] = 5,
    solutions: SolutionsOption = False,
    json: JsonOption = False,
) -> None:
    """Measure the speed of your engine beside LLM("shop"), in tokens per second.

    If the rounds differ too much for a conclusion, it says so.

    \b
    Examples:
      prep mine bench
      prep mine bench --prompts 16 --rounds 3 --json
    """
    from app.bench.timing import watch_other_programs
    from app.cli.bench.common import warn_if_busy
    from engine.zoo.corpus import draw_cases
    from lessons.mine.identity import conclude, measure

    pieces = load(solutions)
    texts = [case.prompt for case in draw_cases(prompts * (rounds + 1), 0, "test")][: prompts * (rounds + 1)]
    other_cores = watch_other_programs()
    with terminal.status(lines_in_pipe=not json) as tell, pieces_explained():
        pairs = measure(pieces, texts, rounds, tell)
    warn_if_busy(other_cores())
    is_clear, says = conclude(pairs)
    if json:
        ratio = median(mine / ours for ours, mine in pairs)
        rates = [{"ours": ours, "yours": mine} for ours, mine in pairs]
        told = {"prompts": prompts, "ratio": ratio, "is_conclusive": is_clear, "says": says}
        return terminal.print_json({**told, "tokens_per_s": rates})
    rows = [
        (number, f"{ours:,.0f}", f"{mine:,.0f}", f"{mine / ours:.0%}")
        for number, (ours, mine) in enumerate(pairs, 1)
    ]
    terminal.show(
        f"{counted(prompts, 'prompt')} a round",
        terminal.table("round", "ours tok/s", "yours tok/s", "ratio", rows=rows),
    )
    terminal.say(says if is_clear else f"[yellow]{says}[/]")
    terminal.next_command("prep mine race", "compare schedulers without the speed of Python")
