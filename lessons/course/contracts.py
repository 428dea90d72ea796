"""The contract of a lab, sentence by sentence: the wrong files of `mutants.py` that break it, and so the checks.

    contract.yaml
      demands:                                    a sentence of the stub, by its first words
        "Start with num_blocks - 1 free": [hands out the null block]      what the wrong files do, as in mutants.py
      explains: ["The engine's scheduler asks"]   sentences that define, explain or name a source, and demand nothing
      overlaps:                                   checks of which each wrong file fails another check, too
        the_last_owner_frees: [random_families]

Each sentence stands in one of the lists. A kernel's three languages share one file and their checks, so a wrong file in
one language is enough; the formulas of a kernel's stub, its indented lines, count as sentences. `python -m
lessons.course.contracts LAB` runs each wrong file on all checks and prints the overlaps; the slow tests do it for all.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from typing import Any

import yaml

from lessons.course.checking import checks, run_checks
from lessons.course.lesson_files import Lab, Strict, find_lab, labs
from lessons.course.mutants import Mutant, mutants

_END = re.compile(r"(?<=[.!?])(?<!\.\.)(?<!\bal\.)(?<!\be\.g\.)(?<!\bi\.e\.)\s+")
_ITEM = re.compile(r"^\d+\. ")


class Contract(Strict):
    """A contract.yaml."""

    demands: dict[str, list[str]]
    explains: list[str] = []
    overlaps: dict[str, list[str]]


def contract(lab: Lab) -> Contract:
    """Return the contract of a lab. Raises OSError, pydantic.ValidationError."""
    data: dict[str, Any] = yaml.safe_load((lab.folder / "contract.yaml").read_text(encoding="utf-8"))
    return Contract.model_validate(data)


def languages(lab: Lab) -> list[Lab]:
    """Return the labs that share the contract file of a lab, itself among them."""
    return [each for each in labs() if each.folder == lab.folder]


def sentences(lab: Lab) -> list[str]:
    """Return the sentences of a stub's docstrings, or of its first comment, without the first line.

    Diagrams are left out; of a kernel, each of their lines is a sentence.
    """
    text = lab.stub
    has_formulas = lab.language != "python"
    if lab.file_name.endswith(".py"):
        tree = ast.parse(text)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        parts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
        parts[0] = parts[0].partition("\n")[2]
    else:
        comment = text[: text.index("#include")]
        parts = [re.sub(r"^// ?", "", comment, flags=re.MULTILINE).partition("\n")[2]]
    return [
        sentence
        for part in parts
        for paragraph in _paragraphs(part, has_formulas)
        for sentence in _END.split(paragraph)
    ]


def _paragraphs(text: str, has_formulas: bool) -> list[str]:
    """Return the paragraphs of a text, each in one line; a number begins one.

    has_formulas: each line of an indented block is a paragraph, with the deeper ones below it; else none is.
    """
    found: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith(" "):
            if has_formulas:
                found += _formulas(block)
            continue
        for number, line in enumerate(block.splitlines()):
            if number == 0 or _ITEM.match(line):
                found.append("")
            found[-1] += f" {_ITEM.sub('', line.strip())}"
    return [" ".join(paragraph.split()) for paragraph in found]


def _formulas(block: str) -> list[str]:
    """Return the lines of an indented block, each with the deeper lines below it."""
    indent = len(block) - len(block.lstrip())
    lines = re.split(rf"\n {{{indent}}}(?! )", block)
    return [" ".join(line.split()) for line in lines]


def meant(sentence: str, contract: Contract) -> list[str]:
    """Return the entries of a contract that begin a sentence."""
    return [start for start in (*contract.demands, *contract.explains) if sentence.startswith(start)]


def rejected_by(mutant: Mutant) -> list[str]:
    """Return the names of all checks that a wrong file fails. Raises RuntimeError if its own check accepts it."""
    report = run_checks(mutant.exercise, mutant.source, is_patient=True)
    failed = [result.name for result in report.results if not result.ok]
    if mutant.check not in failed:
        raise RuntimeError(f"{mutant.check} accepts: {mutant.why}; {report.problem or f'fails {failed}'}")
    return failed


def overlaps(lab: Lab) -> dict[str, list[str]]:
    """Return for each check without a wrong file of its own which others fail the one that fails the fewest."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for mutant in (mutant for each in languages(lab) for mutant in mutants(each)):
        if not any(len(each) == 0 for each in found[mutant.check]):
            found[mutant.check].append([each for each in rejected_by(mutant) if each != mutant.check])
    return {name: least for name, others in found.items() if (least := min(others, key=len))}


def checks_without_a_wrong_file(lab: Lab) -> set[str]:
    """Return the names of checks that reject no wrong file in any language of the lab."""
    rejecting = {mutant.check for language in languages(lab) for mutant in mutants(language)}
    return {check.__name__ for check in checks(lab.number)} - rejecting


def main(names: list[str]) -> int:
    """Print the overlaps of labs as contract.yaml has them. Return 1 if a contract.yaml has others, else 0."""
    status = 0
    for name in names:
        lab = find_lab(name)
        print(f"# {name}")
        computed = overlaps(lab)
        text = yaml.safe_dump({"overlaps": computed}, sort_keys=False, width=118, default_flow_style=None)
        print(text, end="")
        if without := checks_without_a_wrong_file(lab):
            print(f"# checks without a wrong file: {', '.join(sorted(without))}")
        if computed != contract(lab).overlaps:
            print(
                f"error: {lab.folder.name}/contract.yaml has other overlaps; copy those above",
                file=sys.stderr,
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
