"""Small vocabularies to mask, and the tiny engine of the frontend's tests."""

from __future__ import annotations

from tests.frontend.conftest import llm, make_llm, model_dir, settings

__all__ = ["llm", "make_llm", "model_dir", "settings"]
