"""Page Kernel: paged attention over one request's block table after one step, page by page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import streamlit as st

from app.debugger import session
from app.debugger.charts import mount
from app.debugger.kernel_walk.client import Job, WalkClient
from app.debugger.kernel_walk.question import NoModel, make_question
from app.debugger.kernel_walk.sources import code_by_form
from app.debugger.kernel_walk.table import (
    WIDTHS,
    KVShape,
    Table,
    last_step_with_table,
    read_table,
    resolve_dtype,
    ways,
)
from app.debugger.page_frame import choose, in_words, opened, run_page, told
from app.debugger.runs import Run
from app.debugger.views.texts import speller, visible
from engine.sim.models import MODELS
from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from prep_common.text import counted

_VIEW = "kernel walk"
STEM = Path(__file__).resolve().parents[1] / "kernel_walk" / "walk"


def show() -> None:
    run_page("Kernel view", _show)


def _show(run: Run) -> None:
    step = opened(run, "Kernel view", "kernel", f"blocks of {counted(run.index.block_size, 'token')}")
    if step is None:
        return
    reader = run.reader(step)
    who, *numbers = st.columns([2, 1, 1, 3], vertical_alignment="bottom")
    with who:
        request_id = _choose_request(reader, step)
    if request_id is None:
        st.info(f"No request runs after step {step:,}, so none has blocks. Go to another step.")
        return
    try:
        table = read_table(reader, step, request_id)
    except TraceError as error:
        st.info(f"{told(error)}.")
        other = last_step_with_table(reader, step, request_id)
        if other is not None and st.button(f"Go to step {other:,}, where it has blocks", key="kernel jump"):
            choose(step=other)
    else:
        _walk(reader, table, numbers)


def _choose_request(reader: Trace, step: int) -> str | None:
    running = reader.state_at(step).running
    wanted = session.selection().request
    names = running if wanted is None or wanted in running else [*running, wanted]
    if not names:
        return None
    index = names.index(wanted) if wanted in names else 0
    chosen = st.selectbox("Request", names, index, key=f"kernel request {step} {wanted}")
    if chosen != wanted:
        session.select(request=chosen)
    return chosen


def _walk(reader: Trace, table: Table, columns: list[Any]) -> None:
    with st.container(
        key="kernel_answer"
    ):  # the drawing keeps its place on the page, and so what is opened in it
        answer = _answer(reader, table, columns)
    mount("kernel_walk", STEM, _data(reader, table, answer), _VIEW, ["head"], then=_choose_head)
    _facts(reader, table, answer)


def _answer(reader: Trace, table: Table, columns: list[Any]) -> dict[str, Any] | None:
    """Return the worker's answer, or show what is missing and return None."""
    answer, problem, job, is_done = None, "", None, False
    try:
        question = make_question(reader, table, **_chosen(columns, reader, table))
        job = _client().ask(question)
        is_done = job.is_done  # before its answer: the job may end at any moment
        answer, problem = job.answer, job.error
        for note in question.notes:
            st.caption(note)
    except NoModel as error:
        problem = str(error)
    if problem:
        what_is_left = "The data below comes from the trace alone and is exact."
        st.warning(f"No scores: {problem.removesuffix('.')}. {what_is_left}")
        if job is not None and st.button("Try again", key="kernel again"):
            _client().forget(question)
            st.rerun()
    elif job is not None and not is_done:
        _wait(job)
    if answer is not None:
        _remember_sizes(reader, answer)
        _open_on_spread_head(answer)
        st.html(f"<div style='color:var(--quiet);font-size:13px'>{escape(_checked(answer))}</div>")
    return answer


def _chosen(columns: list[Any], reader: Trace, table: Table) -> dict[str, int]:
    """Show the boxes for layer, head and position. Their ranges come from the model's answer or a table of models."""
    layers, heads = _sizes(reader)
    left, middle, right = columns
    layer = _number(left, "Layer", "layer", layers)
    head = _number(middle, "Head", "head", heads)
    session.add_to_url({"layer": str(layer), "head": str(head)})
    position = table.seq_len - 1
    first = position if table.row_start is None else max(table.row_start, table.seq_len - 512)
    if first < position:
        position = right.slider(
            "Position of the query in this step's row", first, position, position,
            key=f"kernel position {table.request_id} {table.step}",
        )  # fmt: skip
    else:
        right.caption(
            f"The query is the token at position {position:,}, the newest one whose keys and values exist. It attends "
            "to itself and all earlier tokens."
        )
    return {"layer": layer, "head": head, "position": int(position)}


def _choose_head() -> None:
    """Select the head that was clicked in the drawing."""
    head = st.session_state[_VIEW].head
    if head is not None:
        st.session_state["kernel head"] = int(head)


def _number(place: Any, label: str, name: str, count: int) -> int:
    """A box for 0 to count - 1, initially with the link's number; another model may have a smaller range."""
    key = f"kernel {name}"
    linked = st.query_params.get(name, "")
    if key not in st.session_state and linked.isdecimal():
        st.session_state[f"{key} is chosen"] = True
    wanted = st.session_state.get(key, int(linked) if linked.isdecimal() else 0)
    wanted = st.session_state.pop(f"{key} next", wanted)
    st.session_state[key] = min(wanted, count - 1)
    return int(place.number_input(f"{label}, 0 to {count - 1}", 0, count - 1, key=key))


def _model(reader: Trace) -> str:
    return str(reader.header.get("model"))


def _sizes(reader: Trace) -> tuple[int, int]:
    """(layers, heads)"""
    shape = MODELS.get(_model(reader))
    usual = (shape.num_layers, shape.num_heads) if shape else (1, 1)
    known: tuple[int, int] = st.session_state.get("kernel sizes", {}).get(_model(reader), usual)
    return known


def _remember_sizes(reader: Trace, answer: dict[str, Any]) -> None:
    sizes = (answer["num_layers"], answer["num_heads"])
    if _sizes(reader) != sizes:
        st.session_state.setdefault("kernel sizes", {})[_model(reader)] = sizes
        st.rerun()


def most_spread(shares: Sequence[Sequence[float]]) -> int:
    """The head whose softmax mass is spread most over the pages: the largest entropy. shares: [heads][pages]."""
    return max(
        range(len(shares)),
        key=lambda head: -sum(share * math.log(share) for share in shares[head] if share > 0),
    )


def _open_on_spread_head(answer: dict[str, Any]) -> None:
    """Until a head is chosen, show the one with the most to see: many heads read little but one page."""
    if st.session_state.get("kernel head is chosen"):
        return
    st.session_state["kernel head is chosen"] = True
    if (head := most_spread(answer["shares"])) != answer["head"]:
        st.session_state["kernel head next"] = head  # its box exists in this run of the script
        st.rerun()


@st.fragment(run_every=0.3)
@in_words
def _wait(job: Job) -> None:
    """Show the progress until the worker answers."""
    _client().check_time(job)
    if job.is_done:
        st.rerun()
    st.info(f"{job.progress} Pages and bytes below are exact; scores follow.")


@st.cache_resource
def _client() -> WalkClient:
    return WalkClient()


def _checked(answer: dict[str, Any]) -> str:
    return (
        f"{answer['model']} in {answer['dtype']}, KV in {answer['kv_dtype']}. Head {answer['head']} reads kv head "
        f"{answer['head'] * answer['num_kv_heads'] // answer['num_heads']} of {answer['num_kv_heads']}. The walk's "
        f"output and the output of the layer's attention differ by at most {answer['difference']:.1e} "
        f"(largest value {answer['largest']:.2f})."
    )


def _data(reader: Trace, table: Table, answer: dict[str, Any] | None) -> dict[str, Any]:
    history = reader.find(table.request_id, table.step)
    tokens = [*history.record["prompt"], *history.tokens]
    spell = speller(reader.header)
    texts = [visible(spell(token)) if spell else str(token) for token in tokens[: table.seq_len]]
    pages = [
        {**asdict(page), "text": texts[page.first : page.first + page.num_tokens]} for page in table.pages
    ]
    key = f"{reader.path}/{table.step}/{table.request_id}"
    return {
        "key": key,
        "block_size": table.block_size,
        "pages": pages,
        "walk": answer,
        "num_heads": _sizes(reader)[1],
        "code": code_by_form(),
    }


def _facts(reader: Trace, table: Table, answer: dict[str, Any] | None) -> None:
    _bytes(reader, table, answer)
    if st.toggle("Show the pages as a table", key="kernel table"):
        st.dataframe(_rows(table, answer), hide_index=True, width="stretch")


def _bytes(reader: Trace, table: Table, answer: dict[str, Any] | None) -> None:
    st.markdown("**Bytes of one layer, for this one query**")
    waste = f"{table.wasted_slots} of {len(table.pages) * table.block_size} slots of its blocks are empty."
    model = MODELS.get(_model(reader))
    if answer is not None:
        shape = KVShape(answer["num_layers"], answer["num_kv_heads"], answer["head_dim"])
    elif model is not None:
        shape = KVShape(model.num_layers, model.num_kv_heads, model.head_dim)
    else:
        st.caption(f"{waste} The bytes per token are known once the model is loaded.")
        return
    config = reader.header.get("config", {})
    kv_dtype = str((config.get("args") or {}).get("kv_cache_dtype") or "auto")
    dtype = resolve_dtype(kv_dtype, answer["dtype"] if answer else "float32")
    max_len = int((config.get("scheduler") or {}).get("max_model_len") or table.seq_len)
    seen = sum(p["end"] - p["first"] for p in answer["pages"]) if answer else table.seq_len
    left, right = st.columns(2, gap="medium")
    left.html(
        _table(
            {
                "way": f"{way.name}<small>{way.why}</small>",
                "read": way.read,
                "written": way.written,
                "held": way.held,
            }
            for way in ways(table, shape, dtype, seen, max_len)
        )
    )
    right.html(
        _table(
            {
                "KV cache in": f"{name}{' (this run)' if name == dtype else ''}",
                "per token": shape.bytes_per_token(name),
                "read here": seen * shape.bytes_per_token(name),
                "all layers": seen * shape.bytes_per_token(name) * shape.num_layers,
            }
            for name in WIDTHS
        )
    )
    st.caption(
        f"{waste} max_model_len is {max_len:,}. int8 keeps a 4-byte scale per head beside every key and every value."
    )


def _rows(table: Table, answer: dict[str, Any] | None) -> list[dict[str, Any]]:
    visits = {visit["page"]: visit for visit in answer["pages"]} if answer else {}
    figures = ("share", "score_max", "m", "rescale", "mass", "bytes")
    return [
        {
            "page": page.page,
            "block": None if page.is_null else page.block_id,
            "first position": page.first,
            "tokens": page.num_tokens,
            "shared with": ", ".join(page.shared_with),
            **{name: visits.get(page.page, {}).get(name) for name in figures},
        }
        for page in table.pages
    ]


TABLE_CSS = """<style>
.facts { border-collapse: collapse; width: 100%; font-size: 12px; font-variant-numeric: tabular-nums; }
.facts th { color: var(--quiet); font-weight: 500; text-align: right; padding: 2px 6px; border: 0; }
.facts td { text-align: right; padding: 2px 6px; border: 0; border-top: 1px solid var(--line); white-space: nowrap; }
.facts :is(td, th):first-child { text-align: left; white-space: normal; }
.facts small { color: var(--quiet); display: block; font-size: 11px; }
.wide { overflow-x: auto; }
</style>"""


def _table(rows: Iterable[dict[str, str | int]]) -> str:
    """A table of texts and numbers of bytes."""
    lines = list(rows)
    head = "".join(f"<th>{name}</th>" for name in lines[0])
    body = ""
    for row in lines:
        cells = (value if isinstance(value, str) else f"{value:,} B" for value in row.values())
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return f"{TABLE_CSS}<div class='wide'><table class='facts'><tr>{head}</tr>{body}</table></div>"
