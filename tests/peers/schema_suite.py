"""Run JSON Schema's own suite through the backend `auto`, token by token, by hand.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xzf jsonschema-4.26.0.tar.gz
    python tests/peers/schema_suite.py jsonschema-4.26.0/json             (or a checkout of JSON-Schema-Test-Suite)

Objects are open (`disable_additional_properties: false`), numbers may have 60 digits (`max_digits`; by default 19), and
`1.0` is written as the equal `1`. Exit code 1 if an invalid instance is accepted, besides those of `content.json`, or
more than 1 % of the valid ones are rejected for no reason of `reason`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.core.grammar_protocol import GrammarError
from engine.sampling_params import StructuredOutputsParams
from tests.grammar.schema_cases import DRAFTS
from tests.grammar.test_schema_suite import accepts, compiler

FOLDERS = {"draft7": "draft7", "2020-12": "draft2020-12"}
MOST_ORDERS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, help="folder with tests/draft7 and tests/draft2020-12")
    parser.add_argument("--backend", default="auto", choices=("auto", "dfa"))
    args = parser.parse_args()
    results = [is_good(args.suite / "tests", draft, args.backend) for draft in DRAFTS]
    sys.exit(not all(results))


def is_good(tests: Path, draft: str, backend: str) -> bool:
    """Print how a draft's instances fare."""
    counts: Counter[str] = Counter()
    folder = tests / FOLDERS[draft]
    compile_ = compiler(backend, disable_additional_properties=False, max_digits=60).compile
    for file in sorted(folder.rglob("*.json")):
        for group in json.loads(file.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            try:
                grammar = compile_(StructuredOutputsParams(json=schema))
            except GrammarError as error:
                counts["schemas refused"] += "no value satisfies it" not in str(error)
                if "no value satisfies it" in str(error):
                    counts["invalid"] += sum(not test["valid"] for test in group["tests"])
                continue
            counts["schemas compiled"] += 1
            for test in group["tests"]:
                value, name = whole(test["data"]), f"{file.relative_to(folder)}: {group['description']}"
                is_accepted = accepts(grammar, value)
                counts["valid" if test["valid"] else "invalid"] += 1
                if is_accepted == test["valid"]:
                    continue
                why = "accepted" if is_accepted else reason(grammar, value, str(file.relative_to(folder)))
                if is_accepted and file.name == "content.json":
                    why = "accepted, of content.json"
                counts[why] += 1
                print(f"{draft}: {why}: {name}: {test['description']}: {json.dumps(value)[:80]}")
    share = counts["rejected"] / counts["valid"]
    print(f"{draft}: {dict(counts)}; rejected for no such reason: {share:.2%}")
    return not counts["accepted"] and share <= 0.01


def reason(grammar: Any, value: Any, file: str) -> str:
    """Return why a valid instance is rejected: README.md of engine/grammar tells each."""
    if any(accepts(grammar, other) for other in islice(in_any_order(value), MOST_ORDERS)):
        return "only in another order"
    if "xn--" in json.dumps(value):
        return "rejected A-label"
    return "rejected for a format that is an annotation" if file == "format.json" else "rejected"


def in_any_order(value: Any) -> Iterator[Any]:
    """Return a value with its members in all orders, at any depth."""
    if isinstance(value, dict):
        for members in product(*([(name, inner) for inner in in_any_order(v)] for name, v in value.items())):
            yield from (dict(order) for order in permutations(members))
    elif isinstance(value, list):
        yield from map(list, product(*map(in_any_order, value)))
    else:
        yield value


def whole(value: Any) -> Any:
    """Return a value with `1` for `1.0`."""
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return list(map(whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


if __name__ == "__main__":
    main()
