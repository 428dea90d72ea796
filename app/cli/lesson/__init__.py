"""`prep lesson`: notebooks in which the reader builds an inference engine.

learning.py  what is next, list, open, check, watch, hint, solution, reset, diff
jupyter.py   JupyterLab on this machine: start, find one that runs
authoring.py run, build, mutants: for authors and CI
"""

from app.cli import terminal
from app.cli.lesson.authoring import build, mutants, run
from app.cli.lesson.learning import check, diff, hint, list_, next_lesson, open_, reset, solution_, watch
from lessons.course.lesson_files import find_lesson

lesson = terminal.command_app(
    list_,
    open_,
    check,
    watch,
    hint,
    solution_,
    reset,
    diff,
    run,
    build,
    mutants,
    help="Build an inference engine in notebooks. Without a subcommand: show what is next.",
    shows=("open", lambda word: find_lesson(word).number),
)
lesson.info.no_args_is_help = False
lesson.callback(invoke_without_command=True)(next_lesson)
