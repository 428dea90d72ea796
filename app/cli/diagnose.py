"""`prep diagnose`: walk the decision trees with a running server's figures, and name the cause."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from app.cli import terminal
from app.cli.options import JsonOption, argument, make_folder_of, option
from app.cli.serve import KEY_VARIABLE
from prep_common.text_file import unreadable

if TYPE_CHECKING:
    from engine.server.diagnosis.collect import Sources
    from engine.server.diagnosis.evidence import Evidence
    from engine.server.diagnosis.verdict import Diagnosis

MARKS = {True: "yes", False: "no", None: "?"}


def diagnose(
    urls: Annotated[
        list[str],
        argument("Address of the server, or of each replica; or a file that --save wrote.", metavar="URL"),
    ],
    window: Annotated[float, option("Seconds to watch.", min=1.0, max=3600.0)] = 10.0,
    request_log: Annotated[
        list[Path] | None,
        option("Request log of a server (prep serve --request-log); repeat for more.", metavar="FILE"),
    ] = None,
    server_log: Annotated[
        Path | None, option("Output of a server whose ranks tell their times.", metavar="FILE")
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
    request log, a probe, the gateway, or a baseline; it says which. Exit code 1 if a cause was found, 4 if several
    remain.

    \b
    Examples:
      prep diagnose http://127.0.0.1:8000
      prep diagnose http://127.0.0.1:8000 --save healthy.gz
      prep diagnose http://127.0.0.1:8000 --baseline healthy.gz --probe
      prep diagnose http://127.0.0.1:8000 --request-log requests.jsonl
      prep diagnose http://127.0.0.1:8001 --gateway http://127.0.0.1:8000
    """
    terminal.need_libraries("diagnose needs", ["httpx", "prometheus_client"], "diagnose", "serve")
    from engine.server.diagnosis.evidence import save as write
    from engine.server.diagnosis.verdict import CannotJudge
    from engine.server.diagnosis.verdict import diagnose as judged

    make_folder_of(save)
    before = None if baseline is None else _read(baseline)
    if (file := _file(urls)) is not None:
        evidence = _read(file)
    else:
        from app.cli.top import told
        from engine.server.diagnosis.collect import Sources
        from engine.server.scrape import base_of

        sources = Sources(
            bases=tuple(told(lambda: [base_of(url) for url in urls])),
            api_key=api_key or os.environ.get(KEY_VARIABLE, ""),
            window_s=window,
            logs=tuple(request_log or ()),
            server_log=server_log,
            probe=probe,
            gateway=told(lambda: base_of(gateway)) if gateway else "",
            gateway_key=gateway_key,
        )
        evidence = _watch(sources)
    if save is not None:
        try:
            write(evidence, save)
        except OSError as error:
            raise terminal.Problem(f"cannot write {save}: {error.strerror}") from None
        terminal.note(f"{terminal.mark(True)} evidence in {terminal.literal(save)}")
    try:
        diagnosis = judged(evidence, before)
    except CannotJudge as error:
        raise terminal.Problem(str(error), error.next_step, code=terminal.INCONCLUSIVE) from None
    terminal.print_json(diagnosis) if json else show(diagnosis)
    if diagnosis.cause is not None or diagnosis.candidates:
        raise SystemExit(terminal.CHECKS_FAILED if diagnosis.cause else terminal.INCONCLUSIVE)


def _file(urls: list[str]) -> Path | None:
    """Return the file of evidence that was given in place of a server; None for addresses."""
    missing = next((url for url in urls if url.endswith(".gz") and not Path(url).exists()), "")
    if missing:
        raise terminal.Problem(f"there is no file {missing}", "prep diagnose URL --save FILE.gz writes one")
    files = [Path(url) for url in urls if Path(url).is_file()]
    if files and len(urls) > 1:
        raise terminal.Problem(
            f"{files[0]} is a file of evidence; give it alone", f"prep diagnose {files[0]}"
        )
    return files[0] if files else None


def _read(path: Path) -> Evidence:
    from engine.server.diagnosis.evidence import EvidenceError, load

    try:
        return load(path)
    except OSError as error:
        raise unreadable(path, error) from None
    except EvidenceError as error:
        raise terminal.Problem(
            f"{path} holds no evidence: {error}", "prep diagnose URL --save FILE   writes some"
        ) from None


def _watch(sources: Sources) -> Evidence:
    from app.cli.top import told
    from engine.server.diagnosis.collect import collect

    total = round(sources.window_s)
    try:
        with terminal.stages("looking for the server") as tell:
            return told(lambda: collect(sources, lambda spent: tell(f"watching: {spent:.0f} of {total} s")))
    except OSError as error:
        raise unreadable(error.filename, error) from None


def show(diagnosis: Diagnosis) -> None:
    """Print the path, the cause and what remains open."""
    branch = ""
    for step in diagnosis.path:
        if step.branch != branch:
            branch = step.branch
            terminal.say(f"\n{branch}")
        for index, reply in enumerate(step.replies):
            name, mark = (step.cause, MARKS[step.holds]) if index == 0 else ("", "")
            _row(f"  {name:20} {mark:4} ", reply)
    terminal.say("")
    if diagnosis.cause is not None:
        _row("Cause:     ", f"{diagnosis.cause}. {diagnosis.meaning}")
        for line in diagnosis.evidence:
            _row("           ", line)
        if diagnosis.runner_up is not None:
            _row("Runner-up: ", f"{diagnosis.runner_up}. Excluded: {diagnosis.excluded_by}")
        _row("Next step: ", diagnosis.next_step)
        return
    if diagnosis.candidates:
        from engine.server.diagnosis.options import LOOKS

        _row("Candidates: ", ", ".join(diagnosis.candidates))
        _row("This tells them apart: ", f"{diagnosis.look}: {LOOKS[diagnosis.look]}")
        return
    terminal.say("Nothing wrong: no cause fits these figures.")
    unknown: dict[str, list[str]] = {}
    for step in diagnosis.cannot_exclude:
        unknown.setdefault(" or ".join(step.needs), []).append(step.cause)
    for needs, causes in unknown.items():
        _row("Cannot exclude ", f"{', '.join(causes)} without {needs}")


def _row(head: str, text: str) -> None:
    """Print text beside a head; its further lines stand below its beginning, and a pipe gets one line."""
    if not terminal.out().is_terminal:
        terminal.say(head + text)
        return
    width = max(40, min(terminal.out().width, 100) - 1)
    terminal.say(fill(head + terminal.as_typed(text), width, subsequent_indent=" " * len(head)), whole=True)
