"""`prep claims`: statements of interview guides, tested on the engine.

common.py   finds a claim, prints a ruling
tables.py   prep claims list, show, verify
hearing.py  prep claims vote, run, flip
"""

from app.cli import terminal
from app.cli.claims.hearing import flip, run, vote
from app.cli.claims.tables import list_, show, verify


def _claim_id(word: str) -> str:
    """Return the id of the claim that `word` names. Raises KeyError."""
    from quizzes.claims.claim_list import load_claims

    return str(load_claims().entries[word.upper()].id)


claims = terminal.command_app(
    list_,
    show,
    vote,
    run,
    flip,
    verify,
    help="Test the claims of interview guides: vote, run the test, read the verdict.",
    shows=("show", _claim_id),
)
