"""Page Cards: every card, its dates and sources, the matrix and the table of devices."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from engine.sim.hardware import GPUS
from quizzes.cards.card import FEATURES, feature_label
from quizzes.cards.card_list import load_cards
from tests.app.debugger.pages import Opener


def text(app: AppTest) -> str:
    assert not app.error
    kinds = ("markdown", "caption", "header", "code")
    shown = [str(each.value) for kind in kinds for each in app.get(kind)]
    return "\n".join([*shown, *(each.proto.body for each in app.get("html"))])


def test_the_page_opens_with_the_matrix_of_engines(open_page: Opener) -> None:
    shown = text(open_page("cards"))
    assert all(f">{feature_label(name)}</th>" in shown for name in FEATURES)
    assert not any(key in shown for key in ("paged kv", "weights 4bit", "openai api", ">lora<"))
    assert shown.count("scope='col'") == 1 + sum(entry.kind == "engine" for entry in load_cards())


@pytest.mark.parametrize("card_id", ["engine.tgi", "hardware.a100", "paper.orca", "release.v0_6_0"])
def test_a_link_opens_a_card_with_dates_and_sources(open_page: Opener, card_id: str) -> None:
    app = open_page("cards", card=card_id)
    card = load_cards().card(card_id)
    shown = text(app)
    assert card.title in shown
    assert all(source.as_of in shown for source in card.sources.values())
    assert app.query_params["card"] in (card_id, [card_id])


def test_wrong_claims_of_guides_are_marked(open_page: Opener) -> None:
    shown = text(open_page("cards", card="v0_6_0"))
    assert "**refuted** `S1-01`" in shown and "the scheduler that cuts prompts in 0.4.1" in shown


def test_another_card_is_chosen_with_the_list(open_page: Opener) -> None:
    app = open_page("cards", card="h100")
    assert text(app).count("scope='row'") == len(GPUS) + 1 and ">3,350</td>" in text(app)
    app.radio[0].set_value("hardware.l4").run()
    assert not app.exception and "NVIDIA L4" in [each.value for each in app.header]


def test_an_unknown_card_opens_the_first(open_page: Opener) -> None:
    assert next(iter(load_cards())).title in text(open_page("cards", card="nothing"))
