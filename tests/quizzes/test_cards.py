"""Cards: dated facts with sources, claims that hold when they run, numbers that are typed once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.sim.hardware import GPUS, get_hardware
from quizzes.cards.card import FEATURES, KINDS, Card, EngineCard, PaperCard, ReleaseCard, parse
from quizzes.cards.card_list import BANK, load_cards
from quizzes.cards.hardware import figures
from quizzes.cards.miniature import reproduce
from quizzes.claims.claim_list import load_claims
from quizzes.experiments.registry import get
from quizzes.experiments.running import run_here
from quizzes.question_bank import load_bank
from quizzes.yaml_files import UnknownId
from quizzes.yaml_format import formatted, long_lines

CARDS = load_cards()
QUESTIONS, CLAIMS = load_bank(), load_claims()
ALL: list[Card] = [CARDS.card(entry.id) for entry in CARDS]
PAPERS = [card for card in ALL if isinstance(card, PaperCard)]


def test_all_cards_load_and_every_kind_has_some() -> None:
    assert CARDS.problems == []
    assert {card.kind for card in ALL} == set(KINDS)
    assert len(PAPERS) >= 20


def test_no_card_gives_tokens_per_second_of_an_engine() -> None:
    text = (BANK / "engines.yaml").read_text().lower()
    assert not re.search(r"tokens?/s|tokens per second|req/s|tok/s|times faster|fastest", text)


def test_releases_are_a_timeline_without_gaps_in_order() -> None:
    """Versions and dates grow together, and each date is that of its evidence or before it."""
    releases = [card for card in ALL if isinstance(card, ReleaseCard)]
    numbers = [tuple(map(int, card.version.split("."))) for card in releases]
    assert numbers == sorted(numbers) and [c.date for c in releases] == sorted(c.date for c in releases)
    for card in releases:
        assert any((source.as_of or "") <= card.date for source in card.sources.values()), card.id


def test_wrong_claims_of_guides_are_flagged_with_the_verdict_of_their_fact() -> None:
    verdicts = {name: CLAIMS.entries[name].fact for card in ALL for name in card.claims}
    assert sum(verdict == "refuted" for verdict in verdicts.values()) >= 5


def test_the_matrix_covers_most_cells() -> None:
    engines = [card for card in ALL if isinstance(card, EngineCard)]
    assert len({card.short for card in engines}) == len(engines) == 9
    filled = sum(len(card.features) for card in engines)
    assert filled >= 0.6 * len(engines) * len(FEATURES)


@pytest.mark.parametrize("card", ALL, ids=lambda card: card.id)
def test_every_statement_has_a_source_with_a_date(card: Card) -> None:
    assert card.sourced(), "a card says something"
    for _, name in card.sourced():
        assert card.sources[name].as_of


@pytest.mark.parametrize("card", ALL, ids=lambda card: card.id)
def test_cards_point_at_questions_and_claims_that_exist(card: Card) -> None:
    assert [name for name in card.questions if name not in QUESTIONS] == []
    assert [name for name in card.claims if name not in CLAIMS] == []


@pytest.mark.parametrize(
    "card",
    [pytest.param(card, marks=pytest.mark.slow if card.miniature.slow else ()) for card in PAPERS],
    ids=lambda card: card.id,
)
def test_the_claim_of_every_paper_holds_in_miniature(card: PaperCard) -> None:
    outcome = reproduce(card, run_here)
    assert outcome.holds, outcome.shows
    assert "{" not in outcome.shows
    assert get(card.miniature.run).determinism == "exact", "a claim that needs quiet would fail at random"


def test_a_claim_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal lengths leave no gain for continuous batching, and the card says so."""
    [orca] = [card for card in PAPERS if card.id == "paper.orca"]
    equal = orca.miniature.model_copy(update={"args": {"lens": [9, 9, 9, 9], "slots": 4}})
    assert not reproduce(orca.model_copy(update={"miniature": equal}), run_here).holds


def test_hardware_figures_are_those_of_the_simulator() -> None:
    named = [device for card in ALL for device in getattr(card, "devices", ())]
    assert set(named) == {*GPUS, "cpu"}
    for device in named:
        found, hardware = figures(device), get_hardware(device)
        assert found.gb_per_s * 1e9 == hardware.bytes_per_s
        for rate in found.rates:
            assert rate.teraflops * 1e12 == pytest.approx(hardware.flops[rate.dtype])
            assert rate.ridge == pytest.approx(hardware.flops[rate.dtype] / hardware.bytes_per_s)


def test_no_rate_of_the_simulator_is_typed_into_a_card() -> None:
    text = (BANK / "hardware.yaml").read_text().replace(",", "")
    for gpu in GPUS.values():
        assert f"{gpu.bytes_per_s / 1e9:.0f} GB/s" not in text


def test_the_floor_of_a_decode_step_is_at_least_the_time_to_read_the_weights() -> None:
    h100 = figures("h100")
    assert h100.floor_ms is not None
    assert 8.03e9 * 2 / 3.35e12 * 1e3 * 0.9 < h100.floor_ms < 8.03e9 * 2 / 3.35e12 * 1e3 * 1.1


@pytest.mark.parametrize("path", sorted(BANK.glob("*.yaml")), ids=lambda path: path.stem)
def test_files_are_formatted(path: Any) -> None:
    text = path.read_text()
    assert formatted(text) == text and long_lines(text) == []


def test_a_card_is_found_by_its_id_a_part_of_it_and_other_names() -> None:
    for name in ("paper.flash_attention", "flash_attention", "FlashAttention", "FA1", "Dao et al."):
        assert CARDS.find(name) == ["paper.flash_attention"]
    assert CARDS.find("h100") == ["hardware.h100"]
    with pytest.raises(UnknownId, match="did you mean 'paper.eagle'"):
        CARDS.card("paper.eagel")


def test_names_are_unique_within_a_kind() -> None:
    for entry in CARDS:
        for name in entry.names:
            assert len({i for i in CARDS.find(name) if i.startswith(entry.kind)}) == 1, name


GOOD: dict[str, Any] = {
    "schema": 1,
    "id": "hardware.x",
    "title": "X",
    "topics": ["memory"],
    "devices": ["h100"],
    "sources": {"page": {"ref": "A page", "url": "https://example.org", "as_of": "2026-11"}},
    "facts": [{"says": "It exists.", "source": "page"}],
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sources": {"page": {"ref": "A page", "url": "https://example.org"}}}, "no as_of"),
        ({"sources": {"page": {"ref": "A page", "as_of": "2026-11"}}}, "needs a url or a version"),
        ({"facts": [{"says": "It exists.", "source": "other"}]}, "no source 'other'"),
        ({"facts": []}, "no statement uses the source page"),
        ({"topics": ["cooking"]}, "topic 'cooking' is unknown"),
        ({"id": "toaster.x"}, "should match pattern"),
        ({"speed": 9}, "Extra inputs"),
        (
            {"sources": {"page": {"ref": "A page", "url": "https://example.org", "as_of": "lately"}}},
            "pattern",
        ),
    ],
)
def test_a_broken_card_is_refused(change: dict[str, Any], complaint: str) -> None:
    parse(GOOD)
    with pytest.raises(ValueError, match=complaint):
        parse({**GOOD, **change})
