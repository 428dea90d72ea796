from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer

from engine.zoo.catalogue import Catalogue, draw_catalogue
from engine.zoo.corpus import tokenizer_texts
from engine.zoo.registry import MODELS
from engine.zoo.tokenizer import load_tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The shipped tokenizer, or one trained on the spot before there is one."""
    folder = MODELS / "shop"
    return load_tokenizer(folder) if folder.exists() else train_tokenizer(tokenizer_texts(1000))


@pytest.fixture(params=["en", "ja"])
def catalogue(request: pytest.FixtureRequest) -> Catalogue:
    return draw_catalogue(Random(5), request.param, 6)
