"""The forms of the page Live: the knobs of an engine to start, and the address of one to attach to."""

from __future__ import annotations

import streamlit as st

from app.debugger.live import registry, workloads
from app.debugger.live.client import LiveError, LiveRun
from app.debugger.live.settings import ADAPTERS, KV_DTYPES, QUANTIZATION, SPECULATION, LiveSettings
from app.debugger.page_frame import told

PACES: dict[str, float | None] = {
    "1 step/s": 1.0,
    "2 steps/s": 2.0,
    "5 steps/s": 5.0,
    "10 steps/s": 10.0,
    "20 steps/s": 20.0,
    "50 steps/s": 50.0,
    "full speed": None,
}
DEFAULTS = LiveSettings(num_blocks=48)


def show_start_form() -> LiveRun | None:
    """Show settings and workload; returns the run once its engine has started."""
    st.markdown("##### Start an engine")
    st.caption(
        "Runs the shipped model `shop` in a child process. With the default settings memory runs out within 20 steps, "
        "so that preemptions can be seen."
    )
    kind, traffic, prompts = _workload()
    settings = _engine(traffic)
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
            return registry.start(
                settings,
                arrivals,
                f"{kind}, {settings.num_blocks} blocks",
                paused=paused,
                steps_per_s=PACES[pace],
            )
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
    full = row.checkbox(
        "answers have the maximum length (ignore end of sequence)", value=True, key="full length"
    )
    by_priority = st.session_state.get("policy") == "priority"
    important = row.checkbox(
        "every third request is important (priority 0)",
        key="priorities",
        disabled=not by_priority,
        help=None if by_priority else "The policy fcfs ignores priorities.",
    )
    adapters = tuple(st.session_state.get("adapters", ()))
    return kind, workloads.Traffic(number, tokens, full, seed, important and by_priority, adapters), prompts


def _engine(traffic: workloads.Traffic) -> LiveSettings:
    columns = st.columns(4)
    num_blocks = int(columns[0].number_input("KV blocks", 1, 100_000, DEFAULTS.num_blocks, key="num blocks"))
    block_size = int(
        columns[1].number_input("Block size (tokens)", 1, 256, DEFAULTS.block_size, key="block size")
    )
    budget = int(
        columns[2].number_input(
            "Token budget per step", 1, 16384, DEFAULTS.max_num_batched_tokens, key="budget"
        )
    )
    seqs = int(columns[3].number_input("max_num_seqs", 1, 256, DEFAULTS.max_num_seqs, key="max seqs"))
    columns = st.columns(4)
    policy = columns[0].selectbox("Policy", ["fcfs", "priority"], key="policy")
    preemption = columns[1].selectbox("Preemption by", ["recompute", "swap"], key="preemption")
    caching = columns[2].checkbox("prefix caching", value=True, key="prefix caching")
    chunked = columns[3].checkbox("chunked prefill", value=True, key="chunked prefill")
    with st.expander("LoRA, speculation, quantisation, another scheduler"):
        columns = st.columns(4)
        adapters = columns[0].multiselect("Adapters", ADAPTERS, key="adapters", placeholder="none")
        speculation = columns[1].selectbox("Speculation", SPECULATION, key="speculation")
        drafts = int(columns[2].number_input("Draft tokens", 1, 8, DEFAULTS.num_drafts, key="num drafts"))
        quantization = columns[3].selectbox("Weights", QUANTIZATION, key="quantization")
        left, right = st.columns([1, 3])
        kv_dtype = left.selectbox("KV cache", KV_DTYPES, key="kv dtype")
        scheduler = right.text_input(
            "Scheduler class",
            key="scheduler",
            placeholder="package.module:Class instead of the engine's scheduler",
        )
        check = st.checkbox(
            "check the invariants after every step (finds a scheduler that leaks blocks)",
            value=True,
            key="check",
        )
    return LiveSettings(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        policy=policy,
        prefix_caching=caching,
        chunked_prefill=chunked,
        preemption=preemption,
        adapters=tuple(adapters),
        speculation=speculation,
        num_drafts=drafts,
        quantization=quantization,
        kv_cache_dtype=kv_dtype,
        scheduler_cls=(scheduler or "").strip(),
        check=check,
        seed=traffic.seed,
    )


def show_attach_form() -> LiveRun | None:
    """Show the form for the address of a debug port; returns the run once it is attached."""
    st.markdown("##### Attach to a running engine")
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
