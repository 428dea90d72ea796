"""Panels that run something: the interviewer's experiments, and the checks of a program."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import streamlit as st

from app.debugger.mock.held import Held
from app.debugger.mock.sending import panel, send
from app.debugger.mock.texts import markdown, plain
from app.debugger.page_frame import in_words, told
from app.debugger.tabs import Job
from interview.mock import coding
from interview.mock.coding import Checked
from interview.mock.turns import Program, RunExperiment
from prep_common.paths import write_atomically
from prep_common.text import counted, figure
from quizzes.experiments.runner import Outcome

USUAL_S = 4.0
"""The progress bar is half full after this time: nothing says how far a run is."""
QUICK_S = 0.4
"""A run that takes no longer shows no progress."""
LONGEST = 200_000
"""Characters of a program."""


def run(held: Held, want: RunExperiment) -> None:
    """Run the experiment in the background; its result is the reply."""
    job = held.job
    if job is None or job.turn != held.turn.id:
        runner = held.runner
        job = held.job = Job(held.turn.id, lambda: runner.run(want.name, want.args), runner.close)
        job.wait(QUICK_S)
    if job.is_done:
        send(held, reply_of(job))
        return
    with panel(held, "run"):
        st.markdown(f"Running `{want.name}`")
        if want.args:
            args = ", ".join(f"{name} = {figure(value)}" for name, value in want.args.items())
            st.caption(markdown(args if len(args) < 400 else args[:400] + " …"))
        _watch(job)


def reply_of(job: Job) -> dict[str, Any]:
    """Return what came out of a run. Whatever went wrong is a reply: the interview goes on."""
    if job.is_stopped:
        return {"failed": "you stopped it"}
    if job.error is not None:
        return {"failed": str(job.error) or type(job.error).__name__}
    outcome: Outcome = job.result
    return {"result": outcome.result, "seconds": round(outcome.seconds, 3)}


@st.fragment(run_every=0.3)
@in_words
def _watch(job: Job) -> None:
    st.progress(job.seconds / (job.seconds + USUAL_S), f"{job.seconds:.0f} s; your clock stands still")
    if st.button("Stop the run", key=f"mock {job.turn} stop"):
        job.stop()
    if job.is_done:
        st.rerun()


def program(held: Held, want: Program) -> None:
    """Show an editor; the checks run in the sandbox as often as the candidate likes."""
    turn = held.turn.id
    path = file_of(held, want)
    busy = held.job if held.job is not None and held.job.turn == turn else None
    with panel(held, "code"):
        with st.form(f"mock {turn} code", border=False, enter_to_submit=False):
            source = st.text_area(
                "Your program",
                _source(path, want),
                key=f"mock {turn} source",
                height=420,
                help="Tab indents; Escape, then Tab leaves the editor. Checked programs are kept in a file.",
            )
            with st.container(horizontal=True, vertical_alignment="center"):
                is_busy = busy is not None and not busy.is_done
                checks = st.form_submit_button(
                    "Check", type="primary", shortcut="ctrl+enter", disabled=is_busy
                )
                done = st.form_submit_button("Hand in", disabled=is_busy)
                st.caption(f"`{path.name}` · all checks run in a sandbox", width="content")
        if (checks or done) and (busy is None or busy.is_done):  # one check at a time, whatever is clicked
            problem = refused(source)
            if problem:
                st.error(problem)
            else:
                _begin_check(held, want, source, hands_in=bool(done))
                st.rerun()
        if busy is not None and busy.is_done:
            _finish(held, busy)
        elif busy is not None:
            _wait_for_checks(busy)
        elif turn in held.checked:
            _show_checks(held.checked[turn][1])


def file_of(held: Held, want: Program) -> Path:
    """Return the file of the candidate's program, the same as in the terminal."""
    return held.session.path.with_suffix("") / f"{coding.name_of(want.code)}.py"


def refused(source: str) -> str:
    if not source.strip():
        return "The program is empty."
    if len(source) > LONGEST:
        return f"The program has {counted(len(source), 'character')}; {LONGEST:,} is the limit."
    return ""


def _source(path: Path, want: Program) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return coding.start(want.code)


def _begin_check(held: Held, want: Program, source: str, *, hands_in: bool) -> None:
    turn = held.turn.id
    with suppress(OSError):  # the log keeps what is handed in
        write_atomically(file_of(held, want), source.encode("utf-8", "replace").decode())
    held.checked.pop(turn, None)
    if not hands_in:
        held.tries[turn] = held.tries.get(turn, 0) + 1
    held.job = Job(turn, lambda: (source, hands_in, coding.check(want.code, source)))
    held.job.wait(QUICK_S)


@st.fragment(run_every=0.3)
@in_words
def _wait_for_checks(job: Job) -> None:
    if job.is_done:
        st.rerun()
    st.info(f"Checking for {job.seconds:.0f} s …")


def _finish(held: Held, job: Job) -> None:
    """Keep the checks that have ended; hand the program in if that was asked for."""
    turn, held.job = held.turn.id, None
    if job.error is not None:
        st.error(f"The checks could not run: {told(job.error)}")
        return
    source, hands_in, checked = job.result
    held.checked[turn] = (source, checked)
    if hands_in:
        send(held, program_reply(source, checked, held.tries.get(turn, 0)))
    else:
        st.rerun()


def program_reply(source: str, checked: Checked, tries: int) -> dict[str, Any]:
    failed = checked.failed or ([] if checked.passed else ["loads"])
    return {"source": source, "passed": checked.passed, "failed": failed, "tries": max(1, tries)}


def _show_checks(checked: Checked) -> None:
    passed, failed = len(checked.passed), len(checked.failed)
    total = passed + failed
    if checked.all_pass:
        st.success(f"All {total} checks pass. Hand it in, or improve it first.")
        return
    lines = "\n".join(checked.lines)
    st.html(f"<div class='mock-checks'><b>{passed} of {total} checks pass</b><pre>{plain(lines)}</pre></div>")
