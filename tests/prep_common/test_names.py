"""Messages for unknown names."""

import re
from pathlib import Path

from prep_common.names import closest, unknown_name

ROOT = Path(__file__).resolve().parents[2]


def test_the_closest_name_is_named_whatever_its_case() -> None:
    assert unknown_name("unknown GPU", "H10", ["a100", "h100"]) == "unknown GPU 'H10'; did you mean 'h100'?"
    assert closest("REPLICAS", ["replicas", "rate"]) == "replicas"


def test_the_beginning_of_a_long_name_suggests_it() -> None:
    assert closest("min", ["signal", "min_replicas", "max_replicas"]) == "min_replicas"


def test_a_part_of_a_long_name_suggests_it() -> None:
    ids = ["memory.paged_attention", "prefix_cache.key_of_an_image"]
    assert closest("key_of", ids) == "prefix_cache.key_of_an_image"
    assert closest("of", ids) is None


def test_without_a_close_name_all_are_listed_or_the_place_that_lists_them() -> None:
    assert unknown_name("unknown GPU", "xyz", ["a100", "h100"]) == "unknown GPU 'xyz'; known: a100, h100"
    assert unknown_name("no lab is called", "xyz", ["a"], "prep lab lists them") == (
        "no lab is called 'xyz'; prep lab lists them"
    )
    assert unknown_name("no card is called", "x", []) == "no card is called 'x'; known: none"


def test_the_word_itself_is_never_suggested() -> None:
    assert closest("gpu", ["gpu", "tp"]) is None
    assert "did you mean" not in unknown_name("unknown setting", "gpu", ["gpu", "tp"])


def test_one_module_suggests_names() -> None:
    """A second way would word its suggestions differently."""
    users = [
        path.relative_to(ROOT).as_posix()
        for floor in ("prep_common", "kernels", "engine", "quizzes", "lessons", "interview", "app")
        for path in (ROOT / floor).rglob("*.py")
        if re.search(r"\bget_close_matches\b", path.read_text(encoding="utf-8"))
    ]
    assert users == ["prep_common/names.py"]
