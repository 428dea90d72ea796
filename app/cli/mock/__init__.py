"""`prep mock`: an interview of 20, 45 or 60 minutes; the interviewer runs experiments, some with your own numbers.

choosing.py      sessions by name, options of a new one, defaults
starting.py      begins or continues a session and holds it
conversation.py  shows turns, reads and keeps replies; drafts, the clock, the whiteboard
floor.py         the prompt: commands that work everywhere, a clock with pauses
replies.py       one function per want of `interview/mock/turns.py`; writing.py for prose, designing.py for fields,
                 program.py for code
showing.py       what is printed
reporting.py     prep mock report, and the end of a session
tables.py        prep mock list, scenarios, lint
peer.py          two people: one interviews, with a script; on one machine or with a file
"""

from app.cli import terminal
from app.cli.mock.peer import peer
from app.cli.mock.reporting import report
from app.cli.mock.starting import mock_, resume, start
from app.cli.mock.tables import lint, list_, scenarios

mock = terminal.command_app(
    start,
    resume,
    list_,
    report,
    scenarios,
    peer,
    lint,
    help="""Take a mock interview in which the interviewer runs experiments. Without a subcommand: continue, or begin.

    \b
    Examples:
      prep mock
      prep mock --role sre --level senior --minutes 20
      prep mock --scenario inference.stalled_streams --coach
      prep mock resume
      prep mock report
    """,
)
mock.info.no_args_is_help = False
mock.callback(invoke_without_command=True)(mock_)
