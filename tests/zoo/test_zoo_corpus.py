"""The corpus: the same seed gives the same text, splits are disjoint, prompts contain their answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from engine.zoo.catalogue import Catalogue, is_held_out
from engine.zoo.corpus import conversations, draw_cases, draw_conversation, to_cases, to_text, tokenize
from engine.zoo.dialogue import KIND_TO_TYPE, QUESTIONS

TITLES = {
    "en": re.compile(r"- (?:Readers of |Of )?([A-Z][a-z]+ [A-Z][a-z]+)"),
    "ja": re.compile(r"- (.+?の.+?)の(?:作者|価格|巻数|分野|在庫|次)は"),
}


def titles_of(conversation) -> set[str]:
    return set(TITLES[conversation.language].findall(conversation.messages[0].content))


def test_a_sample_depends_on_nothing_but_its_address() -> None:
    forwards = [draw_conversation("train", 3, index) for index in range(20)]
    backwards = [draw_conversation("train", 3, index) for index in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != list(conversations("train", 4, 20))


def test_test_shops_hold_only_titles_that_training_never_shows() -> None:
    for split, held_out in (("train", False), ("validation", True), ("test", True)):
        for conversation in conversations(split, 0, 60):
            titles = titles_of(conversation)
            assert len(titles) == conversation.rows
            assert all(is_held_out(title) == held_out for title in titles)
    assert {to_text(c) for c in conversations("validation", 0, 60)}.isdisjoint(
        to_text(c) for c in conversations("test", 0, 60)
    )


def test_no_two_titles_of_a_shop_share_a_word() -> None:
    for conversation in conversations("test", 1, 60):
        words = [word for title in titles_of(conversation) for word in re.split(" |の", title)]
        assert len(words) == len(set(words))


def test_the_mix_of_turns_is_the_one_we_promise() -> None:
    judged = [case for case in draw_cases(6000, split="train") if not case.kind.endswith("_result")]
    shares = {kind: 0.0 for kind in set(KIND_TO_TYPE.values())}
    for case in judged:
        shares[KIND_TO_TYPE[case.kind]] += 1 / len(judged)
    for kind, promised in (("factual", 0.3), ("recommend", 0.4), ("compare", 0.2), ("support", 0.1)):
        assert shares[kind] == pytest.approx(promised, abs=0.03), shares
    assert sum(case.language == "ja" for case in judged) / len(judged) >= 0.25


def sentences(text: str, language: str) -> list[str]:
    if language == "ja":
        return [part + "。" for part in text.split("。") if part]
    return [part if part.endswith(".") else part + "." for part in text.split(". ") if part]


def test_every_answer_can_be_derived_from_its_prompt() -> None:
    """Each sentence of an answer stands in the notes, or follows from two sentences that do, or from the question."""
    for case in draw_cases(1500):
        notes, question = (
            case.prompt.split("<|im_end|>", 1)[0],
            case.prompt.rsplit("user\n", 1)[1].split("<|im_end|>")[0],
        )
        if case.kind in ("order", "reserve"):
            call = json.loads(case.answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            (argument,) = call["arguments"].values()
            assert call["name"] in notes
            assert argument in case.prompt
        elif case.kind == "unknown":
            title = next(
                t for t in re.findall(r"[A-Z]\w+ [A-Z]\w+|\w+の\w+(?=は扱)", case.answer.replace("We do", ""))
            )
            assert title in question
            assert title not in notes
        elif case.kind in ("cheaper", "longer"):
            first, second, verdict = sentences(case.answer, case.language)
            assert first.strip() in notes and second.strip() in notes
            values = [int(re.findall(r"\d+", part)[-1]) for part in (first, second)]
            wanted = min(values) if case.kind == "cheaper" else max(values)
            winner = (first, second)[values.index(wanted)]
            title = (
                verdict.split(" is ")[0].strip()
                if case.language == "en"
                else verdict[4:].removesuffix("です。")
            )
            assert title and title in winner
        elif case.kind == "order_result":
            status = json.loads(case.prompt.rsplit("tool\n", 1)[1].split("<|im_end|>")[0])["status"]
            assert status in case.answer
        elif case.kind not in ("courtesy", "reserve_result"):
            assert all(part.strip() in notes for part in sentences(case.answer, case.language)), case


def test_a_case_is_a_prefix_of_its_conversation() -> None:
    conversation = draw_conversation("test", 0, 3)
    for case in to_cases(conversation):
        assert to_text(conversation).startswith(case.prompt + case.answer + "<|im_end|>")


def test_marked_tokens_are_exactly_the_answers(tokenizer: Tokenizer) -> None:
    for conversation in conversations("train", 0, 20):
        sample = tokenize(conversation, tokenizer)
        whole = tokenizer.encode(to_text(conversation)).ids
        assert whole[: len(sample.tokens)] == sample.tokens.tolist()
        answers = [message.content for message in conversation.messages if message.kind]
        for number, answer in enumerate(answers, start=1):
            marked = sample.tokens[sample.answer_ids == number].tolist()
            assert tokenizer.decode(marked, skip_special_tokens=False) == answer + "<|im_end|>"


def test_a_shop_keeps_its_own_promises(catalogue: Catalogue) -> None:
    for item in catalogue.items:
        assert item.next_title != item.title
        assert catalogue.item(item.next_title)
        assert item.genre in dict(catalogue.genre_picks)
    for genre, title in catalogue.genre_picks:
        assert catalogue.item(title).genre == genre
    assert len({item.price for item in catalogue.items}) == len(catalogue.items)
    assert len({item.volumes for item in catalogue.items}) == len(catalogue.items)
    assert replace(catalogue) == catalogue


def test_each_question_can_be_asked_in_both_languages() -> None:
    assert QUESTIONS["en"].keys() == QUESTIONS["ja"].keys()
