"""Schemas of tools as they come from pydantic, from OpenAPI documents and from MCP servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, HttpUrl, RootModel, create_model


class Size(StrEnum):
    small = "small"
    large = "large"


class Address(BaseModel):
    street: str
    city: str = Field(min_length=1, max_length=80, examples=["Kyoto"])
    postcode: Annotated[str, Field(pattern=r"^\d{3}-\d{4}$")]
    country: Literal["JP", "US"] = "JP"


class Customer(BaseModel):
    """A customer of the shop."""

    model_config = ConfigDict(extra="forbid")
    id: UUID
    address: Address
    billing: Address | None = None
    since: date | None = None
    tags: list[str] = []


class Line(BaseModel):
    title: str = Field(alias="itemTitle")
    copies: int = Field(ge=1, le=99, multiple_of=1)
    price: float = Field(gt=0, lt=1e6)
    size: Size | None = None


class Order(BaseModel):
    lines: list[Line] = Field(min_length=1, max_length=20)
    customer: Customer
    notes: dict[str, str | int] = {}
    placed: datetime


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Bird(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["bird", "parrot"] = "bird"
    colours: set[str] = Field(set(), max_length=1)


Pet = Annotated[Cat | Dog | Bird, Field(discriminator="kind")]


class AnyPet(RootModel[Pet]):
    """A pet at the root."""


class Leaf(BaseModel):
    op: Literal["leaf"] = "leaf"
    value: float


class Sum(BaseModel):
    op: Literal["sum"] = "sum"
    terms: list[Annotated[Leaf | Sum, Field(discriminator="op")]]


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Page(RootModel[list[Order]]):
    """A page of orders."""


FIELDS: dict[str, tuple[Any, Any]] = {
    "by_date": (date | datetime, ...),
    "opening": (time | None, None),
    "for_how_long": (timedelta, ...),
    "address": (IPv4Address, ...),
    "where": (AnyUrl, ...),
    "site": (HttpUrl, ...),
    "file": (Path, Field(description="Path of the file")),
    "pair": (tuple[int, str], ...),
    "triple": (tuple[float, float, float] | None, None),
    "sizes": (set[Size], ...),
    "scores": (dict[str, float], ...),
    "matrix": (list[list[int]], ...),
    "anything": (Any, None),
    "pet": (Annotated[Cat | Dog, Field(discriminator="kind")], ...),
    "pets": (list[Cat | Dog], ...),
    "tagged": (Pet, ...),
    "tagged_pets": (list[Pet], []),
    "tagged_or_none": (Pet | None, None),
    "tagged_by_name": (dict[str, Pet], {}),
    "any_pet": (AnyPet, ...),
    "sum": (Sum, ...),
    "nested_optional": (list[list[Cat | None] | None] | None, None),
    "lookup": (dict[str, Order | None], {}),
    "literal": (Literal["asc", "desc", 1, None, True], "asc"),
    "text_or_list": (str | list[str], ...),
    "percent": (Annotated[float, Field(ge=0, le=100, multiple_of=0.5)], ...),
}


def of_pydantic() -> Iterator[tuple[str, dict[str, Any]]]:
    for model in (Address, Customer, Line, Order, Cat, Node, Page):
        schema = model.model_json_schema()
        if model is Page:  # a tool takes an object
            schema = {"type": "object", "properties": {"page": schema}, "required": ["page"]}
            schema["$defs"] = schema["properties"]["page"].pop("$defs")
        yield f"pydantic_{model.__name__}", schema
    for name, (kind, default) in FIELDS.items():
        model = create_model(f"With_{name}", **{name: (kind, default)})
        yield f"pydantic_{name}", model.model_json_schema()


def tool(**properties: Any) -> dict[str, Any]:
    """Return parameters; a property whose name ends in an underscore is required."""
    names = [name.removesuffix("_") for name in properties]
    return {
        "type": "object",
        "properties": dict(zip(names, properties.values(), strict=True)),
        "required": [name.removesuffix("_") for name in properties if name.endswith("_")],
    }


TEXT: dict[str, Any] = {"type": "string"}
OPENAPI: dict[str, dict[str, Any]] = {
    "get_weather": tool(
        location_={**TEXT, "description": "City", "example": "Tokyo"},
        unit={**TEXT, "enum": ["celsius", "fahrenheit"]},
    ),
    "strict_weather": {**tool(location_=TEXT), "additionalProperties": False, "strict": True},
    "list_pets": tool(
        limit={"type": "integer", "format": "int32", "minimum": 1, "maximum": 100, "default": 20}
    ),
    "find_pet": tool(petId_={"type": "integer", "format": "int64", "x-go-name": "ID"}),
    "create_pet": tool(
        name_={**TEXT, "minLength": 1}, tag={**TEXT, "nullable": True}, xml={"xml": {"name": "p"}}
    ),
    "upload": tool(
        file_={**TEXT, "format": "binary"}, mask={**TEXT, "format": "byte", "contentEncoding": "base64"}
    ),
    "login": tool(user_=TEXT, password_={**TEXT, "format": "password", "writeOnly": True}),
    "price": tool(amount_={"type": "number", "format": "double", "minimum": 0, "exclusiveMinimum": True}),
    "book": tool(checkIn_={**TEXT, "format": "date"}, guests={"type": "integer", "minimum": 1, "maximum": 8}),
    "event": tool(start_={**TEXT, "format": "date-time"}, zone={**TEXT, "enum": ["UTC", "Asia/Tokyo"]}),
    "mail": tool(to_={"type": "array", "items": {**TEXT, "format": "email"}, "minItems": 1}, subject=TEXT),
    "hook": tool(
        url_={**TEXT, "format": "uri"}, events={"type": "array", "items": {"enum": ["push", "pull"]}}
    ),
    "payment": tool(
        method_={
            "oneOf": [{"$ref": "#/components/schemas/Card"}, {"$ref": "#/components/schemas/Bank"}],
            "discriminator": {"propertyName": "type", "mapping": {"card": "#/components/schemas/Card"}},
        }
    )
    | {
        "components": {
            "schemas": {
                "Card": tool(type_={"enum": ["card"]}, number_={**TEXT, "pattern": "^[0-9]{16}$"}),
                "Bank": tool(type_={"enum": ["bank"]}, iban_={**TEXT, "maxLength": 34}),
            }
        }
    },
    "extended": {"allOf": [tool(id_={"type": "integer"}), tool(name_=TEXT)], "type": "object"},
    "metadata": tool(labels={"type": "object", "additionalProperties": TEXT, "maxProperties": 5}),
    "tree": tool(root_={"$ref": "#/$defs/n"})
    | {"$defs": {"n": tool(left={"$ref": "#/$defs/n"}, value=TEXT)}},
    "no_parameters": {"type": "object", "properties": {}},
    "only_type": {"type": "object"},
    "password": tool(new_={**TEXT, "pattern": r"^(?=.*[A-Z])(?=.*\d).{8,20}$"}),
}
OLD = {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False}
MCP: dict[str, dict[str, Any]] = {
    "read_file": {**tool(path_=TEXT, head={"type": "number"}, tail={"type": "number"}), **OLD},
    "edit_file": {
        **tool(
            path_=TEXT,
            edits_={
                "type": "array",
                "items": tool(oldText_=TEXT, newText_=TEXT) | {"additionalProperties": False},
            },
        ),
        **OLD,
    },
    "search_repositories": tool(
        query_=TEXT, page={"type": "number"}, perPage={"type": "number", "maximum": 100}
    ),
    "create_issue": tool(
        owner_=TEXT,
        title_=TEXT,
        labels={"type": "array", "items": TEXT},
        milestone={"type": ["integer", "null"]},
    ),
    "create_review": tool(
        event_={**TEXT, "enum": ["APPROVE", "COMMENT"]},
        comments={
            "type": "array",
            "items": {"anyOf": [tool(line_={"type": "number"}), tool(position_={"type": "number"})]},
        },
    ),
    "query": tool(sql_=TEXT),
    "navigate": {**tool(url_=TEXT), **OLD},
    "click": tool(x_={"type": "integer", "minimum": 0}, y_={"type": "integer", "minimum": 0}),
    "think": tool(
        thought_={**TEXT, "description": "Step"},
        nextThoughtNeeded_={"type": "boolean"},
        thoughtNumber_={"type": "integer", "minimum": 1},
    ),
    "create_entities": tool(
        entities_={"type": "array", "items": tool(name_=TEXT, observations_={"type": "array", "items": TEXT})}
    ),
    "post_message": tool(
        channel_id_={**TEXT, "pattern": "^[CDG][A-Z0-9]{8,}$"}, text_={**TEXT, "maxLength": 4000}
    ),
    "convert_time": tool(time_={**TEXT, "pattern": r"^([01]?\d|2[0-3]):[0-5]\d$"}, zone_=TEXT),
    "fetch_page": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **tool(
            url_={**TEXT, "format": "uri", "minLength": 1, "title": "Url"},
            raw={"type": "boolean", "default": False},
        ),
    },
    "filter": tool(
        where_={"anyOf": [{"type": "object", "additionalProperties": {}}, TEXT, {"type": "null"}]}
    ),
    "arguments": tool(arguments={"type": "object", "additionalProperties": True}, values={"type": "array"}),
    "typed_by_hand": {"properties": {"a": {"minimum": 0}, "b": {"const": 1}}, "required": ["a"]},
}


def schemas() -> dict[str, dict[str, Any]]:
    """Return the parameters of all tools, by name."""
    return dict(of_pydantic()) | OPENAPI | MCP
