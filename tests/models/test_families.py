"""Every model family has every part, and every model class has an entry: what is missing fails by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.new.model import skeleton
from engine.models import loader
from engine.models.families import FAMILIES
from engine.models.family import Family, defaults
from prep_common.dotted_path import load_object
from tests.unfilled import left_to_fill

MODELS = Path(loader.__file__).parent
PARTS = {
    "model_type": "as in transformers' config class",
    "model": '"module:Class" of the class that computes it',
    "defaults": "defaults(...) of transformers' config class",
    "tiny": "random tiny models to compare with transformers, or a sentence that says why there are none",
    "features": "what it has, for the table in engine/models/README.md",
}
"""Parts of an entry, and what to write. `reads` and `configure` may be empty: the family computes a plain Llama."""


def row_of_readme(family: Family) -> str:
    """Return the family's row of the table in engine/models/README.md."""
    file = family.model.partition(":")[0].rpartition(".")[2]
    return f"| `{family.architecture}` | `{file}.py` | {family.features} |"


def missing(family: Family, readme: str | None = None) -> Iterator[str]:
    """Yield a sentence for each part that a family lacks; `readme` as if it were ours."""
    readme = (MODELS / "README.md").read_text() if readme is None else readme
    name = family.architecture
    for part, what in PARTS.items():
        if not getattr(family, part):
            yield f"{name} has no {part} in its entry: {what}"
    if absent := defaults(1).keys() - family.defaults.keys():
        yield f"{name} has no default of {', '.join(sorted(absent))}"
    if family.model:
        yield from _missing_class(family)
    if row_of_readme(family) not in readme.splitlines():
        yield f"{name} has no row in engine/models/README.md: {row_of_readme(family)}"


def _missing_class(family: Family) -> Iterator[str]:
    try:
        model = load_object(family.model)
    except (ImportError, AttributeError):
        yield f"{family.architecture} has no class {family.model}"
        return
    needed = () if isinstance(family.tiny, str) else ("forward", "embed_tokens", "compute_logits")
    for method in needed:
        if not callable(getattr(model, method, None)):
            yield f"{family.architecture} has no method {method} in {family.model} (loader.CausalLM)"


def strays(families: dict[str, Family] = FAMILIES) -> Iterator[str]:
    """Yield a sentence for each class of a model that no entry names."""
    named = {family.model for family in families.values()}
    for path in sorted(MODELS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("ForCausalLM"):
                if f"engine.models.{path.stem}:{node.name}" not in named:
                    yield f"{path.name}: {node.name} has no entry: add one to engine/models/families/"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_family_has_every_part(architecture: str) -> None:
    if absent := list(missing(FAMILIES[architecture])):
        pytest.fail("\n".join(absent), pytrace=False)


def test_every_class_of_a_model_has_an_entry() -> None:
    if unnamed := list(strays()):
        pytest.fail("\n".join(unnamed), pytrace=False)


def test_no_model_and_no_entry_is_left_to_fill() -> None:
    if unfilled := left_to_fill(MODELS):
        pytest.fail("\n".join(unfilled), pytrace=False)


QWEN = FAMILIES["Qwen3ForCausalLM"]
BROKEN = {
    **{part: (replace(QWEN, **{part: ""}), {}, f"Qwen3ForCausalLM has no {part} in its entry") for part in PARTS},
    "a default": (
        replace(QWEN, defaults={"rope_theta": 1e4}), {}, "Qwen3ForCausalLM has no default of hidden_act, max_position",
    ),
    "a class": (
        replace(QWEN, model="engine.models.llama:QwenForCausalLM"), {},
        "Qwen3ForCausalLM has no class engine.models.llama:QwenForCausalLM",
    ),
    "a method": (
        replace(QWEN, model="engine.models.llama:LlamaMLP"), {}, "Qwen3ForCausalLM has no method embed_tokens in",
    ),
    "a row": (QWEN, {"readme": ""}, "Qwen3ForCausalLM has no row in engine/models/README.md: | `Qwen3ForCausalLM` |"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "texts", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_missing_part_is_named(family: Family, texts: dict[str, Any], sentence: str) -> None:
    family = replace(family, defaults=family.defaults or {})
    assert any(each.startswith(sentence) for each in missing(family, **texts)), list(missing(family, **texts))


def test_a_class_without_an_entry_is_named() -> None:
    fewer = {name: family for name, family in FAMILIES.items() if name != "EagleLlamaForCausalLM"}
    assert list(strays(fewer)) == [
        "llama.py: EagleLlamaForCausalLM has no entry: add one to engine/models/families/"
    ]


def test_the_skeleton_of_a_family_names_its_missing_parts() -> None:
    _, (path, text) = skeleton("family_of_a_test").items()
    names: dict[str, Any] = {}
    exec(compile(text, path, "exec"), names)
    family = names["FAMILY_OF_A_TEST"]
    said = list(missing(family))
    assert [each.split(":")[0] for each in said] == [
        *(f"FamilyOfATestForCausalLM has no {part} in its entry" for part in ("tiny", "features")),
        "FamilyOfATestForCausalLM has no class engine.models.family_of_a_test",
        "FamilyOfATestForCausalLM has no row in engine/models/README.md",
    ]


def test_a_family_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="there is a family Qwen3ForCausalLM"):
        skeleton("qwen3")
