"""Skeletons of question files for `prep bank new`."""

_HEAD = """\
schema: 1
id: {id}
title: Topic of the question in one line
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
  {{ slots }} slots, lengths {{ lens | join(', ') }}. How many steps?
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
  A request of {{ tokens }} tokens, {{ block_size }} tokens in a block. How many blocks?
answers:
  - {id: blocks, type: int, unit: blocks, expect: "=ceil(tokens / block_size)"}
oracle: {blocks: "=(tokens + block_size - 1) // block_size"}
"""

_OPTIONS = """\
prompt: |
  What is asked?
choices:
  - {id: first, text: "The right one", right: true, why: "Why it is right."}
  - {id: second, text: "A wrong one", why: "What is wrong with it."}
  - {id: third, text: "Another wrong one", why: "What is wrong with it."}
"""

_ORDER = """\
prompt: |
  Put these in order.
items:
  - {id: first, text: "This comes first"}
  - {id: second, text: "This comes second"}
  - {id: third, text: "This comes third"}
"""

_PROSE = """\
prompt: |
  Explain it.
keypoints:
  - id: point
    say: What a good answer contains.
    must: true
    probes: [batching.static_vs_continuous]
    good: ["a way to say it"]
    bad: ["a way to say the opposite"]
interview:
  probing: Purpose of the question.
  short: 30 seconds.
  long: 2 minutes.
"""

_CODE = """\
prompt: |
  This program should ... Repair it.
code: {folder: my_program}
"""

_TAIL = """\
hints:
  - {text: "A hint that does not contain the answer."}
followups:
  - {if: correct, ask: "What an interviewer asks next.", goto: memory.blocks_for_lengths}
explain: |
  Why it is so.
"""

_BODIES = {"predict": _COUNT, "numeric": _FORMULA, "order": _ORDER, "code": _CODE}
_BODIES |= dict.fromkeys(("choice", "multi", "debug"), _OPTIONS) | dict.fromkeys(("free", "design"), _PROSE)


def skeleton(question_id: str, kind: str) -> str:
    """Return the text of a new question file of that kind. It passes the schema unchanged."""
    return _HEAD.format(id=question_id, kind=kind) + _BODIES[kind] + _TAIL
