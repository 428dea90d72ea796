"""`--lora NAME` and `--lora-modules NAME=PATH`: the adapter of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.lora.request import LoRARequest

LoraOption = Annotated[
    str | None,
    typer.Option("--lora", help="Answer with this adapter: a shipped one, or a name of --lora-modules."),
]
LoraModulesOption = Annotated[
    list[str] | None,
    typer.Option("--lora-modules", help="NAME=PATH of an adapter to load (PEFT's layout); repeatable."),
]


def with_adapters(engine: dict[str, Any], lora: str | None, modules: list[str] | None) -> dict[str, Any]:
    """Return the engine's settings with room for the requested adapters."""
    if not (lora or modules):
        return engine
    return engine | {"enable_lora": True}


def load_adapters(llm: LLM, lora: str | None, modules: list[str] | None) -> LoRARequest | None:
    """Load the adapters of --lora-modules; return the adapter chosen by --lora, if any."""
    from engine.zoo.registry import MODELS

    for module in modules or []:
        name, separator, path = module.partition("=")
        if not (separator and name and path):
            raise terminal.Problem(
                f"--lora-modules {module!r} must look like NAME=PATH", next_step="prep generate --help"
            )
        llm.load_lora_adapter(name, path)
    if lora is None:
        return None
    loaded = {request.lora_name: request for request in llm.list_lora_adapters()}
    if lora in loaded:
        return loaded[lora]
    if (MODELS / lora / "adapter_config.json").exists():
        return llm.load_lora_adapter(lora, lora)
    shipped = sorted(path.parent.name for path in MODELS.glob("*/adapter_config.json"))
    raise terminal.Problem(
        f"no adapter {lora!r}; there are: {', '.join([*loaded, *shipped])}",
        next_step="prep generate shop --lora-modules NAME=PATH --lora NAME",
    )
