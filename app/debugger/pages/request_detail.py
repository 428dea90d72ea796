"""One request on the page Requests: why it waited, its tokens, its blocks, the costs of its preemptions."""

from __future__ import annotations

from html import escape

import pandas as pd
import streamlit as st

from app.debugger import session
from app.debugger.page_frame import choose, plain, row_table, told
from app.debugger.runs import Run
from app.debugger.views.phases import PHASES, PhaseSpan, steps_in
from app.debugger.views.requests import (
    OutputToken,
    Preemption,
    RequestRow,
    block_table,
    has_clock,
    output_tokens,
    preemptions,
)
from app.debugger.views.texts import Speller, speller, visible
from app.debugger.views.waits import WORDS
from engine.trace.format import TraceError
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.why import why, why_spans
from prep_common.text import counted

MAX_CELLS = 400


def show_request(run: Run, number: int, step: int, row: RequestRow, spans: list[PhaseSpan]) -> None:
    st.header(f"Request {plain(row.request)}", anchor=False)
    st.markdown(_summary(row, spans))
    if not run.index.num_steps:
        st.caption("No step has run yet.")
        return
    reader = run.reader(step)
    request = reader.requests[number]
    clock = has_clock(run.index.series)
    tokens = output_tokens(reader, request, clock)
    timeline, strip, table = st.tabs(["Why it waited", f"Tokens {len(tokens)}", f"Blocks after step {step}"])
    with timeline:
        if reader.find(request.request_id, step).number == request.number:
            st.markdown(f"In step {step}: {told(why(reader, request.request_id, step).sentence)}")
        for cost in preemptions(request):
            st.markdown(_cost_text(cost))
        _show_reasons(reader, request)
    with strip:
        _show_tokens(tokens, speller(run.index.header), clock, step)
    with table:
        _show_blocks(reader, request, step)


def _summary(row: RequestRow, spans: list[PhaseSpan]) -> str:
    steps = {phase: steps_in(spans, phase) for phase in PHASES}
    told = ", ".join(f"{count} {phase}" for phase, count in steps.items() if count) or "none"
    hit = f", {row.prefix_hit_tokens} of them from the prefix cache" if row.prefix_hit_tokens else ""
    text = (
        f"Arrived before step {row.arrived}. Prompt {counted(row.prompt_tokens, 'token')}{hit}; "
        f"output {counted(row.output_tokens, 'token')}; end: {row.finish}. Steps: {told}."
    )
    if row.ttft_steps is not None:
        milliseconds = "" if row.ttft_ms is None else f" ({row.ttft_ms:.1f} ms)"
        text += f" First token in its {_ordinal(row.ttft_steps)} step{milliseconds}."
    return text


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _cost_text(cost: Preemption) -> str:
    resumed = (
        "It did not resume in this run."
        if cost.resumed is None
        else f"Resumed in step {cost.resumed}: found {counted(cost.tokens_found or 0, 'token')} cached, "
        f"recomputed {cost.tokens_computed_again}."
    )
    quiet = "" if cost.next_token is None else f" Its client got no token until step {cost.next_token}."
    return (
        f"**Preempted in step {cost.step}**: released {counted(cost.blocks_given_back, 'block')} and lost the KV of "
        f"{counted(cost.tokens_lost, 'token')}. {resumed}{quiet}"
    )


def _show_reasons(reader: Trace, request: RequestHistory) -> None:
    try:
        spans = why_spans(reader, request.request_id, request.added)
    except TraceError as error:
        st.caption(told(error))
        return
    rows = [
        {
            "steps": str(span.first) if span.first == span.last else f"{span.first} to {span.last}",
            "what": "scheduled"
            if span.why.answer == "scheduled"
            else WORDS.get(str(span.why.reason), span.why.answer).replace("_", " "),
            "explanation of the first step": span.why.sentence,
        }
        for span in spans
    ]
    alt = f"What {request.request_id} did or why it did not run, in {counted(len(rows), 'span')} of steps"
    columns = {
        "steps": st.column_config.TextColumn(width=75),
        "what": st.column_config.TextColumn(width=115),
        "explanation of the first step": st.column_config.TextColumn(width=340),
    }
    key = f"request_reasons_{request.number}"
    row = row_table(rows, key, alt, row_height=92, max_height=440, column_config=columns)
    if row is not None:
        choose(step=spans[row].first)


def _show_tokens(tokens: list[OutputToken], spell: Speller | None, clock: bool, step: int) -> None:
    if not tokens:
        st.caption("No output token yet.")
        return
    if st.toggle("Show as table", key="request_tokens_table"):
        frame = pd.DataFrame(tokens)
        if spell is not None:
            frame.insert(1, "text", [visible(spell(token.token_id)) for token in tokens])
        row = row_table(
            frame, "request_tokens", f"{counted(len(tokens), 'output token')} with their steps and gaps"
        )
        if row is not None:
            choose(step=tokens[row].step)
        return
    first = 0
    if len(tokens) > MAX_CELLS:
        first = int(st.number_input(f"From token, of {len(tokens)}", 0, len(tokens) - 1, 0, MAX_CELLS))
    st.html(token_strip(tokens[first : first + MAX_CELLS], spell, step))
    unit = "steps; ms in the tooltip" if clock else "steps"
    what = "text" if spell else "token id (the tokenizer of this model is not installed)"
    st.caption(f"Each cell: {what}, its step, and the gap to the previous token if it is not 1 ({unit}).")


def token_strip(tokens: list[OutputToken], spell: Speller | None, step: int) -> str:
    """Cells of the output, in order. A gap other than 1 is shown and coloured; the chosen step is outlined."""
    cells = ""
    for token in tokens:
        text = visible(spell(token.token_id)) if spell else str(token.token_id)
        gap = "" if token.gap_steps in (None, 1) else f"+{token.gap_steps}"
        colour = "var(--edge)" if not gap else "#56B4E9" if token.gap_steps == 0 else "#D55E00"
        outline = "outline:2px solid var(--text);" if token.step == step else ""
        title = f"token {token.position}, id {token.token_id}, step {token.step}"
        if token.gap_steps is not None:
            title += f", {counted(token.gap_steps, 'step')} after the previous one"
        if token.gap_ms is not None:
            title += f" ({token.gap_ms:.2f} ms)"
        cells += (
            f'<span title="{escape(title)}" style="display:inline-block;margin:1px;padding:1px 5px;'
            f'border-bottom:3px solid {colour};background:var(--panel);border-radius:3px;{outline}">'
            f'<span style="color:var(--text)">{escape(text) or "∅"}</span><br>'
            f'<span style="font-size:.65rem;color:var(--quiet)">{token.step} '
            f'<b style="color:var(--alarm)">{gap}</b></span></span>'
        )
    return (
        f'<div role="img" aria-label="{counted(len(tokens), "output token")} in order" style="font-family:ui-monospace,'
        f'Menlo,Consolas,monospace;font-size:.78rem;line-height:1.25;max-height:300px;overflow-y:auto">{cells}</div>'
    )


def _show_blocks(reader: Trace, request: RequestHistory, step: int) -> None:
    entries = block_table(reader, request, step)
    if not entries:
        st.caption(f"{plain(request.request_id)} does not run after step {step}, so it holds no blocks.")
        return
    shared = sum(bool(entry.others) for entry in entries)
    st.caption(
        f"{counted(len(entries), 'block')} of {counted(reader.block_size, 'token')}, {shared} of them shared. "
        "Choose one to open it."
    )
    rows = [
        {
            "entry": entry.index,
            "block": entry.block,
            "state": "behind the window" if not entry.block else "● shared" if entry.others else "held",
            "references": entry.ref,
            "shared with": ", ".join(entry.others),
            "published": entry.is_sealed,
            "added in step": entry.came,
        }
        for entry in entries
    ]
    alt = f"Block table of {request.request_id} after step {step}"
    row = row_table(rows, f"request_blocks_{request.number}_{step}", alt)
    if row is not None:
        session.go("blocks", block=entries[row].block, step=step)
