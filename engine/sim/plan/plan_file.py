"""The plan of a service: model, hardware, traffic, limits, prices, regions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from engine.sim.hardware import get_hardware
from engine.sim.models import get_model
from engine.sim.plan.quantity import Money, parse, parse_money
from engine.sim.plan.regions import light_rtt
from engine.sim.router import ROUTERS


def _quantity(kind: str) -> Any:
    return BeforeValidator(lambda value: parse(value, kind))


def _money(kind: str) -> Any:
    return BeforeValidator(lambda value: parse_money(value, kind))


Rate = Annotated[float, _quantity("rate")]
Time = Annotated[float, _quantity("time")]
Share = Annotated[float, _quantity("share")]
Number = Annotated[float, _quantity("number")]
Tokens = Annotated[float, _quantity("tokens")]
Speed = Annotated[float, _quantity("speed")]
PerHour = Annotated[Money, _money("per hour")]
PerMonth = Annotated[Money, _money("per month")]
PerMtok = Annotated[Money, _money("per Mtok")]
Km = Annotated[float, _quantity("distance")]

DAYS = {
    "flat": (1.0,) * 24,
    "office": (
        .15, .1, .1, .1, .1, .15, .3, .6, 1.2, 1.8, 2.1, 2.1, 1.8, 2.0, 2.2, 2.1, 1.9, 1.5, 1.0, .8, .6, .5, .4, .3,
    ),
    "evening": (
        .7, .4, .25, .2, .2, .25, .4, .6, .8, .9, 1.0, 1.1, 1.2, 1.1, 1.0, 1.0, 1.1, 1.3, 1.6, 1.9, 2.1, 2.0, 1.6, 1.2,
    ),
}  # fmt: skip
"""Relative traffic by hour of the day; only the shape counts. Assumptions: replace them with your own 24 numbers."""


class Part(BaseModel):
    """A mapping of the file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HardwarePart(Part):
    """GPUs of one replica."""

    gpu: str
    tp: int = Field(1, ge=1, le=64)
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    storage: Speed = 2e9
    """Speed at which a new replica reads its weights."""
    start_overhead: Time = 60.0
    """Start of a replica without reading its weights: machine, image, compilation, warm-up."""
    wake: Time | None = None
    """Measured wake-up of a sleeping model; by default its weights over the link to the host."""

    @field_validator("gpu")
    @classmethod
    def _known(cls, name: str) -> str:
        return get_hardware(name).name


class TrafficPart(Part):
    """Requests: mean rate over a day, shape of the day, bursts, lengths."""

    rate: Rate
    peak_factor: Annotated[float, _quantity("number"), Field(ge=1, le=1000)] = 1.0
    """Bursts: highest rate over the mean of the busiest hour."""
    day: Literal["flat", "office", "evening"] | list[Number] = "flat"
    prompt: Tokens
    output: Annotated[float, _quantity("tokens"), Field(ge=2)]
    prefix_share: Annotated[float, _quantity("share"), Field(le=0.99)] = 0.0
    prefixes: int = Field(1, ge=1, le=1000)

    @field_validator("day")
    @classmethod
    def _hours(cls, day: Any) -> Any:
        if isinstance(day, list) and (len(day) != 24 or not sum(day)):
            raise ValueError(f"a day has 24 numbers, one per hour, some positive; got {len(day)}")
        return day

    @property
    def hours(self) -> tuple[float, ...]:
        """Mean requests per second in each hour."""
        shape = DAYS[self.day] if isinstance(self.day, str) else tuple(self.day)
        return tuple(self.rate * 24 * weight / sum(shape) for weight in shape)


class SloPart(Part):
    """Limits on means, per request."""

    ttft: Annotated[float, _quantity("time"), Field(gt=0)] = 1.0
    tpot: Annotated[float, _quantity("time"), Field(gt=0)] = 0.1
    e2e: Annotated[float, _quantity("time"), Field(gt=0)] | None = None
    """First byte of the request to the last token."""


class PricePart(Part):
    """Own GPUs against a managed service."""

    gpu: PerHour
    people: PerMonth | None = None
    managed_prompt: PerMtok | None = None
    managed_output: PerMtok | None = None

    @model_validator(mode="after")
    def _consistent(self) -> PricePart:
        given = [self.gpu, self.people, self.managed_prompt, self.managed_output]
        currencies = sorted({money.currency for money in given if money is not None})
        if len(currencies) > 1:
            raise ValueError(f"prices mix {' and '.join(currencies)}; convert them to one currency")
        if (self.managed_prompt is None) != (self.managed_output is None):
            raise ValueError("managed_prompt and managed_output belong together: give both or neither")
        return self


class RegionPart(Part):
    """A place with replicas, and the share of the users who are nearest to it."""

    name: str = Field(min_length=1)
    users: Share
    zones: int = Field(1, ge=1, le=20)


class LinkPart(Part):
    """The network between two regions."""

    between: list[str] = Field(min_length=2, max_length=2)
    distance: Km
    rtt: Time | None = None
    """Measured; by default 1.5 times the time of light in fibre."""

    @model_validator(mode="after")
    def _possible(self) -> LinkPart:
        if self.rtt is not None and self.rtt < (floor := light_rtt(self.distance)):
            raise ValueError(
                f"an RTT of {1000 * self.rtt:g} ms over {self.distance:,.0f} km is impossible: light in fibre takes "
                f"{1000 * floor:.1f} ms there and back"
            )
        return self


class FailurePart(Part):
    """Domains that may be down at the same time while the rest holds the whole peak."""

    domain: Literal["replica", "zone", "region"] = "replica"
    down: int = Field(1, ge=0, le=100)
    unavailability: Share = 0.001
    """Share of the time for which one domain is down."""
    common_cause: Share = 0.05
    """Share of these outages that takes all domains down together: a deployment, DNS, one provider."""


class Plan(Part):
    """A service to size."""

    name: str = "plan"
    model: str
    hardware: HardwarePart
    traffic: TrafficPart
    slo: SloPart = SloPart()
    headroom: Annotated[float, _quantity("share"), Field(ge=0.01)] = 0.7
    """Planned share of a replica's maximum request rate."""
    router: str = "least-loaded"
    price: PricePart | None = None
    regions: list[RegionPart] = Field(default_factory=list)
    links: list[LinkPart] = Field(default_factory=list)
    failure: FailurePart | None = None

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        return get_model(name).name

    @field_validator("router")
    @classmethod
    def _known_router(cls, name: str) -> str:
        if name not in ROUTERS:
            raise ValueError(f"unknown router {name!r}; choose one of {', '.join(ROUTERS)}")
        return name

    @field_validator("regions")
    @classmethod
    def _whole(cls, regions: list[RegionPart]) -> list[RegionPart]:
        names = [region.name for region in regions]
        if len(set(names)) < len(names):
            raise ValueError(f"a region appears twice: {', '.join(names)}")
        if regions and abs(sum(region.users for region in regions) - 1) > 1e-6:
            raise ValueError(
                f"the users of all regions add up to {sum(r.users for r in regions):.0%}, not 100 %"
            )
        return regions

    @model_validator(mode="after")
    def _complete(self) -> Plan:
        names = {region.name for region in self.regions}
        linked = [frozenset(link.between) for link in self.links]
        for pair in linked:
            if len(pair) < 2 or not pair <= names:
                raise ValueError(f"a link joins two of the regions {sorted(names)}, got {sorted(pair)}")
        missing = [sorted(pair) for pair in self.pairs() if pair not in linked]
        if missing:
            raise ValueError(f"links lacks the distance between {' and '.join(missing[0])}")
        if self.failure is not None and self.failure.down >= (count := self.num_domains):
            if self.failure.domain != "replica":
                raise ValueError(
                    f"failure.down is {self.failure.down} of {count} {self.failure.domain}s: one must survive"
                )
        return self

    def pairs(self) -> Iterator[frozenset[str]]:
        return (frozenset(pair) for pair in combinations([region.name for region in self.regions], 2))

    @property
    def num_domains(self) -> int:
        """Failure domains; replicas count as none here, since their number is a result."""
        if self.failure is None or self.failure.domain == "replica":
            return 0
        return len(self.regions) if self.failure.domain == "region" else sum(r.zones for r in self.regions)
