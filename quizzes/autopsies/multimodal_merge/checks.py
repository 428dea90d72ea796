"""Requirements on the merge. MultiModalEngine(tokenizer, vision_encoder, placeholder); process(text, images) -> input.

vision_encoder(images) -> a list of features per image. The input is a list of token ids and features.
"""

from typing import Any

from prep_common.sandbox import callback, expose
from quizzes.autopsies.multimodal_merge.probes import PLACEHOLDER, Tokenizer, encoder
from quizzes.autopsies.programs import Program


class _Numbers:
    """A tokenizer of texts that are numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def _engine(program: Program, calls: list[int], per_image: int = 3) -> Any:
    return program.MultiModalEngine(
        expose(Tokenizer(), ["encode"]), callback(encoder(per_image, calls)), PLACEHOLDER
    )


def check_an_image_stands_where_the_text_says(program: Program) -> None:
    """The placeholder is replaced by the features of its image, in place."""
    combined = _engine(program, []).process("see <image> there", [7])
    assert combined == [3, 7.0, 7.01, 7.02, 5], f"input {combined}"


def check_images_keep_their_order(program: Program) -> None:
    """The first placeholder is the first image."""
    combined = _engine(program, [], per_image=1).process("<image> or <image>", [7, 9])
    assert combined == [7.0, 2, 9.0], f"input {combined}"


def check_text_alone_is_text(program: Program) -> None:
    """Without images nothing is encoded and nothing added."""
    calls: list[int] = []
    assert _engine(program, calls).process("only words here", []) == [4, 5, 4]
    assert sum(calls) == 0


def check_a_count_that_does_not_match_is_refused(program: Program) -> None:
    """More or fewer images than placeholders: ValueError that names both numbers, before anything is encoded."""
    for text, images in [("<image> and <image>", [7]), ("none", [7, 8])]:
        calls: list[int] = []
        try:
            _engine(program, calls).process(text, images)
        except ValueError as error:
            wanted = {str(text.count("<image>")), str(len(images))}
            assert all(number in str(error) for number in wanted), f"the message names no numbers: {error}"
            assert not calls, "an image was encoded for a request that is refused"
            continue
        raise AssertionError(f"{text!r} with {len(images)} images was accepted")


def check_the_same_image_is_encoded_once(program: Program) -> None:
    """An image that was encoded before is not encoded again, in the same request or in another."""
    calls: list[int] = []
    engine = _engine(program, calls)
    engine.process("<image> and <image>", [7, 7])
    second = engine.process("<image>", [7])
    assert sum(calls) == 1, f"{sum(calls)} images encoded, wanted 1"
    assert second == [7.0, 7.01, 7.02], f"input {second}"


def check_any_text_with_any_images(program: Program) -> None:
    """Whatever number the placeholder has and wherever it stands, its images follow in order."""
    for per_image in (program.rng.choice([1, 2, 3]), program.rng.randint(4, 7)):
        _check_any_text(program, per_image)


def _check_any_text(program: Program, per_image: int) -> None:
    rng = program.rng
    placeholder = rng.randint(100, 900)
    pool = [last + 10 * tens for last in rng.sample(range(10), 3) for tens in (1, 2)]
    calls: list[int] = []
    tokenizer = expose(_Numbers(), ["encode"])
    engine = program.MultiModalEngine(tokenizer, callback(encoder(per_image, calls)), placeholder)
    seen: set[int] = set()
    for _ in range(8):
        tokens = [
            rng.choice([placeholder, rng.randint(0, 99), PLACEHOLDER]) for _ in range(rng.randint(3, 15))
        ]
        images = [rng.choice(pool) for _ in range(tokens.count(placeholder))]
        upcoming = iter(images)
        wanted: list[Any] = []
        for token in tokens:
            wanted += encoder(per_image, [])([next(upcoming)])[0] if token == placeholder else [token]
        combined = engine.process(" ".join(map(str, tokens)), images)
        assert combined == wanted, f"placeholder {placeholder}, tokens {tokens}, images {images}: {combined}"
        seen.update(images)
    assert sum(calls) == len(seen), f"{sum(calls)} images encoded, wanted {len(seen)}"


def check_other_images_are_other_features(program: Program) -> None:
    """KV cached for one image is never used for another."""
    engine = _engine(program, [], per_image=1)
    assert [engine.process("<image>", [image]) for image in (1, 2, 1)] == [[1.0], [2.0], [1.0]]
