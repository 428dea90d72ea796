"""Speculative decoding: which drafter proposes tokens, and how the target accepts them.

Source: vLLM config/speculative.py, whose names these are; `verifier`, `adaptive` and `disable_by_batch_size` are ours
(the last was vLLM V0's `speculative_disable_by_batch_size`).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from engine.config.errors import ConfigError
from engine.config.settings import parse_settings

METHODS = ("ngram", "draft_model", "eagle")
VERIFIERS = ("coupling", "rejection")
_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
_MODEL_METHODS = ("draft_model", "eagle")


@dataclass(frozen=True)
class SpeculativeConfig:
    """`speculative_config`, validated. Use `SpeculativeConfig.parse` for dicts and JSON."""

    method: str
    """ngram, draft_model, eagle, or your drafter as `package.module:Class` (`engine/spec/base.py`)."""
    num_speculative_tokens: int = 4
    """Drafts per request and step."""
    model: str | None = None
    """The draft model, or the EAGLE head."""
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    """ngram: lengths of the ending to look up in the earlier tokens; the longest match wins."""
    verifier: str = "coupling"
    """coupling: token-identical to no drafts. rejection: same distribution (`engine/sample/draft_acceptance.py`)."""
    adaptive: bool = False
    """Adapt the number of drafts of each request to its acceptance (`engine/spec/lengths.py`)."""
    disable_by_batch_size: int | None = None
    """Draft nothing in a step with more requests: a full batch has no idle compute for drafts."""

    def __post_init__(self) -> None:
        if self.method not in METHODS and ":" not in self.method:
            close = get_close_matches(self.method, METHODS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"speculative method {self.method!r} does not exist; {hint}choose {', '.join(METHODS)}, "
                "or your own drafter as 'package.module:Class'"
            )
        if self.verifier not in VERIFIERS:
            raise ConfigError(f"verifier must be one of {', '.join(VERIFIERS)}, got {self.verifier!r}")
        for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            _check_count(name, getattr(self, name))
        if self.disable_by_batch_size is not None:
            _check_count("disable_by_batch_size", self.disable_by_batch_size)
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"adaptive must be true or false, got {self.adaptive!r}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min={self.prompt_lookup_min} is more than "
                f"prompt_lookup_max={self.prompt_lookup_max}: no ending fits"
            )
        if self.method in _MODEL_METHODS and self.model is None:
            example = "shop-eagle" if self.method == "eagle" else "shop-draft"
            raise ConfigError(f'method {self.method!r} needs a model: add "model": "{example}"')

    @property
    def needs_kv(self) -> bool:
        """Whether the drafter stores its own keys and values in the target's blocks."""
        return self.method in _MODEL_METHODS

    @property
    def num_lookahead_tokens(self) -> int:
        """Positions after the newest token at which the drafter writes keys and values."""
        return self.num_speculative_tokens if self.needs_kv else 0

    @classmethod
    def parse(cls, value: SpeculativeConfig | dict[str, Any] | str | None) -> SpeculativeConfig | None:
        """Parse a dict or its JSON; None stays None: no drafts."""
        if value is None or isinstance(value, SpeculativeConfig):
            return value
        settings = parse_settings("speculative_config", value, cls, _EXAMPLE)
        if settings.get("method") is None:
            settings = {**settings, "method": _method_of(settings.get("model"))}
        for name in ("method", "model", "verifier"):
            if not isinstance(settings.get(name, ""), str | None):
                raise ConfigError(f"{name} in speculative_config must be text, got {settings[name]!r}")
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            if name in settings:
                _check_count(name, settings[name])
        if "prompt_lookup_max" in settings and "prompt_lookup_min" not in settings:  # as in vLLM
            settings["prompt_lookup_min"] = min(cls.prompt_lookup_min, settings["prompt_lookup_max"])
        if "prompt_lookup_min" in settings and "prompt_lookup_max" not in settings:
            settings["prompt_lookup_max"] = max(cls.prompt_lookup_max, settings["prompt_lookup_min"])
        return cls(**settings)


def _method_of(model: str | None) -> str:
    """Guess the method from the model's name, as vLLM does."""
    if model is None:
        raise ConfigError(f"speculative_config needs a method or a model; for example {_EXAMPLE}")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    return "eagle" if "eagle" in str(model).lower() else "draft_model"


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} in speculative_config must be an integer of at least 1, got {value!r}")
