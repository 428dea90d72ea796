"""A YAML file: its value, and the line of each key in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prep_common.text_file import why_unreadable


class YamlError(ValueError):
    """A file that cannot be read or is not valid YAML."""

    def __init__(self, message: str, line: int | None = None) -> None:
        """line: None if the file has no lines."""
        super().__init__(message)
        self.line = line


class YamlFile:
    """A file's only document."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises YamlError."""
        import yaml

        try:
            self._text = path.read_text(encoding="utf-8-sig")
            self.value: Any = yaml.load(self._text, Loader=_loader())
        except (OSError, UnicodeDecodeError) as error:
            raise YamlError(f"cannot be read: {why_unreadable(path, error)}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            last = len(self._text.splitlines())
            line = 1 if mark is None else min(mark.line + 1, last)
            raise YamlError(f"not valid YAML: {problem}", line) from None
        except RecursionError:
            raise YamlError("not valid YAML: nested too deeply", 1) from None
        except ValueError as error:  # a date without such a day, a number of 5,000 digits
            raise YamlError(f"not valid YAML: {error}", 1) from None

    def line(self, location: tuple[int | str, ...]) -> int:
        """Return the line of the value at a location, or of the last part of the location that exists."""
        import yaml

        node, line = yaml.compose(self._text, Loader=_loader()), 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                pairs = [pair for pair in node.value if pair[0].value == str(part)]
                if not pairs:
                    break
                key, node = pairs[-1]  # of a repeated key, the last value counts
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line


def _loader() -> Any:
    """Return the parser in C if it is there."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
