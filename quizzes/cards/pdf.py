"""Write entries as a cheat sheet in PDF: two columns, A4. Needs the library fpdf2 (the extra `cards`)."""

import logging
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from prep_common.text import PLAIN
from quizzes.cards.sheets import Entry, lines
from quizzes.topics import TOPICS

SIZE = 8.5
"""Points of the text."""
FACES = {"": "DejaVuSans.ttf", "B": "DejaVuSans-Bold.ttf"}


def write(entries: Iterable[Entry], path: Path, title: str, note: str) -> int:
    """Write the sheet and return the number of pages. note: a line below the title."""
    from fpdf import FPDF
    from fpdf.enums import XPos, YPos

    logging.getLogger("fpdf").setLevel(logging.ERROR)  # a missing glyph is no news
    logging.getLogger("fontTools").setLevel(logging.ERROR)

    class Sheet(FPDF):
        def footer(self) -> None:
            self.set_y(-12)
            self.set_font(family, size=7)
            self.cell(0, 5, f"{title}, page {self.page_no()}", align="R")

    sheet = Sheet(format="A4")
    sheet.set_title(title)
    folder = unicode_fonts()
    family = "DejaVu" if folder else "Helvetica"
    if folder is not None:
        for style, file in FACES.items():
            sheet.add_font(family, style, str(folder / file))
    sheet.set_margins(14, 14)
    sheet.set_auto_page_break(True, 16)
    sheet.add_page()
    sheet.set_font(family, "B", 15)
    sheet.multi_cell(0, 7, _plain(title, folder), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    sheet.set_font(family, size=8)
    sheet.multi_cell(0, 4.5, _plain(note, folder), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    sheet.ln(2)
    topic = ""
    with sheet.text_columns(ncols=2, gutter=7, line_height=1.25) as columns:

        def add(text: str, style: str, size: float, *, before: float = 0.0, after: float = 0.0) -> None:
            sheet.set_font(family, style, size)
            with columns.paragraph(top_margin=before, bottom_margin=after) as paragraph:
                paragraph.write(_plain(text, folder))

        for entry in entries:
            if entry.topic != topic:
                topic = entry.topic
                add(topic.replace("_", " "), "B", 12, before=3)
                add(TOPICS[topic], "", 7.5, after=1)
            add(entry.title, "B", SIZE + 0.5, before=1.5)
            for line in filter(None, lines(entry.front)):
                add(_bare(line), "", SIZE - 0.5, after=0.3)
            for line in entry.exhibit.splitlines():
                add(line.replace(" ", "\N{NO-BREAK SPACE}") or " ", "", SIZE - 1.5)
            if entry.answer:
                add(entry.answer, "B", SIZE - 0.5, after=0.5)
            for line in filter(None, lines(entry.back)):
                add(_bare(line), "", SIZE, after=0.7)
            add(entry.id, "", 6, after=0.5)
    sheet.output(str(path))
    return sheet.pages_count


def unicode_fonts() -> Path | None:
    """Return a folder with the DejaVu fonts: matplotlib's or the system's; None if there is none."""
    spec = find_spec("matplotlib")
    places = [Path("/usr/share/fonts/truetype/dejavu")]
    if spec is not None and spec.origin:
        places.insert(0, Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf")
    return next((place for place in places if all((place / file).is_file() for file in FACES.values())), None)


def _bare(line: str) -> str:
    """Return a line without Markdown's marks for bold and code."""
    return re.sub(r"\*\*(.+?)\*\*|`([^`\n]+)`", lambda match: match[1] or match[2], line)


def _plain(text: str, fonts: Path | None) -> str:
    """Without a Unicode font, replace characters outside Latin-1."""
    if fonts is not None:
        return text
    return "".join(c if ord(c) < 256 else PLAIN.get(c, "?") for c in text)
