"""Requirements on chunked prefill: chunked_prefill(model, prompt, decodes, budget) -> state behind the whole prompt.

decodes: callable -> the list of requests that decode in this step, one token each. Every step is one call
model.step(rows) with rows (name, start, tokens): the prompt is "prompt", at most `budget` tokens together.
"""

from typing import Any

from prep_common.sandbox import callback, expose
from quizzes.autopsies.chunked_prefill.probes import digest
from quizzes.autopsies.programs import Program, refused


class _Model:
    """Remembers every row; its answer for a row is a digest of all tokens that this name has sent so far."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[str, int, int]]] = []
        self.past: dict[str, list[int]] = {}

    def step(self, rows: list[tuple[str, int, list[int]]]) -> dict[str, int]:
        assert len(self.steps) < 5000, "no end after 5,000 steps"
        self.steps.append([(name, start, len(tokens)) for name, start, tokens in rows])
        answers = {}
        for name, start, tokens in rows:
            past = self.past.setdefault(name, [])
            if name == "prompt":
                computed = len(past)
                assert start == computed, (
                    f"a chunk starts at position {start}, {computed} tokens are computed"
                )
            past += tokens
            answers[name] = digest(past)
        return answers


def _run(program: Program, length: int, budget: int, *decoding: int) -> tuple[_Model, Any]:
    """decoding: how many requests decode in step 0, 1, ...; the last number stays."""
    model, counts = _Model(), iter(decoding or (0,))
    count = 0

    def decodes() -> list[str]:
        nonlocal count
        count = next(counts, count)
        return [f"d{i}" for i in range(count)]

    state = program.chunked_prefill(expose(model, ["step"]), list(range(length)), callback(decodes), budget)
    return model, state


def check_the_state_is_that_of_the_whole_prompt(program: Program) -> None:
    """The returned state equals that of one prefill of the whole prompt."""
    drawn = [(program.rng.randint(1, 200), program.rng.randint(1, 40)) for _ in range(4)]
    for length, budget in [(3000, 1024), (10, 3), (5, 100), (64, 64), *drawn]:
        _, state = _run(program, length, budget)
        assert state == digest(list(range(length))), f"{length} tokens in steps of {budget}: another state"


def check_positions_go_on(program: Program) -> None:
    """Each chunk starts at the position where the last one ended."""
    model, _ = _run(program, 10, 4)
    starts = [start for step in model.steps for name, start, _ in step if name == "prompt"]
    assert starts == [0, 4, 8], f"chunks start at {starts}"


def check_a_step_is_one_forward_pass(program: Program) -> None:
    """Decodes and the chunk share one step: the weights are read once."""
    model, _ = _run(program, 100, 20, 4)
    mixed = [[name for name, _, _ in step] for step in model.steps]
    assert all("prompt" in names and len(names) == 5 for names in mixed), f"rows by step: {mixed[:3]} ..."


def check_the_budget_holds_for_all_of_them(program: Program) -> None:
    """Decodes go first, and the chunk takes what is left of the budget."""
    model, _ = _run(program, 100, 20, 4)
    sizes = [sum(count for _, _, count in step) for step in model.steps]
    assert max(sizes) <= 20, f"{max(sizes)} tokens in a step of 20"
    assert sizes[0] == 20, f"{sizes[0]} tokens in the first step: the budget is not used"
    assert len(sizes) == 7, f"{len(sizes)} steps for 100 tokens of 16 a step"


def check_a_budget_that_decodes_use_up_is_refused(program: Program) -> None:
    """If the decodes leave nothing for the prompt, ValueError: it would never end."""
    with refused(
        ValueError, "4 decodes in a budget of 4 leave no room for the prompt, but no error was raised"
    ):
        _run(program, 10, 4, 4)


def check_every_decode_gets_a_token_each_step(program: Program) -> None:
    """No decode is left out of a step."""
    model, _ = _run(program, 50, 8, 3)
    rows = [name for step in model.steps for name, _, _ in step]
    counts = {name: rows.count(name) for name in ("d0", "d1", "d2")}
    assert set(counts.values()) == {len(model.steps)}, f"decodes in {counts} of {len(model.steps)} steps"


def check_decodes_come_and_go(program: Program) -> None:
    """Each step asks which requests decode: they may be others, more or fewer than in the step before."""
    for _ in range(3):
        budget, length = program.rng.randint(9, 30), program.rng.randint(100, 200)
        decoding = [program.rng.randint(0, 8) for _ in range(200)]
        model, _ = _run(program, length, budget, *decoding)
        rows = [len(step) - 1 for step in model.steps]
        wanted = decoding[: len(rows)]
        assert rows == wanted, f"decodes by step {rows[:9]}, wanted {wanted[:9]}"
        sizes = [sum(count for _, _, count in step) for step in model.steps]
        is_full = set(sizes[:-1]) <= {budget} and sizes[-1] <= budget
        assert is_full, f"steps of {sizes[:9]} tokens with a budget of {budget}"
