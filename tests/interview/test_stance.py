"""Sentences that an answer affirms, denies, takes back or leaves open."""

import pytest

from interview.mock.stance import affirmed, stances

A, B, C = (
    "The pool of blocks is full at noon.",
    "The scheduler preempts the request that came last.",
    "Its prompt is computed again later.",
)
TRUE = f"{A} {B} {C}"
ITEMS = "".join(f"\n- {each}" for each in (A, B, C))


@pytest.mark.parametrize(
    "text",
    [
        f"I deny all of the following: {TRUE}",
        f"I deny all of the following. {TRUE}",
        f"None of these is true: {TRUE}",
        f"It is wrong that:{ITEMS}",
        f"It is wrong that:\n1. {A}\n2. {B}\n3. {C}",
        f"I disagree with each point below.\n\n{A}\n\n{B}\n\n{C}",
        f"I would never say any of the following: {TRUE}",
        f"The following statements are false. {TRUE}",
        f"Not one of the following sentences is correct. {TRUE}",
        f"No statement below is true.{ITEMS}",
        f"Nothing of what follows is right: {TRUE}",
        f"I do not believe any of these claims: {TRUE}",
        f"Nothing of this is right: {TRUE}",
        f"Here is what is not true: {TRUE}",
        f"Everything I say next is nonsense: {TRUE}",
        f"Myths:{ITEMS}",
        f"The opposite of each of the following holds: {TRUE}",
        f"{TRUE} None of this is true.",
        f"{TRUE} All of this is wrong.",
        f"{TRUE} I deny all of the above.",
        f"{TRUE} Everything I said is false.",
        f"{TRUE} I take all of it back.",
        f"{A} That is wrong. {B} No. {C} I do not believe it.",
        f"{A} That is not true. {B} Nonsense. {C} This is a myth.",
        f"{TRUE} I cannot say whether any of this is so.",
        f"Is it that {A[:-1]}? Or that {B[:-1]}? Might it be that {C[:-1]}?",
        f"Perhaps {A[:-1]}, or perhaps not. Perhaps {B[:-1]}, or perhaps it is the other way round. It may be that "
        f"{C[:-1]}, but the opposite may hold as well.",
        f"Some people say that {A[:-1]}. Others claim that {B[:-1]}. I have read somewhere that {C[:-1]}.",
    ],
)
def test_what_other_sentences_deny_or_leave_open_is_not_affirmed(text: str) -> None:
    kept = affirmed(text)
    assert not any(each in kept for each in ("blocks is full", "preempts", "computed again")), stances(text)


@pytest.mark.parametrize(
    "before",
    [
        "It is not the CPU but the memory.",
        "It is a misconception that more replicas help.",
        "These claims are wrong:\n- more replicas help\n- the CPU is slow\nWhat is true instead:",
        "The following is often said, and it is wrong: more replicas help. In fact:",
        "More replicas help. No, wait, that is wrong.",
        "Is it the CPU? No.",
        "None of these helps: more replicas, a faster CPU.",
        "Two things are wrong with the loop: it waits, and it never evicts.",
        "What is wrong:",
        "The following goes wrong here:",
        "I do not know all of these figures.",
        "Requests below the limit are not rejected.",
        "All of these wait, and none of them holds a block.",
        "No block is free.",
        "Neither of these policies is fair.",
        "I would not touch any of these settings.",
        "Each of these is not free: it costs a step.",
        "That is not the limit.",
        "The gateway rejects all of these requests.",
        "I see no problem with these points.",
        "Myth: a larger batch is slower. Fact:",
        "Both are wrong places to look at.",
    ],
)
def test_an_answer_that_corrects_a_misconception_affirms_what_follows(before: str) -> None:
    kept = affirmed(f"{before} {TRUE}")
    assert all(each in kept for each in (A, B, C)), stances(f"{before} {TRUE}")


@pytest.mark.parametrize(
    "after",
    [
        "None of this happens at night.",
        "That is wrong for short prompts only.",
        "No block is left then.",
        "None of it is true of a pool with free blocks, which is why the morning is calm.",
        "I do not know the rest.",
        "I am not sure if the limit is right.",
        "That is not cheap.",
        "This is the opposite of what I saw last week.",
        "It is not the CPU.",
    ],
)
def test_an_answer_goes_on_without_taking_anything_back(after: str) -> None:
    kept = affirmed(f"{TRUE} {after}")
    assert all(each in kept for each in (A, B, C)), stances(f"{TRUE} {after}")
