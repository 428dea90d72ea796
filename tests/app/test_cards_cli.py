"""`prep cards`: list, show, matrix, and files that open again."""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.cards import cards as app
from app.cli.main import app as prep
from app.cli.terminal import Problem
from quizzes.cards import pdf
from quizzes.cards.card_list import load_cards
from quizzes.cards.sheets import Entry, lines, of_card, of_question, question_ids
from quizzes.experiments.running import run_here
from quizzes.question_bank import load_bank


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def problem(*arguments: str) -> str:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, ValueError | Problem), error
    return str(error)


def test_list_shows_every_kind_and_can_be_limited() -> None:
    text = output("list")
    assert all(word in text for word in ("h100", "paged_attention", "vllm", "v0_11_0"))
    found = json.loads(output("list", "--kind", "paper", "--topic", "speculation", "--json"))
    assert {card["id"] for card in found} == {"paper.speculative_decoding", "paper.eagle", "paper.medusa"}
    assert "did you mean 'paper'" in problem("list", "--kind", "papers")


def test_every_card_can_be_shown_with_its_dates() -> None:
    cards = load_cards()
    for card in (cards.card(entry.id) for entry in cards):
        text = output("show", card.id)
        assert card.title in text
        assert all(source.as_of in text for source in card.sources.values())


def test_hardware_shows_the_ridge_and_json_the_figures() -> None:
    assert "295" in output("show", "h100")
    [row] = json.loads(output("show", "h100", "--json"))["figures"]
    assert row["gb_per_s"] == 3350


def test_a_paper_runs_its_claim() -> None:
    assert "68 with continuous ones" in " ".join(output("show", "orca", "--run").split())
    assert json.loads(output("show", "orca", "--run", "--json"))["outcome"]["holds"] is True


def test_prep_answer_shows_the_cards_of_a_name() -> None:
    answered = CliRunner().invoke(prep, ["answer", "vllm"]).output
    assert "engine.vllm" in answered and "2026-10-17" in answered
    both = json.loads(CliRunner().invoke(prep, ["answer", "SGLang", "--json"]).output)
    assert [card["id"] for card in both] == ["engine.sglang", "paper.sglang"]
    [h100] = json.loads(CliRunner().invoke(prep, ["answer", "h100", "--json"]).output)
    assert h100["figures"][0]["gb_per_s"] == 3350
    assert "FlashAttention" in CliRunner().invoke(prep, ["answer", "flashattention"]).output
    assert CliRunner().invoke(prep, ["answer", "memory.paged_attention"]).output.count("in 30 seconds") == 1
    assert "no question is called 'nothing'" in CliRunner().invoke(prep, ["answer", "nothing"]).output


def test_a_card_without_a_claim_says_so() -> None:
    assert "has no claim that runs" in problem("show", "h100", "--run")
    assert "names 2 cards" in problem("show", "sglang")
    assert "did you mean 'paper.eagle'" in problem("show", "paper.eagel")


def test_the_matrix_has_a_row_for_each_feature() -> None:
    text = output("matrix")
    assert "continuous batching" in text and "not verified" in text
    assert json.loads(output("matrix", "--json"))["engine.vllm"]["paged_kv"] == "yes"


@pytest.mark.slow
def test_exports_open_again(tmp_path: Path) -> None:
    from pypdf import PdfReader

    deck, sheet = tmp_path / "m.apkg", tmp_path / "m.pdf"
    output("export", "--anki", str(deck), "--pdf", str(sheet), "--topic", "parallelism")
    ids = [*question_ids(load_bank(), ["parallelism"], None)]
    ids += [entry.id for entry in load_cards() if "parallelism" in entry.topics]
    with zipfile.ZipFile(deck) as archive:
        archive.extract("collection.anki2", tmp_path)
    with sqlite3.connect(tmp_path / "collection.anki2") as base:
        [(notes,)] = base.execute("select count(*) from notes")
        fields = [row[0] for row in base.execute("select flds from notes")]
    assert notes == len(ids)
    assert all(any(f"{name}, seed 0" in field for field in fields) for name in ids)
    text = "\n".join(page.extract_text() for page in PdfReader(sheet).pages)
    assert all(name in text for name in ids)
    assert not re.search(r"\de[+]\d", " ".join([text, *fields])), "a figure in the notation of computers"
    for name in question_ids(load_bank(), ["parallelism"], None):
        entry = of_question(load_bank().question(name), 0, run_here)
        words = re.findall(r"\b[A-Za-z]{5,}\b", entry.front)[:4]
        assert all(word in text for word in words), f"{name}: an answer without its question"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to export"),
        (("--pdf", "x.txt"), "does not end in .pdf"),
        (("--anki", "x.apkg", "--topic", "memry"), "did you mean 'memory'"),
        (("--anki", "x.apkg", "--role", "cook"), "unknown role"),
    ],
)
def test_bad_exports_are_refused_before_anything_runs(arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in problem("export", *arguments)


def test_a_file_is_overwritten_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_text("mine")
    assert "exists" in problem("export", "--pdf", str(path))
    assert path.read_text() == "mine"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.terminal.find_spec", lambda name: None)
    error = CliRunner().invoke(app, ["export", "--anki", "x.apkg"]).exception
    assert isinstance(error, Problem)
    assert "Anki decks need genanki" in str(error) and "./prep cards export" in error.next_step


def test_an_entry_holds_the_figures_of_the_experiment() -> None:
    entry = of_question(load_bank().question("batching.static_vs_continuous"), 7, run_here)
    assert "322 steps" in entry.answer and "266 steps" in entry.answer, (
        "those of the transcript in the README"
    )
    spoken = of_question(load_bank().question("memory.paged_attention"), 0, run_here)
    assert spoken.answer == "" and "{{" not in spoken.back


def test_a_role_and_a_seed_choose_the_questions_and_their_numbers() -> None:
    bank = load_bank()
    kernel = question_ids(bank, ["attention"], "kernel")
    assert kernel and set(kernel) < set(question_ids(bank, ["attention"], None))
    question = bank.question("batching.static_vs_continuous")
    assert of_question(question, 1, run_here).answer != of_question(question, 2, run_here).answer


def test_a_question_that_measures_time_gets_no_figures() -> None:
    entry = of_question(
        load_bank().question("attention.kv_cache_time"), 0, lambda name, args: pytest.fail(name)
    )
    assert entry.answer == "" and "prep quiz --question" in entry.back


def test_a_card_of_a_paper_says_whether_its_claim_holds() -> None:
    card = load_cards().card("paper.lora")
    assert "It holds here" in of_card(card, "lora", run_here).back


def test_wrapped_lines_are_joined_and_items_stay() -> None:
    assert lines("Paged:\n11. Over\n\n1. a\n   b\n2. c\n- d") == [
        "Paged: 11. Over",
        "",
        "1. a",
        "   b",
        "2. c",
        "- d",
    ]


def test_a_sheet_without_a_unicode_font_replaces_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pypdf import PdfReader

    monkeypatch.setattr(pdf, "unicode_fonts", lambda: None)
    entry = Entry("memory.x", "memory", "Größe ≥ 3 → 価格", "?", "", "**Fett** und `Code`")
    assert pdf.write([entry], tmp_path / "x.pdf", "prep", "note") == 1
    text = PdfReader(tmp_path / "x.pdf").pages[0].extract_text()
    assert "Größe >= 3 -> ??" in text and "Fett und Code" in text


def test_help_is_there_without_importing_anything_heavy() -> None:
    result = CliRunner().invoke(prep, ["cards", "--help"])
    assert result.exit_code == 0 and "export" in result.output
