"""Fetching a checkpoint from the Hugging Face Hub, with errors that say what to do without a network."""

from __future__ import annotations

from pathlib import Path

from engine.config import ConfigError

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_TIMEOUT_S = 5.0


def download(repo_id: str, *, revision: str | None, cache_dir: str | None, shipped: list[str]) -> Path:
    """The folder of a Hub repository: from the local cache if it is complete there, else downloaded.

    Only configuration, tokenizer and safetensors files are taken, never pickles. Whether the Hub can be
    reached is asked once with a short timeout, so a machine without network fails in seconds.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def fetch(*, local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                repo_id,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=_FILES,
                local_files_only=local_files_only,
            )
        )

    try:
        cached = fetch(local_files_only=True)
        if (cached / "config.json").exists() and any(cached.glob("*.safetensors")):
            return cached
    except (LocalEntryNotFoundError, HFValidationError):
        pass

    try:
        files = HfApi().model_info(repo_id, revision=revision, timeout=_TIMEOUT_S).siblings or []
        if not any(file.rfilename.endswith(".safetensors") for file in files):
            raise ConfigError(
                f"{repo_id} has no safetensors weights on the Hub; pickled weights are not read"
            )
        return fetch(local_files_only=False)
    except ConfigError:
        raise
    except GatedRepoError as error:
        raise ConfigError(
            f"{repo_id} is gated: accept its licence on the Hub and log in (`hf auth login`)"
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"{repo_id} has no revision {revision!r} on the Hub") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ConfigError(
            f"no model {repo_id!r} on the Hub, or it is private; check the spelling or log in (`hf auth login`)"
        ) from error
    except Exception as error:  # the HTTP client's errors differ from version to version
        raise ConfigError(
            f"cannot reach the Hugging Face Hub for {repo_id!r} ({type(error).__name__}). Without a network use a "
            f"shipped model ({', '.join(shipped) or 'none'}) or a local folder; where there is one, "
            f"`hf download {repo_id} --local-dir FOLDER` fetches it"
        ) from error
