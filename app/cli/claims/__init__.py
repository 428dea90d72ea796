"""`prep claims`: statements of prep guides, tested on the engine.

common.py     finds a claim, prints a ruling
listing.py    prep claims list, show
hearing.py    prep claims vote, run, flip
verifying.py  prep claims verify
"""

from __future__ import annotations

from app.cli import terminal
from app.cli.claims.hearing import flip, run, vote
from app.cli.claims.listing import list_, show
from app.cli.claims.verifying import verify

app = terminal.command_app(no_args_is_help=True)


@app.callback()
def claims() -> None:
    """Test the claims of interview guides: vote, run the test, read the verdict."""


app.command("list")(list_)
app.command()(show)
app.command()(vote)
app.command()(run)
app.command()(flip)
app.command()(verify)
