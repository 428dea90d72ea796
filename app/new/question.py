"""`prep new question TOPIC.NAME`: a file of the bank, complete but for its texts. It runs an experiment that exists."""

from __future__ import annotations

from quizzes.topics import KINDS, TOPICS, resolve

NAMED = "TOPIC.NAME"
FORMS = tuple(KINDS)
FORM = "kind"
NEXT = """\
prep test --no-lint tests/quizzes/test_bank.py -k NAME  names what is not filled in yet
prep experiments list  an experiment to run; or prep new experiment TOPIC.MY_COUNT
quizzes/oracles  an answer of the oracle without the engine
prep bank lint --fix NAME  format the file
prep bank lint --run NAME  compare engine and oracle for 40 seeds
prep bank preview NAME  as a learner sees it"""

_HEAD = """\
schema: 1
id: {id}
title: FILL IN the topic in one line
kind: {kind}
stage: technical  # screen, technical, deep_dive, design, coding, incident, manager
roles: [inference]  # inference, kernel, platform, sre
difficulty: 2  # 1 recall, 2 apply, 3 combine, 4 design under constraints, 5 research
minutes: 3
covers: []
sources:
  - {{ref: "engine/core/scheduler.py"}}
status: draft
"""

_COUNT = """\
params:
  slots: {choice: [2, 3, 4]}
  lens: {ints: {n: 10, lo: 4, hi: 64}}
prompt: |
  FILL IN what is asked. {{ slots }} slots, lengths {{ lens | join(', ') }}. How many steps?
experiment:
  run: batching.static_vs_continuous
  args: {slots: "=slots", lens: "=lens"}
answers:
  - {id: steps, type: int, unit: steps, expect: "=result.continuous_steps"}
oracle: {steps: batching.list_schedule}
"""

_FORMULA = """\
params:
  tokens: {int: {lo: 10, hi: 500}}
  block_size: {choice: [8, 16, 32]}
prompt: |
  FILL IN what is asked. A request of {{ tokens }} tokens, {{ block_size }} tokens in a block. How many blocks?
answers:
  - {id: blocks, type: int, unit: blocks, expect: "=ceil(tokens / block_size)"}
oracle: {blocks: "=(tokens + block_size - 1) // block_size"}
"""

_OPTIONS = """\
prompt: |
  FILL IN what is asked.
choices:
  - {id: first, text: "FILL IN the right option", right: true, why: "FILL IN why it is right."}
  - {id: second, text: "FILL IN a wrong option", why: "FILL IN what is wrong with it."}
  - {id: third, text: "FILL IN another wrong option", why: "FILL IN what is wrong with it."}
"""

_ORDER = """\
prompt: |
  FILL IN what is to be put in order.
items:
  - {id: first, text: "FILL IN what comes first"}
  - {id: second, text: "FILL IN what comes second"}
  - {id: third, text: "FILL IN what comes third"}
"""

_PROSE = """\
prompt: |
  FILL IN what is to be explained.
keypoints:
  - id: point
    say: FILL IN what a good answer contains.
    must: true
    probes: [batching.static_vs_continuous]
    good: ["FILL IN a way to say it"]
    bad: ["FILL IN a way to say the opposite"]
interview:
  probing: FILL IN the purpose of the question.
  short: FILL IN the answer in 30 seconds.
  long: FILL IN the answer in 2 minutes.
"""

_CODE = """\
prompt: |
  FILL IN what the program should do. Repair it.
code: {folder: my_program}  # quizzes/autopsies/my_program
"""

_TAIL = """\
hints:
  - {text: "FILL IN a hint that does not contain the answer."}
followups:
  - {if: correct, ask: "FILL IN what an interviewer asks next.", goto: memory.blocks_for_lengths}
explain: |
  FILL IN why it is so.
"""

_BODIES = {"predict": _COUNT, "numeric": _FORMULA, "order": _ORDER, "code": _CODE}
_BODIES |= dict.fromkeys(("choice", "multi", "debug"), _OPTIONS) | dict.fromkeys(("free", "design"), _PROSE)


def skeleton(name: str, form: str = "predict") -> dict[str, str]:
    """Return the text of a new question of this kind. Raises ValueError for a topic."""
    topic, _, short = name.partition(".")
    resolve("topic", topic, TOPICS)
    text = _HEAD.format(id=name, kind=form) + _BODIES[form] + _TAIL
    return {f"quizzes/bank/{topic}/{short}.yaml": text.replace("my_program", short)}
