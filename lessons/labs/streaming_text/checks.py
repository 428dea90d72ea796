"""Checks of the lab streaming-text: single rules, random pieces, the engine's text on tokens of the shop model."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache
from random import Random

from engine.frontend.detokenizer import Detokenizer, OutputText
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams
from engine.zoo import registry
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, same, smallest

LAB = "streaming-text"


def expected(
    pieces: Sequence[bytes], stop: Sequence[str], include: bool
) -> tuple[list[str], str, str | None]:
    """Return what each push gives, what finish gives, and the stop string: by looking at whole texts."""
    sent, told = "", []
    for count in range(1, len(pieces) + 1):
        text, found = _cut(codecs.utf_8_decode(b"".join(pieces[:count]), "replace", False)[0], stop, include)
        if found is None:
            text = text[: len(text) - _hopeful(text, stop)]
        told.append(text[len(sent) :])
        sent = text
    text, found = _cut(b"".join(pieces).decode("utf-8", "replace"), stop, include)
    return told, text[len(sent) :], found


def _cut(text: str, stop: Sequence[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ended = [each for each in stop if text[:end].endswith(each)]
        if ended:
            longest = max(ended, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def _hopeful(text: str, stop: Sequence[str]) -> int:
    return max(
        (size for each in stop for size in range(1, len(each)) if text.endswith(each[:size])), default=0
    )


def compare(
    learner: Learner, pieces: Sequence[bytes], stop: Sequence[str] = (), include: bool = False
) -> None:
    """Push the pieces; raise Failed at the first answer that differs."""
    stream = learner.new("StreamText", list(stop), include)
    told, rest, found = expected(pieces, stop, include)
    said = [f"StreamText({list(stop)}{', include_stop=True' if include else ''})"]
    for piece, right in zip(pieces, told, strict=True):
        said.append(f"push({piece!r})")
        same(f"{said[-1]} gave", stream.push(piece), right, said)
    said.append("stopped")
    same(f"{said[-1]} gave", stream.get("stopped"), found, said)
    for right in (rest, ""):
        said.append("finish()")
        same(f"{said[-1]} gave", stream.finish(), right, said)


def parts(text: str, size: int = 1) -> list[bytes]:
    """Return the bytes of a text in pieces."""
    data = text.encode()
    return [data[at : at + size] for at in range(0, len(data), size)]


@check(LAB)
def a_character_comes_whole(learner: Learner) -> None:
    """A character is sent when its last byte is there; bytes that are no UTF-8 become U+FFFD."""
    compare(learner, [b"caf", b"\xc3", b"\xa9", b"!"])
    compare(learner, parts("a漢字🚀z"))
    compare(learner, [b"a\xff", b"b", b"\xe4\xbd", b" c"])


@check(LAB)
def the_end_releases_the_rest(learner: Learner) -> None:
    """`finish` returns the text that was held back, once, and U+FFFD for a character that never came."""
    compare(learner, [b"abc<", b"/s"], ["</s>"])
    compare(learner, [b"caf", b"\xc3"])


@check(LAB)
def a_stop_string_across_tokens(learner: Learner) -> None:
    """A stop string is found wherever the tokens cut it."""
    for size in (1, 2, 3, 7):
        compare(learner, parts("Hello </s> there", size), ["</s>"])
    compare(learner, parts("漢字。続き"), ["。続"])


@check(LAB)
def nothing_is_sent_that_may_become_a_stop(learner: Learner) -> None:
    """The longest ending that begins a stop string is held back."""
    compare(learner, parts("ab<</s>"), ["</s>"])
    compare(learner, parts("aabaabaaab x"), ["aabaaab"])
    compare(learner, parts("abcabd"), ["abcabe", "cab"])


@check(LAB)
def no_more_is_held_than_may_become_a_stop(learner: Learner) -> None:
    """Text that can no longer become a stop string is sent at once."""
    compare(learner, parts("What is 2 < 3? </p> and </s"), ["</s>", "###"])
    compare(learner, parts("1 << 2 <</ 3"), ["</s>"])


@check(LAB)
def the_first_end_wins(learner: Learner) -> None:
    """The stop string that ends first; of several that end together, the longest."""
    compare(learner, parts("x END."), ["END.", "END"])
    compare(learner, parts("x the END"), ["END", "the END", "D"])
    compare(learner, [b"ab", b"cdef"], ["ef", "cd", "bcde"])


@check(LAB)
def the_stop_string_stays_only_if_asked(learner: Learner) -> None:
    """The stop string is part of the text with include_stop, and only then."""
    for include in (True, False):
        compare(learner, parts("one STOP two", 3), ["STOP"], include)


@check(LAB)
def nothing_comes_after_a_stop(learner: Learner) -> None:
    """After a stop, push and finish give nothing, whatever comes."""
    compare(learner, [b"one STOP two", b" three", b"STOP", b"\xc3"], ["STOP"], True)


@check(LAB)
def an_empty_stop_string_is_refused(learner: Learner) -> None:
    """An empty stop string raises ValueError."""
    refused("StreamText(['END', ''])", learner.new, "StreamText", ["END", ""])


@check(LAB)
def random_pieces(learner: Learner) -> None:
    """200 random texts, pieces and stop strings: every answer is that of the rules."""
    rng = Random(12)

    def run(count: int) -> None:
        letters = ["a", "b", "ab", "é", "漢", "<"]
        data = "".join(rng.choice(letters) for _ in range(count)).encode()
        pieces, at = [], 0
        while at < len(data):
            size = rng.randint(1, 4)
            pieces.append(data[at : at + size])
            at += size
        stop = [
            "".join(rng.choice(letters) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(0, 3))
        ]
        include = rng.random() < 0.3
        run_fewest(pieces, lambda some: compare(learner, some, stop, include))

    smallest([2 + number // 8 for number in range(200)], run)


# -- the engine's text


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(registry.resolve("shop"))


@check(LAB)
def the_engines_text_is_the_same(learner: Learner) -> None:
    """On tokens of the shop model, text and stop string are those of the engine, and never later than there."""
    rng, words = Random(4), tokenizer()
    for _ in range(25):
        text = " ".join(
            rng.choice(["Silver Harbor", "620 yen", "ships 東京", "café", "12"]) for _ in range(6)
        )
        stop = rng.sample([" yen", "京 ", "Harbor ca", "é 1", "zzz"], 2)
        ids = words.encode(text)
        engine = OutputText(Detokenizer(words, []), SamplingParams(stop=stop))
        stream, sent, theirs = learner.new("StreamText", stop), "", ""
        for token in ids:
            sent += stream.push(words.token_bytes(token))
            if engine.stop_string is None:
                engine.push([token])
                theirs += engine.take()
            if len(sent) < len(theirs):
                raise Failed(
                    f"{sent!r} was sent where the engine has sent {theirs!r}",
                    example=f"{text!r}, stop {stop}",
                )
        engine.close()
        sent += stream.finish()
        if (sent, stream.get("stopped")) != (engine.text, engine.stop_string):
            raise Failed(
                f"the text is {sent!r}, stopped by {stream.get('stopped')!r}; the engine's is {engine.text!r}, by "
                f"{engine.stop_string!r}",
                example=f"{text!r}, stop {stop}",
            )
