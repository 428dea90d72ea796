"""The report of a session: as data, Markdown, and one self-contained HTML page.

report = make(session, sessions())        # from the log
save(report); load(session_id)            # beside the log, so that it can be read after scenarios have changed
as_markdown(report); as_html(report); report.to_json()
"""

from interview.mock.report.build import make
from interview.mock.report.markdown import as_markdown
from interview.mock.report.model import Report, load, save
from interview.mock.report.page import as_html

__all__ = ["Report", "as_html", "as_markdown", "load", "make", "save"]
