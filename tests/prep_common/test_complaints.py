"""Sentences about data that pydantic refused."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from prep_common.complaints import complain, complaints
from prep_common.names import closest, unknown_name

ROOT = Path(__file__).resolve().parents[2]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Card(Strict):
    gpu: str
    count: int = Field(1, ge=1, le=64)
    speed: float = Field(1.0, gt=0)


class Price(Strict):
    gpu: float = 1.0


class Tenant(Strict):
    name: str = Field(pattern=r"^[a-z]+$", description="small letters")
    api_key: str
    zones: list[int] = []


@dataclass(frozen=True)
class Scaling:
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    out_above: float
    min_replicas: int = 1


class Service(Strict):
    card: Card
    price: Price | None = None
    tenants: list[Tenant] = []
    scaling: Scaling | None = None
    day: Literal["flat", "office"] | list[float] = "flat"
    labels: dict[str, int] = {}
    events: Path | None = None
    is_open: bool = False
    seed: int = Field(0, le=2**63 - 1)

    @field_validator("events")
    @classmethod
    def _not_here(cls, value: Path | None) -> Path | None:
        if value == Path("here"):
            raise ValueError("'here' is no file; give another name")
        return value


def refuse(**data: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        Service.model_validate({"card": {"gpu": "h100"}, **data})
    return [complaint.text for complaint in complaints(refused.value.errors(), Service)]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"card": {"gpu": "h100", "count": "two"}}, "card.count: must be a whole number, got 'two'"),
        ({"card": {"gpu": "h100", "count": 1.5}}, "card.count: must be a whole number, got 1.5"),
        ({"card": {"gpu": "h100", "count": 1000}}, "card.count: must be at most 64, got 1000"),
        (
            {"seed": 2**63},
            "seed: must be at most 9,223,372,036,854,775,807, got 9223372036854775808",
        ),
        ({"card": {"gpu": "h100", "count": -1}}, "card.count: must be at least 1, got -1"),
        ({"card": {"gpu": "h100", "speed": 0}}, "card.speed: must be more than 0, got 0"),
        ({"card": {"gpu": "h100", "speed": float("nan")}}, "card.speed: must be a finite number, got nan"),
        ({"card": {"gpu": True}}, "card.gpu: must be a text, got true"),
        ({"card": {}}, "card.gpu: is missing"),
        ({"card": [1]}, "card: must be a mapping with gpu, got [1]"),
        ({"tenants": ["a"]}, "tenants[0]: must be a mapping with name, api_key, got 'a'"),
        ({"tenants": "a"}, "tenants: must be a list, got 'a'"),
        ({"tenants": [{"name": "a", "api_key": 9}]}, "tenants[0].api_key: must be a text, got another value"),
        ({"tenants": [{"name": "A/b", "api_key": "k"}]}, "tenants[0].name: must be small letters, got 'A/b'"),
        (
            {"scaling": {"out_above": 1, "min": 1}},
            "scaling.min: unknown setting; did you mean 'min_replicas'?",
        ),
        ({"scaling": {}}, "scaling.out_above: is missing"),
        ({"labels": {"a": "b"}}, "labels.a: must be a whole number, got 'b'"),
        ({"events": 3}, "events: must be the name of a file, got 3"),
        ({"events": "here"}, "events: 'here' is no file; give another name"),
        ({"is_open": "maybe"}, "is_open: must be true or false, got 'maybe'"),
        ({"day": 3}, "day: must be 'flat' or 'office' or a list, got 3"),
        ({"day": [1, "x"]}, "day[1]: must be a number, got 'x'"),
        ({"cards": 1}, "cards: unknown setting; did you mean 'card'?"),
        ({"gpu": "h100"}, "gpu: unknown setting here; there is card.gpu or price.gpu"),
        ({"card": {"gpu": "h100", "zones": 1}}, "card.zones: unknown setting here; there is tenants[].zones"),
        ({"price": {"xyz": 1}}, "price.xyz: unknown setting; known: gpu"),
    ],
)
def test_a_sentence_names_the_path_what_is_allowed_and_the_value(data: dict[str, Any], sentence: str) -> None:
    assert refuse(**data) == [sentence]


def test_all_that_is_wrong_is_said_and_long_values_are_cut() -> None:
    [first, second] = refuse(card={"gpu": "h100", "count": "x" * 1000}, day=7)
    assert len(first) < 120 and first.endswith("…") and second.startswith("day: ")


class Counted(int):
    """A part of a path that counts how often it is compared."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.num_compared += 1
        return int(self) == other

    __hash__ = int.__hash__


class Value:
    """A value that counts how often it is written."""

    num_written = 0

    def __repr__(self) -> str:
        Value.num_written += 1
        return "x" * 10_000


@pytest.mark.parametrize("number", [1000, 4000])
def test_the_work_grows_with_the_number_of_errors_and_few_are_worded(number: int) -> None:
    """Each path was compared with all others: half a minute for 48,000 errors."""
    Counted.num_compared = Value.num_written = 0
    errors = [
        {"type": "int_type", "loc": ("prompt", Counted(index), 0), "msg": "", "input": Value()}
        for index in range(number)
    ]
    found = complaints(errors, most=5)
    assert [each.text for each in found[5:]] == [f"and {number - 5} more"] and len(found) == 6
    assert Counted.num_compared <= 10 * number and Value.num_written == 5


def test_a_place_with_many_errors_is_worded_from_a_few_of_them() -> None:
    errors = [
        {"type": "literal_error", "loc": ("a",), "msg": "", "ctx": {"expected": str(n)}} for n in range(9999)
    ]
    [found] = complaints(errors)
    assert len(found.text) < 200


def test_a_long_name_is_compared_with_no_other() -> None:
    assert closest("replicas" * 100, ["replicas" * 100 + "s"]) is None
    assert len(unknown_name("unknown setting", "x" * 10**6, ["a"])) < 200


def test_without_the_type_the_forms_of_a_union_leave_the_path() -> None:
    errors = [{"type": "int_type", "loc": ("body", "stop", "list[str]", 0), "msg": "", "input": "a"}]
    assert complain(errors) == "stop[0]: must be a whole number, got 'a'"


def test_one_module_words_the_errors_of_pydantic() -> None:
    """A second way would show pydantic's words, or lose the value."""
    users = []
    for floor in ("prep_common", "kernels", "engine", "quizzes", "lessons", "interview", "app"):
        for path in (ROOT / floor).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            reads = (node for node in ast.walk(tree) if isinstance(node, ast.Subscript))
            if any(isinstance(node.slice, ast.Constant) and node.slice.value == "loc" for node in reads):
                users.append(path.relative_to(ROOT).as_posix())
    assert users == ["prep_common/complaints.py"]
