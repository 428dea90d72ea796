"""YAML files: values, lines, and files that are not YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep_common.yaml_text import YamlError, YamlFile


def test_a_location_has_the_line_of_its_deepest_part(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb:\n  - c: 2\n  - {d: 3,\n     e: 4}\n")
    file = YamlFile(path)
    assert file.value == {"a": 1, "b": [{"c": 2}, {"d": 3, "e": 4}]}
    locations = [(), ("a",), ("b",), ("b", 0, "c"), ("b", 1, "e"), ("b", 1, "missing"), ("nowhere", 3)]
    assert [file.line(location) for location in locations] == [1, 1, 2, 3, 5, 4, 1]


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"a: [1,\nb: 2", 2, "not valid YAML"),
        (b"a: 1\n\tb: 2", 2, "not valid YAML"),
        (b"a: 2026-13-45", 1, "month must be"),
        (b"a: " + b"9" * 5000, 1, "not valid YAML"),
        (b"[" * 20_000, 1, "not valid YAML"),
        (b"\xff\xfe\x00", None, "not text in UTF-8 .byte 0"),
        (b"a: !!python/object:os.system x", 1, "not valid YAML"),
    ],
    ids=["brackets", "tab", "date", "digits", "deep", "binary", "object"],
)
def test_a_file_that_is_not_yaml_is_refused_with_its_line(
    tmp_path: Path, content: bytes, line: int | None, words: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(YamlError, match=words) as refused:
        YamlFile(path)
    assert refused.value.line == line


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "it is a folder"), (tmp_path / "none", "it does not exist")):
        with pytest.raises(YamlError, match=words):
            YamlFile(path)
