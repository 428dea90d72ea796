"""Schema of a card in `bank/<kind>.yaml`: dated facts with sources, and what each kind of card adds to them.

    engine      features: one cell of the feature matrix for each feature that a source documents
    hardware    devices: names in engine/sim/hardware.py, where the numbers are
    paper       idea, and one claim that an experiment reproduces in miniature
    release     date, and claims of interview guides that it decides

Every statement about the world names a source of the card, and every source has a date.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from quizzes.question import Id, Source, Strict
from quizzes.topics import TOPICS

Date = Annotated[str, Field(pattern=r"^\d{4}(-\d{2}){0,2}$")]

KINDS = {
    "engine": "inference engines: what each documents, with dates",
    "hardware": "accelerators: rates, memory, ridge points",
    "paper": "papers: the idea, and one claim that runs in miniature",
    "release": "releases of vLLM: when what came and went",
}

FEATURES = {
    "paged_kv": "KV cache in blocks or pages",
    "continuous_batching": "requests join and leave the batch at every step",
    "chunked_prefill": "prompts cut into chunks beside decodes",
    "prefix_cache": "KV of earlier prompts found again",
    "speculation": "speculative decoding",
    "structured_output": "grammars or JSON schemas",
    "lora": "LoRA adapters, several per server",
    "weights_4bit": "4-bit weights",
    "kv_quantized": "KV cache in 8 bits or fewer",
    "disaggregation": "prefill and decode in separate processes",
    "openai_api": "OpenAI-compatible HTTP server",
    "nvidia": "NVIDIA GPUs",
    "amd": "AMD GPUs",
    "cpu": "CPUs without a GPU",
    "apple": "Apple GPUs",
}
"""Rows of the feature matrix."""
_LABELS = {
    "paged_kv": "paged KV",
    "lora": "LoRA",
    "weights_4bit": "4-bit weights",
    "kv_quantized": "quantised KV",
    "openai_api": "OpenAI API",
    "nvidia": "NVIDIA GPUs",
    "amd": "AMD GPUs",
    "cpu": "CPUs",
    "apple": "Apple GPUs",
}


def feature_label(name: str) -> str:
    """Return a feature as a reader sees it: "paged KV"."""
    return _LABELS.get(name, name.replace("_", " "))


class Fact(Strict):
    """A statement and the source of the card that supports it."""

    says: str
    source: Id


class Cell(Strict):
    """Whether an engine has a feature, as its own documents or its source say."""

    has: Literal["yes", "partly", "no"]
    note: str = ""
    source: Id


class Miniature(Strict):
    """A claim of a paper, reproduced at the size of a laptop."""

    claim: str
    """The paper's claim, in our words."""
    run: str
    args: dict[str, Any] = {}
    holds: str
    """An =expression over result and args that is true if the claim holds here."""
    shows: str
    """Finding of the run: a template over result and args."""
    leaves_out: str
    """Limits: parts of the paper that the run does not test."""
    slow: bool = False
    """It takes seconds: it loads a model or starts processes."""


class Card(Strict):
    """Fields of all kinds."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    id: Annotated[str, Field(pattern=r"^(engine|hardware|paper|release)\.[a-z0-9_]+$")]
    title: Annotated[str, Field(max_length=80)]
    names: list[str] = []
    """Other names by which `prep answer` and `prep cards show` find it."""
    topics: Annotated[list[str], Field(min_length=1)]
    """Topics on whose cheat sheets it stands."""
    sources: Annotated[dict[Id, Source], Field(min_length=1)]
    facts: list[Fact] = []
    claims: list[Annotated[str, Field(pattern=r"^S[0-4]-\d{2,3}$")]] = []
    """Claims of interview guides about the same thing; their verdicts are in quizzes/claims."""
    questions: list[str] = []
    """Questions of the bank about the same thing."""

    @property
    def kind(self) -> str:
        return self.id.split(".")[0]

    def sourced(self) -> list[tuple[str, str]]:
        """Return every statement with the id of its source."""
        return [(fact.says, fact.source) for fact in self.facts]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for topic in self.topics:
            if topic not in TOPICS:
                raise ValueError(f"topic {topic!r} is unknown; known: {', '.join(TOPICS)}")
        for name, source in self.sources.items():
            if source.as_of is None:
                raise ValueError(f"source {name!r} has no as_of: every source needs a date")
            if source.url is None and source.version is None and not source.is_ours:
                raise ValueError(f"source {name!r} needs a url or a version")
        for says, name in self.sourced():
            if name not in self.sources:
                raise ValueError(f"there is no source {name!r} for {says!r}")
        unused = set(self.sources) - {name for _, name in self.sourced()}
        if unused:
            raise ValueError(f"no statement uses the source {', '.join(sorted(unused))}")
        return self


class EngineCard(Card):
    short: Annotated[str, Field(max_length=5)]
    """Heading of its column in the feature matrix."""
    licence: str
    languages: str
    """Programming languages."""
    features: dict[str, Cell]
    """Feature -> cell. A feature that is missing here was not verified, which is not a no."""

    def sourced(self) -> list[tuple[str, str]]:
        return super().sourced() + [(name, cell.source) for name, cell in self.features.items()]

    @model_validator(mode="after")
    def _known_features(self) -> Self:
        for name in self.features:
            if name not in FEATURES:
                raise ValueError(f"feature {name!r} is unknown; known: {', '.join(FEATURES)}")
        return self


class HardwareCard(Card):
    devices: Annotated[list[str], Field(min_length=1)]
    """Names in engine.sim.hardware, which has the numbers."""


class PaperCard(Card):
    authors: str
    year: int
    venue: str
    arxiv: Annotated[str | None, Field(pattern=r"^\d{4}\.\d{5}$")] = None
    idea: str
    """The idea in two sentences."""
    miniature: Miniature


class ReleaseCard(Card):
    version: str
    date: Date


CLASSES: dict[str, type[Card]] = {
    "engine": EngineCard,
    "hardware": HardwareCard,
    "paper": PaperCard,
    "release": ReleaseCard,
}


def parse(data: dict[str, Any]) -> Card:
    """Return the card of its kind. Raises ValueError."""
    kind = str(data.get("id", "")).split(".")[0]
    return CLASSES.get(kind, Card).model_validate(data)
