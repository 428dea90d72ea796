"""`prep new experiment TOPIC.NAME`: a file of experiments with one function that counts steps of the scheduler."""

from __future__ import annotations

from app.new import Taken
from quizzes.experiments import registry
from quizzes.topics import TOPICS, resolve

NAMED = "TOPIC.NAME"
NEXT = """\
prep test --no-lint tests/quizzes/test_registry.py -k NAME  names what is missing
prep run NAME  run it with its defaults
prep new question TOPIC.MY_QUESTION  an oracle in quizzes/oracles checks it; or a test in tests/quizzes
quizzes/experiments/README.md  the context, limits, measurements, charts"""

_TEXT = '''\
"""FILL IN what the experiments of this file measure."""

from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment()
def {short}(
    ctx: Context, slots: int = arg(4, 1, 64), lens: list[int] = arg([12, 40, 8], 1, 500, count=(1, 50))
) -> Result:
    """FILL IN what it compares or counts, in one sentence.

    FILL IN how both sides are set up, and the source.

    Returns: FILL IN a sentence about all fields.
        steps [steps]: FILL IN the meaning of the field.
    """
    engine = ctx.core(max_num_seqs=slots).run([Ask(f"r{{i}}", 1, n) for i, n in enumerate(lens)])
    return Result(steps=engine.num_steps)
'''


def skeleton(name: str) -> dict[str, str]:
    """Return the file of a new experiment. Raises ValueError for an unknown topic, Taken if there is an experiment."""
    topic, _, short = name.partition(".")
    resolve("topic", topic, TOPICS)
    path = f"quizzes/experiments/{topic}/{short}.py"
    if name in registry.names():
        raise Taken(f"there is an experiment {name}, in {registry.source_file(name).name}", path)
    folder = registry.FOLDER / topic
    package = (
        {} if folder.is_dir() else {f"quizzes/experiments/{topic}/__init__.py": f'"""{TOPICS[topic]}."""\n'}
    )
    return {**package, path: _TEXT.format(short=short)}
