"""Repairs of chunked_prefill that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "decodes_wait",
        "check_every_decode_gets_a_token_each_step",
        "decodes run in every second step only",
        (
            "        names = decodes()\n",
            "        names = decodes() if computed // max(budget, 1) % 2 == 0 else []\n",
        ),
    ),
    Mutant(
        "loses_the_rest",
        "check_the_state_is_that_of_the_whole_prompt",
        "a last chunk that is not full is dropped",
        (
            "    while computed < len(prompt):\n",
            "    while not computed or computed + budget <= len(prompt):\n",
        ),
    ),
    Mutant(
        "one_token_more_than_nothing",
        "check_a_budget_that_decodes_use_up_is_refused",
        "a full budget still lets one token in",
        (
            """\
        if room < 1:
            raise ValueError(f"{len(names)} decodes leave no room for the prompt in a budget of {budget}")
""",
            "        room = max(room, 1)\n",
        ),
    ),
    Mutant(
        "positions_start_anew",
        "check_positions_go_on",
        "every chunk begins at position 0",
        (
            '        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]\n',
            '        rows = [(name, 0, [0]) for name in names] + [("prompt", 0, chunk)]\n',
        ),
    ),
    Mutant(
        "the_budget_is_the_chunk",
        "check_the_budget_holds_for_all_of_them",
        "the chunk takes the whole budget, decodes come on top",
        (
            "        chunk = prompt[computed : computed + room]\n",
            "        chunk = prompt[computed : computed + budget]\n",
        ),
    ),
    Mutant(
        "two_passes_a_step",
        "check_a_step_is_one_forward_pass",
        "decodes and chunk run one after the other",
        (
            """\
        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]
        answers = model.step(rows)
""",
            """\
        if names:
            model.step([(name, 0, [0]) for name in names])
        answers = model.step([("prompt", computed, chunk)])
""",
        ),
    ),
)
