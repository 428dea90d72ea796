"""The forms of the page Live: the knobs of an engine to start, and the address of one to attach to."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.debugger.live import registry, workloads
from app.debugger.live.client import LiveError, LiveRun
from app.debugger.live.settings import ADAPTERS, KV_DTYPES, QUANTIZATION, SPECULATION, LiveSettings
from app.debugger.page_frame import told
from prep_common.text import counted

PACES: dict[str, float | None] = {
    **{f"{count} step{'s' * (count > 1)}/s": float(count) for count in (1, 2, 5, 10, 20, 50)},
    "full speed": None,
}


def show_start_form() -> LiveRun | None:
    """Show settings and workload; returns the run once its engine has started."""
    st.header("Start an engine")
    st.caption(
        "Runs the shipped model `shop` in a child process. With the default settings memory runs out within 20 steps, "
        "so that preemptions can be seen."
    )
    kind, traffic, prompts = _workload()
    settings = _engine(traffic.seed)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    pace = row.selectbox("Pace", list(PACES), index=2, key="start pace", width=160)
    paused = row.checkbox("paused before step 0", key="start paused")
    if not row.button("Start the engine", type="primary"):
        return None
    arrivals = workloads.make(kind, traffic, prompts)
    if not arrivals:
        st.error("The workload is empty: enter one prompt per line, or choose another workload.")
        return None
    try:
        with st.spinner("Loading the model (about 2 s) …"):
            title = f"{kind}, {counted(settings.num_blocks, 'block')}"
            return registry.start(settings, arrivals, title, paused=paused, steps_per_s=PACES[pace])
    except LiveError as error:
        st.error(f"The engine did not start: {told(error)}")
    return None


def _workload() -> tuple[str, workloads.Traffic, list[str]]:
    columns = st.columns([2, 1, 1, 1])
    kind = columns[0].selectbox("Workload", [*workloads.KINDS, workloads.CUSTOM], key="workload")
    number = int(columns[1].number_input("Requests", 1, 500, 16, key="num requests"))
    tokens = int(columns[2].number_input("Maximum answer tokens", 1, 1024, 96, key="answer tokens"))
    seed = int(columns[3].number_input("Seed", 0, 10**6, 0, key="workload seed"))
    prompts: list[str] = []
    if kind == workloads.CUSTOM:
        text = st.text_area("Prompts, one per line", key="prompts", placeholder="What do you recommend?")
        prompts = [line.strip() for line in (text or "").splitlines() if line.strip()]
    else:
        st.caption(workloads.describe(kind))
    row = st.container(horizontal=True)
    about = "answers have the maximum length (ignore end of sequence)"
    full = row.checkbox(about, value=True, key="full length")
    by_priority = st.session_state.get("policy") == "priority"
    ignored = None if by_priority else "The policy fcfs ignores priorities."
    about = "every third request is important (priority 0)"
    important = row.checkbox(about, key="priorities", disabled=not by_priority, help=ignored)
    adapters = tuple(st.session_state.get("adapters", ()))
    return kind, workloads.Traffic(number, tokens, full, seed, important and by_priority, adapters), prompts


def _engine(seed: int) -> LiveSettings:
    """Show a widget per setting, in the order of the arguments."""

    def number(place: Any, label: str, most: int, value: int, key: str) -> int:
        return int(place.number_input(label, 1, most, value, key=key))

    sizes, choices = st.columns(4), st.columns(4)
    more = st.expander("LoRA, speculation, quantisation, another scheduler")
    rare, (left, right) = more.columns(4), more.columns([1, 3])
    check = "check the invariants after every step (finds a scheduler that leaks blocks)"
    own_class = "package.module:Class instead of the engine's scheduler"
    default = LiveSettings(num_blocks=48)
    return LiveSettings(
        num_blocks=number(sizes[0], "KV blocks", 100_000, default.num_blocks, "num blocks"),
        block_size=number(sizes[1], "Block size (tokens)", 256, default.block_size, "block size"),
        max_num_batched_tokens=number(
            sizes[2], "Token budget per step", 16384, default.max_num_batched_tokens, "budget"
        ),
        max_num_seqs=number(sizes[3], "max_num_seqs", 256, default.max_num_seqs, "max seqs"),
        policy=choices[0].selectbox("Policy", ["fcfs", "priority"], key="policy"),
        preemption=choices[1].selectbox("Preemption by", ["recompute", "swap"], key="preemption"),
        prefix_caching=choices[2].checkbox("prefix caching", value=True, key="prefix caching"),
        chunked_prefill=choices[3].checkbox("chunked prefill", value=True, key="chunked prefill"),
        adapters=tuple(rare[0].multiselect("Adapters", ADAPTERS, key="adapters", placeholder="none")),
        speculation=rare[1].selectbox("Speculation", SPECULATION, key="speculation"),
        num_drafts=number(rare[2], "Draft tokens", 8, default.num_drafts, "num drafts"),
        quantization=rare[3].selectbox("Weights", QUANTIZATION, key="quantization"),
        kv_cache_dtype=left.selectbox("KV cache", KV_DTYPES, key="kv dtype"),
        scheduler_cls=(
            right.text_input("Scheduler class", key="scheduler", placeholder=own_class) or ""
        ).strip(),
        check=more.checkbox(check, value=True, key="check"),
        seed=seed,
    )


def show_attach_form() -> LiveRun | None:
    """Show the form for the address of a debug port; returns the run once it is attached."""
    st.header("Attach to a running engine")
    st.caption(
        "Any engine on this machine that was started with a debug port: `prep generate … --debug-port 0`, or "
        '`LLM("shop", debug_port=0)`. It prints the address with its token.'
    )
    row = st.container(horizontal=True, vertical_alignment="bottom")
    url = row.text_input("Address", key="attach url", placeholder="http://127.0.0.1:PORT/?token=…")
    return attach(url) if row.button("Attach") else None


def attach(url: str) -> LiveRun | None:
    """Follow an engine, or show the error on the page."""
    try:
        return registry.attach(url)
    except LiveError as error:
        st.error(f"Not attached: {told(error)}")
    return None
