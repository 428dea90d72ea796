"""`prep zoo eval shop-lora-...`: compare an adapter with its base in the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import terminal
from app.cli.session import open_llm

if TYPE_CHECKING:
    from engine.zoo.evaluate import EvalReport

GENEROUS_RANK = 64


def is_adapter(model: str) -> bool:
    """Whether a shipped name or a folder is an adapter, not a complete model."""
    from engine.zoo.registry import MODELS

    return any((folder / "adapter_config.json").exists() for folder in (MODELS / model, Path(model)))


def eval_adapter(
    name: str, engine: dict[str, Any], *, n: int, seed: int, split: str, misses: int, as_json: bool
) -> None:
    """Send every question to the base and to the adapter, in the same batches."""
    from rich.markup import escape

    from engine.frontend.llm_engine import find_adapter
    from engine.sampling_params import SamplingParams
    from engine.zoo.adapter_tasks import TASKS, draw_task_cases
    from engine.zoo.evaluate import MAX_NEW_TOKENS, score
    from engine.zoo.recipes import ADAPTER_RECIPES

    folder = find_adapter(name)
    if folder.name not in TASKS:
        raise terminal.Problem(
            f"the adapter {folder.name!r} has no task; adapters with one: {', '.join(TASKS)}",
            next_step="prep zoo list",
        )
    cases = draw_task_cases(folder.name, n, seed, split)
    settings = engine | {"enable_lora": True, "max_lora_rank": GENEROUS_RANK}
    with open_llm(ADAPTER_RECIPES[folder.name].base, settings) as llm:
        adapter = llm.load_lora_adapter(folder.name, str(folder))
        params = SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS, skip_special_tokens=False)
        outputs = llm.generate(
            [case.prompt for case in cases for _ in range(2)],
            params,
            lora_request=[adapter, None] * len(cases),
            use_tqdm=None if terminal.is_live(terminal.err()) else False,
        )
    texts = [output.outputs[0].text for output in outputs]
    with_adapter = score(cases, texts[::2], folder.name, split)
    base = score(cases, texts[1::2], ADAPTER_RECIPES[folder.name].base, split)
    if as_json:
        terminal.print_json({"adapter": with_adapter.as_dict(), "base": base.as_dict()})
        return
    terminal.out().print(
        f"{terminal.literal(folder.name)}: {TASKS[folder.name].says}, exact match on {split}"
    )
    terminal.out().print(_table(base, with_adapter))
    for case, output in with_adapter.misses[:misses]:
        terminal.out().print(f"  want {escape(case.answer)}\n  got  {escape(output)}")
    terminal.next_command(
        f"prep chat {ADAPTER_RECIPES[folder.name].base} --lora {folder.name}", "chat with it"
    )


def _table(base: EvalReport, adapter: EvalReport) -> Any:
    table = terminal.table("kind", "base", "with the adapter", "of", left=("kind",))
    for kind, tally in sorted(adapter.by_kind.items()):
        table.add_row(kind, str(base.by_kind[kind].right), str(tally.right), str(tally.total))
    table.add_section()
    table.add_row(
        "all", f"{base.overall.share:.1%}", f"{adapter.overall.share:.1%}", str(adapter.overall.total)
    )
    return table
