"""The configured judge and its test result, in one file beside the learner's state."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from prep_common.paths import data_dir, write_atomically
from quizzes.free_text.canaries import GateResult
from quizzes.free_text.endpoint import Endpoint, JudgeError, checked_url
from quizzes.free_text.judge import prompt_hash


@dataclass(frozen=True)
class JudgeSettings:
    """Settings of a judge."""

    url: str
    model: str
    gate: GateResult | None = None
    """Result of its test; None before it."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.model)

    @property
    def counts(self) -> bool:
        """Return whether its marks count: it passed with this model and these instructions."""
        return not self.why_not()

    def why_not(self) -> str:
        """Return why its marks do not count; "" if they do."""
        if self.gate is None:
            return "it was not tested"
        if self.gate.model != self.model:
            return f"it was tested with {self.gate.model}"
        if self.gate.prompt != prompt_hash():
            return "the instructions have changed since its test"
        return "; ".join(self.gate.failures())


def load() -> JudgeSettings | None:
    """Return the configured judge, or None. Raises JudgeError for an unreadable file."""
    path = _path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        gate = data.get("gate")
        return JudgeSettings(str(data["url"]), str(data["model"]), GateResult(**gate) if gate else None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise JudgeError(f"{path} cannot be read: {error}; prep judge off removes it") from None


def save(settings: JudgeSettings) -> Path:
    """Check the address and save the settings. Raises JudgeError and OSError."""
    checked = JudgeSettings(checked_url(settings.url), settings.model, settings.gate)
    write_atomically(_path(), json.dumps(asdict(checked), indent=1))
    return _path()


def forget() -> bool:
    """Remove the settings. Return whether there were any."""
    there = _path().exists()
    _path().unlink(missing_ok=True)
    return there


def _path() -> Path:
    return data_dir() / "judge.json"
