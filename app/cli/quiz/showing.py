"""Rendering of questions, verdicts and explanations in 80 columns. Colour never carries the meaning alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.cli import terminal
from app.cli.hanging import Hung
from quizzes.answering import reasons, shown

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from quizzes.grading import Graded
    from quizzes.instance import Instance
    from quizzes.question import Interview

WIDTH = 80
_CODE_OR_ESCAPED = re.compile(r"`[^`\n]+`|\\([\\`*_{}\[\]<>#|~$])")
_STAND_INS = {ord("*"): 0xE000, ord("`"): 0xE001}
"""Escaped mark of Markdown -> a character of the private use area."""
_BACKSLASH = chr(0xE002)
"""Stand-in for a backslash: Rich would read one before a tag as an escape."""
_BEFORE_TAG = re.compile(_BACKSLASH + r"+(?=\\?\[[a-z#/@][^\[]*?\])")


def console() -> Console:
    out = terminal.out()
    out.width = min(out.width, 100)
    return out


def inline(text: str) -> str:
    """Convert Markdown's **bold**, *italic*, `code` and \\_ to Rich markup and escape everything else."""
    text = _CODE_OR_ESCAPED.sub(lambda match: _unescaped(match[1]) if match[1] else match[0], text)
    text = escape(text.replace("\\", _BACKSLASH))
    text = re.sub(r"\*\*(.+?)\*\*", r"[bold]\1[/]", text)
    text = re.sub(r"(?<![\w*`])\*(\w[\w '-]*)\*(?![\w*`])", r"[italic]\1[/]", text)
    text = re.sub(r"`([^`\n]+)`", r"[cyan]\1[/]", text)
    text = _BEFORE_TAG.sub(lambda match: 2 * match[0], text).replace(_BACKSLASH, "\\")
    return text.translate({stand_in: mark for mark, stand_in in _STAND_INS.items()})


def _unescaped(letter: str) -> str:
    """Return an escaped letter, as a stand-in if it would be read as Markdown."""
    return letter.translate(_STAND_INS)


def prose(text: str, indent: int = 1) -> Padding:
    """Return re-wrapped paragraphs. Numbered items (1, 2, 3 in turn), dashes and lines indented by three spaces keep
    their line breaks; an indented line below a numbered item belongs to it."""
    lines: list[str] = []
    items = 0
    for line in text.strip().splitlines():
        is_item = bool(re.match(rf"\s*{items + 1}\. ", line))
        items += is_item
        goes_on = bool(items and lines and re.match(rf"\s*{items}\. ", lines[-1]))
        is_set_off = bool(re.match(r"\s*[-*] ", line)) or line.startswith("   ") and not goes_on
        keeps = is_item or is_set_off or not line.strip()
        if lines and lines[-1].strip() and not keeps:
            lines[-1] += " " + line.strip()
        else:
            lines.append(line.rstrip())
    return Padding(Hung(Text.from_markup(inline("\n".join(lines)))), (0, 0, 0, indent), expand=False)


def bullet(text: str, more: str = "") -> Any:
    """Return a list item whose wrapped lines keep the indent. more: markup after the text."""
    row = Table.grid(padding=(0, 1))
    row.add_column(width=2, justify="right")
    row.add_column()
    row.add_row("-", Text.from_markup(inline(text) + more))
    return row


def note(text: str) -> Padding:
    """Return dimmed text whose wrapped lines keep the indent."""
    return Padding(f"[dim]{text}[/]", (0, 0, 0, 1), expand=False)


def rule(where: Console) -> None:
    where.print(("─" if terminal.unicode_ok() else "-") * min(where.width, WIDTH), style="dim")


def header(instance: Instance, number: int, total: int) -> None:
    question = instance.question
    where = console()
    place = f"{number}/{total}" if total else "probe"
    topic = question.topic.replace("_", " ")
    about = (
        f"{topic} · {question.stage.replace('_', ' ')} · difficulty {question.difficulty} · {question.kind}"
    )
    fits = len(f"{place}  {about}  {question.id}") <= where.width
    gap = "  " if fits else "\n"
    where.print(f"\n[bold]{place}[/]  {about}{gap}[dim]{question.id}[/]", soft_wrap=True)
    rule(where)


def body(instance: Instance, result: dict[str, Any] | None = None) -> None:
    """Print the prompt, the exhibit and the options. result: for exhibits that show a run."""
    question = instance.question
    where = console()
    where.print(prose(instance.prompt))
    if question.exhibit:
        where.print()
        where.print(Padding(Text(instance.render(question.exhibit, result=result)), (0, 0, 0, 3)))
    where.print()
    options(instance)


def options(instance: Instance) -> None:
    """Print the numbered options or items of a question, if it has any."""
    question = instance.question
    texts = [choice.text for choice in instance.choices()]
    if question.kind == "order":
        by_id = {item.id: item.text for item in question.items}
        texts = [by_id[item_id] for item_id in instance.items()]
    menu([instance.render(text) for text in texts])


def menu(texts: list[str]) -> None:
    """Print numbered texts, if there are any."""
    where = console()
    for number, text in enumerate(texts, 1):
        where.print(numbered(f"{number}", text))
    if texts:
        where.print()


def numbered(mark: str, text: str) -> Any:
    """Return an option: its number, then its text with wrapped lines below each other."""
    row = Table.grid(padding=(0, 1))
    row.add_column(width=4, justify="right")
    row.add_column()
    row.add_row(f"[bold]{mark}[/]", Text.from_markup(inline(text)))
    return row


def asked(instance: Instance, key: str) -> str:
    """Return the words of a prompt."""
    if not key.endswith(".interval"):
        return instance.asked(key)
    [answer] = [answer for answer in instance.question.answers if answer.id == key.removesuffix(".interval")]
    return f"  interval that contains it with {answer.interval:.0%} probability (lo..hi)"


def verdict(instance: Instance, graded: Graded, *, surprise: bool) -> None:
    """Print the prediction beside the result, part by part."""
    where = console()
    decided = "engine" if graded.grader == "experiment" else "answer"
    table = terminal.framed_table()
    table.add_column("")
    side: JustifyMethod = "left" if any(part.id == "choice" for part in graded.parts) else "right"
    table.add_column("you", justify=side, overflow="fold")
    table.add_column(decided, justify=side, overflow="fold")
    table.add_column("")
    for part in graded.parts:
        values = [escape(shown(instance, part, value)) for value in (part.given, part.expected)]
        word = "PASS" if part.ok else f"{part.points / part.max_points:.0%}" if part.points > 0 else "MISS"
        table.add_row(part.id.replace("_", " "), *values, f"{terminal.mark(part.ok)} {word}")
    where.print(Padding(table, (0, 0, 0, 1)))
    for part in graded.parts:
        if part.remark:
            where.print(Padding(f"[dim]{escape(part.remark)}[/]", (0, 0, 0, 1)))
        if part.say:
            where.print(prose(part.say))
    if surprise:
        when = "This question comes first in your next session."
        where.print(f" [bold magenta]surprise[/]: you were sure and wrong. {when}")


def why_options(instance: Instance, result: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Print why each option is right or wrong, right ones first."""
    where = console()
    for number, is_right, why in reasons(instance, result, expected):
        where.print(Padding(f"{terminal.mark(is_right)} {number}  {inline(why)}", (0, 0, 0, 1)))


def explanation(instance: Instance, result: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    text = instance.render(instance.question.explain, result=result, expected=expected)
    console().print(prose(text))


def interview(title: str, view: Interview, render: Any) -> None:
    """Print a model answer to say aloud."""
    where = console()
    where.print(f"\n[bold]{escape(title)}[/]")
    parts = [
        ("what they want to find out", view.probing),
        ("in 30 seconds", view.short),
        ("in 2 minutes", view.long),
    ]
    if view.deep:
        parts.append(("if they ask for more depth", view.deep))
    for heading, text in parts:
        where.print(f"\n [bold cyan]{heading}[/]")
        where.print(prose(render(text)))
    if view.mistakes:
        where.print("\n [bold cyan]common weak answers[/]")
        for text in view.mistakes:
            where.print(prose(f"- {render(text)}"))
    if view.rubric:
        where.print("\n [bold cyan]how it is graded[/]")
        for mark, text in sorted(view.rubric.items(), reverse=True):
            where.print(numbered(mark, render(text)))
