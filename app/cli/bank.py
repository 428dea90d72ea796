"""`prep bank`: list, check and preview questions."""

from __future__ import annotations

import json as json_module
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from app.cli import terminal
from app.cli.options import JsonOption, TopicOption, argument, option
from app.cli.quiz.start import open_bank
from app.cli.run import plain, told
from prep_common.names import unknown_name
from prep_common.text import counted
from quizzes.question_bank import BANK, load_bank
from quizzes.topics import TOPICS, resolve


def list_(
    topic: TopicOption = None,
    covers: Annotated[str | None, option("Only questions that cover this number, such as Q021.")] = None,
    json: JsonOption = False,
) -> None:
    """List all questions, one per line.

    Example: prep bank list --topic memory
    """
    wanted = resolve("topic", topic, TOPICS) if topic else None
    bank = list(open_bank())
    numbers = {number for entry in bank for number in entry.covers}
    if covers is not None and covers.upper() not in numbers:
        example = "prep bank list --covers Q021"
        raise terminal.Problem(unknown_name("no question covers", covers, numbers, "use a number"), example)
    entries = [entry for entry in bank if wanted in (None, entry.topic)]
    entries = [entry for entry in entries if covers is None or covers.upper() in entry.covers]
    if json:
        return terminal.print_json([asdict(entry) for entry in entries])
    for entry in entries:
        terminal.say(f"{entry.id}  [dim]{entry.kind} · {entry.difficulty} · {entry.title}[/]")
    terminal.next_command(f"prep bank preview {entries[0].id}" if entries else "prep bank stats")


def lint(
    ids: Annotated[list[str] | None, argument("All of them by default.", metavar="[ID]...")] = None,
    run: Annotated[bool, option("Also run the experiments, 40 seeds each.", "--run")] = False,
    fix: Annotated[bool, option("Format the files of questions and claims first.", "--fix")] = False,
    seeds: Annotated[int, option("With --run.", min=1, max=200)] = 40,
    json: JsonOption = False,
) -> None:
    """Check the questions: format, form and references; with --run, compare the engine with independent oracles.

    Without an ID the files of the claims are checked, too.

    \b
    Examples:
      prep bank lint
      prep bank lint --fix
      prep bank lint --run batching.static_vs_continuous
    """
    from quizzes.experiments.runner import Runner
    from quizzes.lint import bank_files, fix_format, is_exact, lint_form, lint_format, lint_truth

    bank = load_bank()
    chosen = ids or list(bank.entries)
    own_paths = [BANK / bank.file(question_id) for question_id in chosen if question_id in bank]
    paths = own_paths if ids else bank_files()
    if fix:
        formatted = sum(fix_format(path) for path in paths)
        bank = load_bank()
        if not json:
            terminal.out().print(f"formatted {formatted} of {len(paths)} files")
    findings = [str(problem) for problem in bank.problems]
    findings += [finding for path in paths for finding in lint_format(path)]
    compared = 0
    with Runner() as runner, terminal.progress(len(chosen), "questions") as advance:
        for question_id in chosen:
            advance(question_id)
            question = bank.question(question_id)
            problems = list(lint_form(question, bank))
            if run:
                count = seeds if question.experiment is None or is_exact(question) else 1
                problems += lint_truth(question, lambda n, a: runner.run(n, a).result, range(count))
                compared += count * len(question.oracle)
            findings += map(str, problems)
    if json:
        counts = {"questions": len(chosen), "compared_with_oracles": compared}
        terminal.print_json({**counts, "findings": findings})
    else:
        for finding in findings:
            terminal.say(f"{terminal.mark(False)} {terminal.literal(finding)}")
        more = f", {compared:,} answers of the engine compared with their oracles" if run else ""
        summary = f"{counted(len(chosen), 'question')}, {counted(len(findings), 'finding')}{more}"
        terminal.out().print(f"{terminal.mark(not findings)} {summary}")
        command, why = ("prep bank stats", "") if run else ("prep bank lint --run", "the slow half")
        terminal.next_command(command, why)
    raise typer.Exit(terminal.CHECKS_FAILED if findings else 0)


def preview(
    question_id: Annotated[str, argument(metavar="ID")],
    seed: Annotated[int, option("Seed of the numbers.")] = 0,
) -> None:
    """Show a question as learners see it, with its answer, hints and explanation.

    Example: prep bank preview batching.static_vs_continuous --seed 7
    """
    from app.cli.quiz import showing
    from quizzes.experiments.runner import Runner
    from quizzes.instance import draw

    bank = open_bank()
    question = bank.question(question_id)
    instance = draw(question, seed)
    showing.header(instance, 1, 1)
    where = showing.console()
    result = None
    if question.experiment is not None:
        run = question.experiment
        with Runner() as runner, told():
            result = runner.run(run.run, instance.run_args()).result
    showing.body(instance, result)
    expected = instance.expected(result)
    for key, value in expected.items():
        where.print(f" [bold]{key}[/] {plain(value)}")
    for number, hint in enumerate(question.hints, 1):
        where.print(f" [dim]hint {number} (-{hint.cost:.0%})[/] {showing.inline(instance.render(hint.text))}")
    if question.choices:
        showing.why_options(instance, result, expected)
    where.print()
    showing.explanation(instance, result, expected)
    if question.interview is not None:
        showing.interview(question.title, question.interview, instance.render)
    terminal.next_command(f"prep quiz --question {question_id} --seed {seed}", "to answer it")


def stats(
    covers: Annotated[bool, option("Count the items per numbered question.", "--covers")] = False,
    json: JsonOption = False,
) -> None:
    """Count questions by topic, kind and difficulty, and the positions of right options.

    Example: prep bank stats
    """
    bank = open_bank()
    graded = sum(bank.question(entry.id).is_machine_graded for entry in bank)
    per_number = Counter(number for entry in bank for number in entry.covers)
    figures = {
        "questions": len(bank),
        "machine_graded": graded,
        "topics": dict(Counter(entry.topic for entry in bank)),
        "kinds": dict(Counter(entry.kind for entry in bank)),
        "difficulty": dict(sorted(Counter(entry.difficulty for entry in bank).items())),
        "numbered_questions_covered": len(per_number),
        "right_option_position": _positions(bank),
    }
    if json:
        return terminal.print_json(
            {**figures, "covers": dict(sorted(per_number.items()))} if covers else figures
        )
    where = terminal.out()
    if covers:
        return where.print("\n".join(f"{number}  {count}" for number, count in sorted(per_number.items())))
    table = terminal.table("topic", "questions", *[str(level) for level in range(1, 6)])
    for topic in TOPICS:
        entries = [entry for entry in bank if entry.topic == topic]
        levels = Counter(entry.difficulty for entry in entries)
        table.add_row(topic, str(len(entries)), *[str(levels[level] or "") for level in range(1, 6)])
    terminal.show("Questions by topic and difficulty", table)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(e.kind for e in bank).most_common())
    where.print(f"{counted(len(bank), 'question')}: {kinds}")
    where.print(f"{graded / len(bank):.0%} decided by counters, formulas, checks or probes")
    where.print(f"{len(per_number)} numbered interview questions covered")
    where.print(f"positions of the right option: {figures['right_option_position']}")
    terminal.next_command("prep bank lint --run", "compares the engine with the oracles")


def schema() -> None:
    """Print the JSON Schema of question files, for editors.

    Example: prep bank schema > question.schema.json
    """
    from quizzes.question import Question

    print(json_module.dumps(Question.model_json_schema(by_alias=True), indent=2))


def _positions(bank: Any) -> dict[int, int]:
    """Count the positions of right options over three seeds each: no position may be a good guess."""
    from quizzes.instance import draw

    counts: Counter[int] = Counter()
    for entry in bank:
        question = bank.question(entry.id)
        right = {choice.id for choice in question.choices if choice.right is True}
        if entry.kind != "choice" or len(right) != 1:
            continue
        for seed in range(3):
            shown = [choice.id for choice in draw(question, seed).choices()]
            counts[shown.index(*right) + 1] += 1
    return dict(sorted(counts.items()))


HELP = "Maintain the question bank: list, lint, preview, stats, schema."


def _question_id(word: str) -> str:
    """Return the id of the question that `word` names. Raises KeyError."""
    return str(load_bank().entries[word].id)


bank = terminal.command_app(list_, lint, preview, stats, schema, help=HELP, shows=("preview", _question_id))
