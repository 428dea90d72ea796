"""Models from the Hub: the cache first, never pickles, and an error that helps without a network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from engine.config import ConfigError, EngineArgs
from engine.models.hf_config import load_model_config
from tests.models.checkpoints import write_checkpoint


class FakeHub:
    """Stands in for huggingface_hub: what is in the cache, what the Hub has, whether it can be reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.cached = False
        self.reachable = True
        self.files = ["config.json", "model.safetensors"]
        self.calls: list[dict[str, Any]] = []
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=self.model_info))

    def snapshot_download(self, repo_id: str, **kwargs: Any) -> str:
        self.calls.append(kwargs)
        if kwargs["local_files_only"] and not self.cached:
            raise LocalEntryNotFoundError("not in the cache")
        return str(self.folder)

    def model_info(self, repo_id: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
        assert timeout <= 10
        if not self.reachable:
            raise ConnectionError("no route to host")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.files])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    return FakeHub(monkeypatch, write_checkpoint(tmp_path))


def load(**args: Any) -> Any:
    return load_model_config(EngineArgs(model="someone/tiny-llama", **args))


def test_a_complete_copy_in_the_cache_needs_no_network(hub: FakeHub) -> None:
    hub.cached, hub.reachable = True, False
    assert load().path == hub.folder
    assert len(hub.calls) == 1


def test_a_download_takes_no_pickles_and_honours_revision_and_cache_folder(hub: FakeHub) -> None:
    assert load(revision="main", download_dir="somewhere").path == hub.folder
    call = hub.calls[-1]
    assert not call["local_files_only"]
    assert (call["revision"], call["cache_dir"]) == ("main", "somewhere")
    assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in call["allow_patterns"])


def test_without_a_network_the_error_says_what_to_do(hub: FakeHub) -> None:
    hub.reachable = False
    with pytest.raises(
        ConfigError, match=r"cannot reach .*ConnectionError.*local folder.*hf download someone/tiny"
    ):
        load()


def test_a_repository_without_safetensors_is_refused_before_downloading(hub: FakeHub) -> None:
    hub.files = ["config.json", "pytorch_model.bin"]
    with pytest.raises(ConfigError, match="no safetensors weights"):
        load()
    assert all(call["local_files_only"] for call in hub.calls)
