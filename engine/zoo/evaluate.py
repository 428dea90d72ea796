"""Exact match on unseen shops: an answer counts when every character is right.

The model under test is a function from prompts to texts, so the plain-torch model, the engine and a server share
the same evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .corpus import ROWS, Case, Rows, draw_cases
from .dialogue import KIND_TO_TYPE
from .export import load_model
from .model import ShopModel
from .registry import resolve
from .tokenizer import END_OF_TEXT, TURN_END, load_tokenizer, token_id

GenerateFn = Callable[[list[str]], list[str]]
MAX_NEW_TOKENS = 96  # the longest answer of the corpus has about 60


@dataclass
class Tally:
    """Number of right answers, and of all answers."""

    right: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        return self.right / self.total if self.total else float("nan")

    def count(self, right: bool) -> None:
        self.right, self.total = self.right + right, self.total + 1


@dataclass
class EvalReport:
    """Exact match overall and by turn type, kind, language and catalogue size, with examples of misses."""

    model: str
    split: str
    overall: Tally = field(default_factory=Tally)
    by_type: dict[str, Tally] = field(default_factory=dict)
    by_kind: dict[str, Tally] = field(default_factory=dict)
    by_language: dict[str, Tally] = field(default_factory=dict)
    by_rows: dict[str, Tally] = field(default_factory=dict)
    misses: list[tuple[Case, str]] = field(default_factory=list)

    def count(self, case: Case, output: str) -> None:
        right = output == case.answer
        self.overall.count(right)
        keys = (KIND_TO_TYPE[case.kind], case.kind, case.language, str(case.rows))
        groups = (self.by_type, self.by_kind, self.by_language, self.by_rows)
        for group, key in zip(groups, keys, strict=True):
            group.setdefault(key, Tally()).count(right)
        if not right and len(self.misses) < 50:
            self.misses.append((case, output))

    def as_dict(self) -> dict[str, object]:
        """Plain numbers for --json."""
        names = ("by_type", "by_kind", "by_language", "by_rows")
        groups = {name: sorted(getattr(self, name).items()) for name in names}
        plain = {name: {key: vars(tally) for key, tally in group} for name, group in groups.items()}
        return {"model": self.model, "split": self.split, "overall": vars(self.overall), **plain}

    def groups(self) -> dict[str, dict[str, Tally]]:
        """Return the counts of each grouping: its name, then the group's name."""
        return {
            "all": {"": self.overall},
            "turn type": self.by_type,
            "language": self.by_language,
            "kind": self.by_kind,
            "titles in the shop": self.by_rows,
        }


def score(
    cases: Sequence[Case], outputs: Iterable[str], model: str = "model", split: str = "test"
) -> EvalReport:
    """Judge given outputs."""
    report = EvalReport(model, split)
    for case, output in zip(cases, outputs, strict=True):
        report.count(case, output)
    return report


def evaluate(
    model_path: str | Path,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    generate_fn: GenerateFn | None = None,
    rows: Rows = ROWS,
) -> EvalReport:
    """Measure greedy exact match of a model (a zoo name or a folder) over `n` answers of `split`."""
    folder = resolve(model_path)
    generate = generate_fn or torch_generate_fn(folder)
    cases = draw_cases(n, seed, split, rows)
    return score(cases, generate([case.prompt for case in cases]), folder.name, split)


def torch_generate_fn(folder: Path) -> GenerateFn:
    """Return a function that generates greedily with the plain-torch model, one prompt at a time."""
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    eos = token_id(tokenizer, TURN_END)

    def generate(prompts: list[str]) -> list[str]:
        answers = (model.generate(tokenizer.encode(prompt).ids, MAX_NEW_TOKENS, eos) for prompt in prompts)
        return [tokenizer.decode(answer, skip_special_tokens=False) for answer in answers]

    return generate


@torch.inference_mode()
def forced_match(model: ShopModel, tokenizer: Tokenizer, cases: Sequence[Case]) -> list[bool]:
    """Return whether greedy decoding gives each answer, with one forward pass per answer.

    Greedy decoding generates the answer if and only if every answer token (and the end of the turn) is the most
    probable one after the tokens before it.
    """
    order = sorted(range(len(cases)), key=lambda index: len(cases[index].prompt))
    pad, result = token_id(tokenizer, END_OF_TEXT), [False] * len(cases)
    for start in range(0, len(order), 16):
        chosen = order[start : start + 16]
        prompts = [tokenizer.encode(cases[index].prompt).ids for index in chosen]
        answers = [tokenizer.encode(cases[index].answer + TURN_END).ids for index in chosen]
        texts = [torch.tensor(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)]
        tokens = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)
        hidden, _ = model.hidden(tokens)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            best = model.logits(hidden[row, len(prompt) - 1 : len(texts[row]) - 1]).argmax(-1)
            result[chosen[row]] = best.tolist() == answer
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact match of a shipped model on unseen shops.")
    parser.add_argument("model")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="test")
    parser.add_argument("--misses", type=int, default=0, help="show this many wrong answers")
    options = parser.parse_args()
    report = evaluate(options.model, options.n, options.seed, options.split)
    print(f"{report.model}: exact match on {report.split}")
    for name, group in report.groups().items():
        for key, tally in sorted(group.items()):
            print(f"{name:<20}{key:<24}{tally.right:>6} of {tally.total}")
    for case, output in report.misses[: options.misses]:
        question = case.prompt.rsplit("<|im_start|>user\n", 1)[-1].split("<|im_end|>")[0]
        print(f"{question}\n  want {case.answer}\n  got  {output}")


if __name__ == "__main__":
    main()
