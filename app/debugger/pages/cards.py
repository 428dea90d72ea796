"""Page Cards: engines with their feature matrix, hardware, papers and releases; facts with dates and sources."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st

from app.debugger import session
from app.debugger.page_frame import link_is_wrong, told
from app.debugger.questions.held import bank
from prep_common.text import figure
from quizzes.cards.card import (
    FEATURES,
    KINDS,
    Card,
    EngineCard,
    HardwareCard,
    PaperCard,
    ReleaseCard,
    feature_label,
)
from quizzes.cards.card_list import Cards, load_cards
from quizzes.cards.hardware import MODEL, figures
from quizzes.claims.claim_list import Claims, load_claims

_KEY = "card"
HEADINGS = {"engine": "Engines", "hardware": "Hardware", "paper": "Papers", "release": "Releases"}
MARKS = {"yes": "● yes", "partly": "◐ part", "no": "○ no", "": "–"}
TYPES = ("float32", "bfloat16", "fp8")
STYLE = """<style>
.facts { overflow-x: auto } .facts table { border-collapse: collapse; font-size: .82rem; width: 100% }
.facts th, .facts td { padding: 3px 6px; text-align: left; border-bottom: 1px solid rgba(128,128,128,.3) }
.facts td { white-space: nowrap } .facts .open { opacity: .7 }
</style>"""
"""Lines are grey and text has the page's colour, so the table reads on a dark and on a light ground."""


def show() -> None:
    cards = _cards()
    chosen = _chosen(cards)
    st.title("Cards")
    kind = st.segmented_control(
        "Kind", list(KINDS), default=chosen.kind, format_func=HEADINGS.__getitem__, key=f"kind_{chosen.kind}",
        label_visibility="collapsed",
    )  # fmt: skip
    if kind and kind != chosen.kind:
        _go_to(next(entry.id for entry in cards if entry.kind == kind))
    st.caption(KINDS[chosen.kind][0].upper() + KINDS[chosen.kind][1:])
    of_kind: list[Any] = [cards.card(entry.id) for entry in cards if entry.kind == chosen.kind]
    if chosen.kind == "engine":
        st.html(_matrix(of_kind))
        st.caption(
            "– was not verified, which is not a no. A cell's note and source are on the engine's card."
        )
    elif chosen.kind == "hardware":
        st.html(_devices(of_kind))
        st.caption(
            "Dense arithmetic; ridge of the 16-bit type, or of fp32 without one. The step is the least time for one "
            "request with 16-bit weights. The CPU is this machine, estimated."
        )
    names, body = st.columns([1, 2.6], gap="medium")
    with names:
        ids = [card.id for card in of_kind]
        titles = {
            card.id: " · ".join(filter(None, (getattr(card, "date", ""), card.title))) for card in of_kind
        }
        picked = st.radio(
            HEADINGS[chosen.kind],
            ids,
            ids.index(chosen.id),
            format_func=titles.__getitem__,
            key=f"of_{chosen.id}",
        )
        if picked != chosen.id:
            _go_to(picked)
    with body:
        _show_card(chosen)
    session.add_to_url({"card": chosen.id})


@st.cache_resource(show_spinner="Reading the cards …")
def _cards() -> Cards:
    return load_cards()


@st.cache_resource(show_spinner=False)
def _claims() -> Claims:
    return load_claims()


def _chosen(cards: Cards) -> Card:
    """The card of this tab, or of the link that opened the page; an unknown id opens the first card."""
    wanted = session.linked("card")
    ids = cards.find(wanted or "")
    if ids:
        st.session_state[_KEY] = ids[0]
    elif wanted is not None:
        link_is_wrong(f"There is no card {wanted!r}.")
    st.session_state.setdefault(_KEY, next(iter(cards)).id)
    card: Card = cards.card(st.session_state[_KEY])
    return card


def _go_to(card_id: str) -> None:
    st.session_state[_KEY] = card_id
    st.rerun()


def _table(headings: list[str], rows: list[list[str]], about: list[str] | None = None) -> str:
    """Return a table with scoped headings, which scrolls on a narrow screen. about: tooltips of the rows."""
    head = "".join(f"<th scope='col'>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr><th scope='row' title='{escape(tip)}'>{escape(first)}</th>{''.join(map(_cell, rest))}</tr>"
        for (first, *rest), tip in zip(rows, about or [""] * len(rows), strict=True)
    )
    return f"{STYLE}<div class='facts'><table><tr>{head}</tr>{body}</table></div>"


def _cell(text: str) -> str:
    quiet = " class='open'" if text in (MARKS["partly"], MARKS[""]) else ""
    return f"<td{quiet}>{escape(text)}</td>"


def _matrix(engines: list[EngineCard]) -> str:
    """Return the feature matrix."""
    rows = [
        [feature_label(name)]
        + [MARKS[card.features[name].has if name in card.features else ""] for card in engines]
        for name in FEATURES
    ]
    return _table(["feature", *(card.title.split(",")[0] for card in engines)], rows, list(FEATURES.values()))


def _devices(cards: list[HardwareCard]) -> str:
    """Return all devices as a table; every figure comes from engine/sim."""
    headings = [
        "device",
        "GiB",
        "GB/s",
        "fp32, TFLOP/s",
        "16 bits, TFLOP/s",
        "fp8, TFLOP/s",
        "ridge, FLOP/B",
        f"step of {MODEL}",
    ]
    rows = []
    for facts in (figures(device) for card in cards for device in card.devices):
        rates = {rate.dtype: rate for rate in facts.rates}
        of_type = [figure(rates[dtype].teraflops) if dtype in rates else "–" for dtype in TYPES]
        ridge = rates.get("bfloat16", facts.rates[0]).ridge
        step = "–" if facts.floor_ms is None else f"{facts.floor_ms:,.1f} ms"
        size = [f"{facts.memory_gib:.1f}", f"{facts.gb_per_s:,.0f}"]
        rows.append([facts.name, *size, *of_type, f"{ridge:.0f}", step])
    return _table(headings, rows)


def _show_card(card: Card) -> None:
    st.header(card.title)
    lines = []
    if isinstance(card, PaperCard):
        where = f", [arXiv {card.arxiv}](https://arxiv.org/abs/{card.arxiv})" if card.arxiv else ""
        lines.append(f"{told(card.authors)}. {card.venue}{where}\n\n{told(card.idea)}\n")
    elif isinstance(card, ReleaseCard):
        lines.append(f"Files dated **{card.date}**\n")
    elif isinstance(card, EngineCard):
        lines.append(f"{told(card.languages)}; {told(card.licence)}\n")
        lines += [
            f"- **{feature_label(name)}**: {cell.has}{f', {told(cell.note)}' if cell.note else ''} `{cell.source}`"
            for name, cell in card.features.items()
        ]
    lines += [f"- {told(fact.says)} `{fact.source}`" for fact in card.facts]
    st.markdown("\n".join(lines))
    if isinstance(card, PaperCard):
        st.markdown(f"**One claim in miniature.** {told(card.miniature.claim)}")
        st.code(f"prep cards show {card.id} --run", language="sh")
        st.caption(f"Left out: {told(card.miniature.leaves_out)}")
    _show_claims(card.claims)
    if card.questions:
        st.markdown("**Questions**")
        for name in card.questions:
            title = bank().entries[name].title if name in bank() else name
            if st.button(title, key=f"card_question_{name}", type="tertiary", icon=":material/quiz:"):
                session.go("questions", {"question": name})
    st.markdown("**Sources**")
    st.markdown("\n".join(f"- `{name}` {_source(source)}" for name, source in card.sources.items()))


def _source(source: Any) -> str:
    ref = f"[{told(source.ref)}]({source.url})" if source.url else told(source.ref)
    return ", ".join(filter(None, (ref, source.version and f"version {source.version}", source.as_of)))


def _show_claims(ids: list[str]) -> None:
    """Show what interview guides say about it, with the verdicts of dated facts."""
    entries = [_claims().entries[name] for name in ids if name in _claims()]
    if entries:
        st.markdown("**Guides say**")
        said = []
        for entry in entries:
            said.append(f"- {told(entry.claim)} **{entry.fact or 'a test decides'}** `{entry.id}`")
            if entry.fact == "refuted":
                said.append(f"    - {told(_claims().claim(entry.id).fact.says)}")
        st.markdown("\n".join(said))
