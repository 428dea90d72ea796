"""`prep diagnose`: walk the decision trees with a running server's figures, and name the cause."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.cli.serve import KEY_VARIABLE

if TYPE_CHECKING:
    from engine.server.diagnosis.collect import Sources
    from engine.server.diagnosis.evidence import Evidence
    from engine.server.diagnosis.verdict import Diagnosis

MARKS = {True: "yes", False: "no", None: "?"}


def diagnose(
    url: Annotated[str, argument("Address of the server, or a file that --save wrote.")],
    window: Annotated[float, option("Seconds to watch.", min=1.0, max=3600.0)] = 10.0,
    request_log: Annotated[
        Path | None, option("Request log of the server (prep serve --request-log).", metavar="FILE")
    ] = None,
    probe: Annotated[
        bool, option("Send about ten small requests and see what a client sees.", "--probe")
    ] = False,
    gateway: Annotated[str, option("Address of the prep gateway before the server.", metavar="URL")] = "",
    gateway_key: Annotated[str, option("Its admin key.")] = "",
    baseline: Annotated[
        Path | None, option("Evidence from a healthy time, to compare with.", metavar="FILE")
    ] = None,
    save: Annotated[Path | None, option("Write the evidence of this window.", metavar="FILE")] = None,
    api_key: Annotated[str | None, option(f"Key of the server. Also: {KEY_VARIABLE}.")] = None,
    json: JsonOption = False,
) -> None:
    """Diagnose a slow or failing server: the questions asked, the values measured, the cause and the next step.

    It reads /metrics over one window, so it works with this server and with any vLLM. Some causes need more: the
    request log, a probe, the gateway, or a baseline; it says which. Exit code 1 if a cause was found.

    \b
    Examples:
      prep diagnose http://127.0.0.1:8000
      prep diagnose http://127.0.0.1:8000 --save healthy.gz
      prep diagnose http://127.0.0.1:8000 --baseline healthy.gz --request-log requests.jsonl --probe
    """
    terminal.need_libraries("diagnose needs", ["httpx", "prometheus_client"], "diagnose", "serve")
    from engine.server.diagnosis.evidence import save as write
    from engine.server.diagnosis.verdict import CannotJudge
    from engine.server.diagnosis.verdict import diagnose as judged

    before = None if baseline is None else _read(baseline)
    if url.endswith(".gz") and not Path(url).exists():
        raise terminal.Problem(f"there is no file {url}", "prep diagnose URL --save FILE.gz writes one")
    if Path(url).is_file():
        evidence = _read(Path(url))
    else:
        from app.cli.top import told
        from engine.server.diagnosis.collect import Sources
        from engine.server.scrape import base_of

        sources = Sources(
            told(lambda: base_of(url)),
            api_key or os.environ.get(KEY_VARIABLE, ""),
            window,
            request_log,
            probe,
            told(lambda: base_of(gateway)) if gateway else "",
            gateway_key,
        )
        evidence = _watch(sources)
    if save is not None:
        try:
            write(evidence, save)
        except OSError as error:
            raise terminal.Problem(f"cannot write {save}: {error.strerror}") from None
        terminal.note(f"{terminal.mark(True)} evidence in {terminal.literal(save)}")
    try:
        found = judged(evidence, before)
    except CannotJudge as error:
        raise terminal.Problem(str(error), error.next_step, code=terminal.INCONCLUSIVE) from None
    terminal.print_json(found) if json else show(found)
    if found.cause is not None:
        raise SystemExit(terminal.CHECKS_FAILED)


def _read(path: Path) -> Evidence:
    from engine.server.diagnosis.evidence import EvidenceError, load

    try:
        return load(path)
    except OSError as error:
        raise terminal.Problem(f"cannot read {path}: {error.strerror}") from None
    except EvidenceError as error:
        raise terminal.Problem(
            f"{path} holds no evidence: {error}", "prep diagnose URL --save FILE   writes some"
        ) from None


def _watch(sources: Sources) -> Evidence:
    from app.cli.top import told
    from engine.server.diagnosis.collect import collect

    total = round(sources.window_s)
    try:
        with terminal.status(f"watching for {total} s") as tell:
            return told(lambda: collect(sources, lambda spent: tell(f"watching: {spent:.0f} of {total} s")))
    except OSError as error:
        raise terminal.Problem(f"cannot read {sources.log}: {error.strerror}", "--request-log FILE") from None


def show(found: Diagnosis) -> None:
    """Print the path, the cause and what remains open."""
    branch = ""
    for step in found.path:
        if step.branch != branch:
            branch = step.branch
            terminal.say(f"\n{branch}")
        terminal.say(f"  {step.cause:22} {MARKS[step.holds]:4} {step.question} {step.value}")
    terminal.say("")
    if found.cause is None:
        terminal.say("Nothing wrong: no cause fits these figures.")
    else:
        terminal.say(f"Cause: {found.cause}. {found.meaning}")
        for line in found.evidence:
            terminal.say(f"  {line}")
        if found.runner_up is not None:
            terminal.say(f"Runner-up: {found.runner_up}. Excluded: {found.excluded_by}")
        terminal.say(f"Next step: {found.next_step}")
    for each in found.cannot_exclude:
        terminal.say(f"Cannot exclude {each.cause}: give {' or '.join(each.needs)}")
