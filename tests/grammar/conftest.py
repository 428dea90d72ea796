"""Small vocabularies to mask, and the tiny engine of the frontend's tests."""

from __future__ import annotations

from tests.frontend.conftest import make_llm, model_dir, settings

__all__ = ["make_llm", "model_dir", "settings"]
