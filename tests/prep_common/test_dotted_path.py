"""Objects by dotted path, and the class settings that use them."""

from __future__ import annotations

import json

import pytest

from engine.config import ConfigError
from engine.config.settings import load_class
from prep_common.dotted_path import load_object


def test_an_object_is_found_by_its_path() -> None:
    assert load_object("json:JSONDecoder") is json.JSONDecoder
    assert load_object("json:JSONDecoder.decode") is json.JSONDecoder.decode


@pytest.mark.parametrize("path", ["json", "json:", ":JSONDecoder", ""])
def test_another_form_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="must look like 'package.module:Name'"):
        load_object(path)


@pytest.mark.parametrize("path", ["no.such.module:Class", "json:Nothing", "json:JSONDecoder.nothing"])
def test_a_missing_name_is_an_import_error(path: str) -> None:
    with pytest.raises(ImportError):
        load_object(path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("json", "drafter 'json' must look like 'package.module:Class'"),
        (
            "json:Nothing",
            "drafter 'json:Nothing' cannot be imported: module 'json' has no attribute 'Nothing'",
        ),
        ("json:JSONDecoder", "drafter 'json:JSONDecoder' has no propose; see Drafter"),
    ],
)
def test_a_class_setting_names_what_is_wrong(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_class(spec, "drafter", ("decode", "propose"), "Drafter")
    assert load_class(json.JSONEncoder, "drafter") is json.JSONEncoder
