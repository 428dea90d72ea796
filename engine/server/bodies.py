"""Bodies of requests as JSON: read by pydantic's parser, which bounds what a body can cost.

    nested too deeply    refused at 200 levels: readers of bodies are recursive (templates, xgrammar, pickle)
    long numbers         refused at 4,300 digits
    half a surrogate     refused: such text can be neither tokenised, logged nor sent back
    NaN, 1e999           accepted, as by Python's `json`; the checks of each field decide

Python's own parser accepts the third, and the fields of a mapping then have one error for each key.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any

from pydantic_core import from_json


def parse(body: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ValueError that says what is wrong and where."""
    try:
        return from_json(body.removeprefix(BOM_UTF8))
    except ValueError as error:
        message = str(error)
        if message.startswith("recursion limit"):
            raise ValueError("the body is nested too deeply") from None
        raise ValueError(f"the body is not JSON: {message}") from None
