"""Text grows token by token: the same text as all at once, and never half a character or a stop string."""

from __future__ import annotations

import random

import pytest

from engine.frontend.detokenizer import Detokenizer, OutputText
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams

UNKNOWN = "\ufffd"
EMOJI_AND_CJK = "a😀🎉 你好，世界 ünï été ñ — 𝕏🏳️‍🌈 日本語テキスト"


def pieces(tokenizer: Tokenizer, token_ids: list[int], prompt: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.flush()]


def byte_ids(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """One token per byte."""
    by_bytes = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [by_bytes[bytes([byte])] for byte in text]


def test_a_stream_adds_up_to_the_text_decoded_at_once(tokenizer: Tokenizer) -> None:
    """10,000 random sequences, most of them invalid UTF-8, with every prompt length from 0."""
    rng = random.Random(1)
    ids = range(tokenizer.vocab_size)
    for _ in range(10_000):
        sequence = rng.choices(ids, k=rng.randrange(1, 12))
        skip = rng.random() < 0.5
        whole = tokenizer.decode(sequence, skip_special_tokens=skip)
        assert "".join(pieces(tokenizer, sequence, [], skip=skip)) == whole, sequence


def test_text_does_not_depend_on_how_tokens_are_portioned(tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    for _ in range(2_000):
        prompt, sequence = (rng.choices(range(tokenizer.vocab_size), k=rng.randrange(8)) for _ in range(2))
        detokenizer = Detokenizer(tokenizer, prompt)
        cut = rng.randrange(len(sequence) + 1)
        text = detokenizer.push(sequence[:cut]) + detokenizer.push(sequence[cut:]) + detokenizer.flush()
        assert text == "".join(pieces(tokenizer, sequence, prompt))


def test_byte_level_text_is_the_tokenizer_librarys(byte_level: Tokenizer) -> None:
    rng = random.Random(2)
    for _ in range(2_000):
        sequence = rng.choices(range(byte_level.vocab_size), k=rng.randrange(1, 20))
        assert byte_level.decode(sequence) == byte_level.backend.decode(sequence, skip_special_tokens=False)


def test_sentencepiece_text_is_the_tokenizer_librarys_for_every_valid_text(sentencepiece: Tokenizer) -> None:
    """For invalid bytes the library drops the valid characters beside them; ours keeps them."""
    rng = random.Random(3)
    alphabet = EMOJI_AND_CJK + "the cat sat  "
    for _ in range(2_000):
        sequence = sentencepiece.encode("".join(rng.choices(alphabet, k=rng.randrange(1, 20))))
        for skip in (True, False):
            whole = sentencepiece.backend.decode(sequence, skip_special_tokens=skip)
            assert sentencepiece.decode(sequence, skip_special_tokens=skip) == whole


def test_emoji_and_cjk_are_shown_only_when_complete(tokenizer: Tokenizer) -> None:
    for sequence in (tokenizer.encode(EMOJI_AND_CJK), byte_ids(tokenizer, "😀你".encode())):
        streamed = pieces(tokenizer, sequence, [])
        assert UNKNOWN not in "".join(streamed)
        assert "".join(streamed) == tokenizer.decode(sequence, skip_special_tokens=True)


def test_a_character_appears_with_its_last_byte(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, byte_ids(byte_level, "😀a".encode()), []) == ["", "", "", "😀", "a", ""]


def test_invalid_bytes_do_not_stop_the_stream(byte_level: Tokenizer) -> None:
    broken = byte_ids(byte_level, b"a\xff\xff\xe4\xbdb\x80c")
    assert pieces(byte_level, broken, []) == ["a", UNKNOWN, UNKNOWN, "", "", UNKNOWN + "b", UNKNOWN, "c", ""]


def test_a_real_replacement_character_is_text_like_any_other(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, byte_ids(byte_level, UNKNOWN.encode()), []) == ["", "", UNKNOWN, ""]


def test_a_text_that_ends_in_the_middle_of_a_character_says_so_once(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, byte_ids(byte_level, "a😀".encode()[:-1]), []) == ["a", "", "", "", UNKNOWN]


def test_a_character_begun_by_the_prompt_and_completed_by_the_output_is_shown(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, "x你y".encode())
    assert pieces(byte_level, ids[3:], ids[:3]) == ["你", "y", ""]


def test_a_character_that_the_prompt_leaves_unfinished_does_not_leak(byte_level: Tokenizer) -> None:
    prompt = byte_ids(byte_level, "x你".encode()[:-1])
    assert pieces(byte_level, byte_ids(byte_level, b"ok"), prompt) == ["o", "k", ""]
    assert pieces(byte_level, [], prompt) == [""]


def test_the_space_before_the_first_word_is_kept_after_a_prompt(sentencepiece: Tokenizer) -> None:
    prompt, word = sentencepiece.encode("hello"), sentencepiece.encode("world", add_special_tokens=False)
    assert "".join(pieces(sentencepiece, word, prompt)) == " world"
    assert "".join(pieces(sentencepiece, word, [sentencepiece.bos_token_id])) == "world"
    assert "".join(pieces(sentencepiece, word, [])) == "world"


def test_special_tokens_are_skipped_or_kept(tokenizer: Tokenizer) -> None:
    hello = tokenizer.encode("the cat", add_special_tokens=False)
    sequence = [tokenizer.bos_token_id, *hello, tokenizer.eos_token_id]
    assert "".join(pieces(tokenizer, sequence, [])) == "the cat"
    kept = "".join(pieces(tokenizer, sequence, [], skip=False))
    assert kept == tokenizer.backend.decode(sequence, skip_special_tokens=False)
    assert kept.startswith("<s>") and kept.endswith("cat</s>")


def test_an_id_beyond_the_vocabulary_is_no_text(tokenizer: Tokenizer) -> None:
    beyond = tokenizer.vocab_size
    assert pieces(tokenizer, [beyond, beyond + 7], []) == ["", "", ""]
    assert tokenizer.decode([beyond]) == ""


# Stop strings


def output_text(tokenizer: Tokenizer, **params: object) -> OutputText:
    sampling_params = SamplingParams(**params)
    return OutputText(Detokenizer(tokenizer, [tokenizer.encode("the")[0]]), sampling_params)


def stream(text: OutputText, token_ids: list[int]) -> list[str]:
    """Return the text that a client sees per token, up to the stop string."""
    shown = []
    for token_id in token_ids:
        text.push([token_id])
        if text.stop_string is not None:
            break
        shown.append(text.take())
    text.close()
    return [*shown, text.take()]


@pytest.mark.parametrize("stop", ["lo w", "o", "hello", "wor", " "])
def test_a_stop_string_is_found_wherever_the_token_borders_are(byte_level: Tokenizer, stop: str) -> None:
    by_byte = byte_ids(byte_level, b"hello world")
    by_word = byte_level.encode("hello world")
    for token_ids in (by_byte, by_word):
        text = output_text(byte_level, stop=stop)
        shown = stream(text, token_ids)
        assert text.stop_string == stop
        assert "".join(shown) == text.text == "hello world"[: "hello world".index(stop)]


def test_a_stop_string_inside_one_token_cuts_it(byte_level: Tokenizer) -> None:
    (token,) = byte_level.encode(" world")
    text = output_text(byte_level, stop="or")
    text.push([token])
    text.close()
    assert (text.stop_string, text.text) == ("or", " w")


def test_tokens_behind_a_stop_string_do_not_count(byte_level: Tokenizer) -> None:
    text = output_text(byte_level, stop="or")
    assert text.push(byte_ids(byte_level, b"wo")) == 2
    assert text.push(byte_ids(byte_level, b"rld")) == 1


def test_the_stop_string_that_ends_first_wins_and_of_equals_the_longer(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(" world")
    for stop, winner, rest in (
        (["world", "or"], "or", " w"),
        (["ld", "rld", "d"], "rld", " wo"),
        (["l", "world"], "l", " wor"),
    ):
        for token_ids in (ids, byte_ids(byte_level, b" world")):
            text = output_text(byte_level, stop=stop)
            stream(text, token_ids)
            assert (text.stop_string, text.text) == (winner, rest)


def test_a_stop_string_may_be_part_of_the_output(byte_level: Tokenizer) -> None:
    text = output_text(byte_level, stop="wor", include_stop_str_in_output=True)
    assert "".join(stream(text, byte_level.encode("hello world"))) == "hello wor"


def test_what_may_begin_a_stop_string_is_held_back_and_no_more(byte_level: Tokenizer) -> None:
    text = output_text(byte_level, stop=["#END#", "xy"])
    assert stream(text, byte_ids(byte_level, b"abcdefg")) == ["", "", "", "", "a", "b", "c", "defg"]


def test_a_stream_never_shows_text_that_the_final_answer_lacks(tokenizer: Tokenizer) -> None:
    rng = random.Random(4)
    for _ in range(2_000):
        ids = rng.choices(range(tokenizer.vocab_size), k=20)
        whole = "".join(pieces(tokenizer, ids, [5]))
        stops = {whole[i : i + rng.randrange(1, 6)] for i in rng.sample(range(len(whole)), k=2)}
        text = OutputText(Detokenizer(tokenizer, [5]), SamplingParams(stop=sorted(stops)))
        shown = "".join(stream(text, ids))
        ends = [whole.index(stop) + len(stop) for stop in stops]
        assert shown == text.text
        if text.stop_string is not None:  # it may begin in the flushed end, where nothing is searched
            assert len(shown) + len(text.stop_string) == min(ends)
            assert whole.startswith(shown + text.stop_string)


def test_stop_strings_do_not_count_before_min_tokens(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, b"a.b.c.d")
    for min_tokens, expected in ((0, "a"), (1, "a"), (2, "a.b"), (3, "a.b"), (4, "a.b.c"), (6, "a.b.c.d")):
        text = output_text(byte_level, stop=".", min_tokens=min_tokens)
        stream(text, ids)
        assert text.text == expected, min_tokens


def test_a_long_text_of_invalid_bytes_is_no_more_work_per_token(byte_level: Tokenizer) -> None:
    """A window of undecided tokens would grow without end here, and the time with its square."""
    token_ids = byte_ids(byte_level, b"\xff") * 50_000
    assert "".join(stream(output_text(byte_level, stop="never"), token_ids)) == UNKNOWN * 50_000
