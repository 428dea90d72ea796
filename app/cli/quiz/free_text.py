"""Questions that are answered in prose: write, commit, answer the probes, mark your own key points.

No code here understands the answer. A machine-graded probe per required point comes first, before any key point is
shown, since the points would give the probes away. Then each key point is shown with the closest sentence of the
answer, which may say the opposite, and the learner marks it. A sentence that seems to turn a point around is shown;
unless the learner writes it again, it contradicts the point.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding

from app.cli import terminal
from app.cli.quiz import showing
from app.cli.quiz.dialogue import Quit, Skip, command_of
from app.cli.quiz.editor import edit
from prep_common.text import counted
from quizzes.answering import keep
from quizzes.free_text.lints import lints
from quizzes.free_text.scoring import SHORTEST, FreeGraded, Mark, key_points, model_answer, score
from quizzes.free_text.sentences import closest
from quizzes.grading import Graded, Part
from quizzes.state import KeypointMark, Prediction

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Sitting
    from quizzes.answering import Record
    from quizzes.instance import Instance
    from quizzes.question import KeyPoint

END = "."
MARKS: dict[str, Mark] = {"h": "hit", "p": "partial", "m": "miss", "x": "contradicted"}
MARK_HELP = "h hit · p partial · m miss · x I said the opposite"
MARK_EXPLANATION = (
    "Compare your answer with the key point: h if you stated it, p if you stated a part, m if it is missing, "
    "x if you stated the opposite. q quits."
)
WRITE_HELP = (
    "Write your answer as you would say it. A line that holds only a dot ends it; /e opens your editor, "
    "/h shows a hint, /s skips the question, /q quits."
)


def ask_free(sitting: Sitting, instance: Instance, record: Record) -> None:
    """Ask for the answer, its marks and its probes. Raises Skip, Quit; committed answers are kept."""
    points = key_points(instance)
    prediction = sitting.resume(instance, record)
    if prediction is None:
        prediction = _committed(sitting, instance, record, points)
    else:
        sitting.say(" [dim]your answer was saved before the interruption[/]")
    answer = str(prediction.answer)
    record.replies = {"text": answer}
    probes = _probes(sitting, points, record.seed)
    judged = _judge(sitting, instance, points, answer)
    marks = _mark(sitting, points, answer, judged)
    verdicts = {mark.keypoint_id: mark.verdict for mark in judged}
    graded = score(points, marks, probes, verdicts, answer, model_answer(instance))
    part = Part("answer", answer, None, graded.all_right, graded.earned, 1.0)
    kept = [KeypointMark(name, verdict, "self") for name, verdict in marks.items()]
    kept += [KeypointMark(name, "hit" if all(right) else "miss", "probe") for name, right in probes.items()]
    graded_once = Graded((part,), graded.grader)
    is_reviewed = graded.outcome == "reviewed"
    keep(
        sitting.state,
        sitting.session,
        instance,
        record,
        graded_once,
        prediction.id,
        marks=(*kept, *judged),
        is_reviewed=is_reviewed,
    )
    if not sitting.quiet:
        _show(graded)
        if not sitting.exam:
            showing.explanation(instance, None, {})
            _after(sitting, instance)


def _committed(sitting: Sitting, instance: Instance, record: Record, points: list[KeyPoint]) -> Prediction:
    """Read the answer and save it."""
    began = time.monotonic()
    answer = _write(sitting, instance, record)
    record.seconds = time.monotonic() - began
    if not sitting.exam:
        answer = _look_again(sitting, instance, answer, points)
    prediction = Prediction(sitting.session.id, instance.id, instance.question.revision, record.seed, answer)
    sitting.state.add(prediction)
    return prediction


def _write(sitting: Sitting, instance: Instance, record: Record) -> str:
    """Read lines until one that holds only a dot."""
    lo, hi = (100, 350) if instance.question.kind == "design" else (60, 150)
    keys = "End with a line that holds only a dot. /e editor · /h hint · /s skip · /q quit"
    sitting.say(f" [dim]{lo} to {hi} words are usual. {keys}[/]")
    lines: list[str] = []
    while True:
        line = sitting.dialogue.read(" | ")
        command = "help" if line == "?" else command_of(line)
        if line == END:
            text = "\n".join(lines).strip()
            if text:
                return text
            sitting.say(" [yellow]the answer is empty; /s skips the question[/]")
        elif command == "quit":
            raise Quit
        elif command == "skip":
            raise Skip
        elif command == "hint" and not sitting.exam:
            record.hints += sitting.hint(instance, record.hints)
        elif command == "help":
            sitting.say(showing.note(WRITE_HELP))
        elif command == "editor":
            lines = edit("\n".join(lines)).splitlines()
            count = sum(len(part.split()) for part in lines)
            sitting.say(f" [dim]{counted(count, 'word')}; a dot commits them, or write more[/]")
        else:
            lines.append(line)


def _look_again(sitting: Sitting, instance: Instance, answer: str, points: list[KeyPoint]) -> str:
    """Print questions about the text; the learner may rewrite a doubtful sentence and add one."""
    doubts = lints(answer, instance.question.kind, points)
    if not doubts:
        return answer
    for lint in doubts:
        quote = f' [dim]"{escape(lint.quote)}"[/]' if lint.quote else ""
        sitting.say(f" ? {escape(lint.ask)}{quote}")
        if lint.kind == "opposite":
            again = sitting.dialogue.read(" write it again, or Enter to keep it > ")
            answer = answer.replace(lint.quote, again, 1) if again else answer
    more = sitting.dialogue.read(" add a sentence, or Enter to commit > ")
    return f"{answer}\n{more}" if more else answer


def _judge(sitting: Sitting, instance: Instance, points: list[KeyPoint], answer: str) -> list[KeypointMark]:
    """Return the marks of the configured judge if it passed its canaries, else none."""
    from quizzes.free_text.endpoint import JudgeError
    from quizzes.free_text.judge import ask_endpoint, mark
    from quizzes.free_text.settings import load

    try:
        settings = load()
        if settings is None or not settings.counts:
            return []
        sitting.say(f" [dim]asking the judge {settings.model} at {settings.url} …[/]")
        marks = mark(ask_endpoint(settings.endpoint), instance.prompt, points, answer)
    except JudgeError as error:
        sitting.say(f" [yellow]no marks from the judge: {escape(str(error))}[/]")
        return []
    return [KeypointMark(marked.keypoint, marked.verdict, "judge", marked.quote or None) for marked in marks]


def _mark(
    sitting: Sitting, points: list[KeyPoint], answer: str, judged: list[KeypointMark]
) -> dict[str, Mark]:
    """Show each key point with the closest sentence and read the learner's mark."""
    by_judge = {mark.keypoint_id: mark for mark in judged}
    marks: dict[str, Mark] = {}
    how = "Each key point is shown with your closest sentence, which may still be wrong."
    sitting.say(f"\n [bold]Did you say it?[/] {how}")
    for number, point in enumerate(points, 1):
        if not sitting.quiet:
            showing.console().print(showing.prose(f"**{number}/{len(points)}** {point.say}"))
            near = closest(point, answer)
            said = f'closest: "{near.sentence}"' if near else "none of your sentences shares a word with it"
            showing.console().print(Padding(f"[dim]{escape(said)}[/]", (0, 0, 0, 3)))
            if point.id in by_judge:
                sitting.say(f"   [dim]judge: {by_judge[point.id].verdict}[/]")
        while point.id not in marks:
            key = sitting.dialogue.read(f"   {MARK_HELP} > ").lower()
            if key == "q" or command_of(key) == "quit":
                raise Quit
            if key == "?" or command_of(key) == "help":
                sitting.say(f"   [dim]{MARK_EXPLANATION}[/]")
            if key in MARKS:
                marks[point.id] = MARKS[key]
    return marks


def _probes(sitting: Sitting, points: list[KeyPoint], seed: int) -> dict[str, list[bool]]:
    """Ask one machine-graded question for each required point.

    A skipped probe failed; one that could not run does not count.
    """
    by_point: dict[str, list[bool]] = {}
    asked: dict[str, bool | None] = {}
    chosen = {
        point.id: probe
        for point in points
        if point.must and (probe := next((name for name in point.probes if name in sitting.bank), None))
    }
    count = len(set(chosen.values()))
    for name, probe in chosen.items():
        if probe not in asked:
            sitting.say(f"\n [bold]Probe {len(asked) + 1} of {count}[/]")
            record = sitting.ask_probe(probe, seed)
            judged = record.status in ("right", "partly", "wrong", "skipped")
            asked[probe] = record.status == "right" if judged else None
        right = asked[probe]
        if right is not None:
            by_point[name] = [right]
    return by_point


def _show(graded: FreeGraded) -> None:
    """Print the learner's marks beside the probes."""
    table = terminal.table("key point", "you", "probe", "counts", left=("you", "probe", "counts"))
    for point in graded.points:
        probe = "" if point.probe_share is None else f"{terminal.mark(point.probe_share == 1)}"
        must = "" if point.must else " [dim](extra)[/]"
        table.add_row(showing.inline(point.say) + must, point.marked, probe, point.mark)
    showing.console().print(table)
    if not graded.is_explained:
        why = f"an answer shorter than {SHORTEST} words or a list of terms counts as incomplete"
        showing.console().print(f" [yellow]{why}[/]")
    if not graded.is_on_topic:
        why = "the answer shares few words with the key points: it seems to be about something else"
        showing.console().print(f" [yellow]{why}[/]")
    how = {
        "probe": "0.6 x probes + 0.4 x marks, weighted",
        "judge": "the judge's marks, yours where it is unsure",
        "self": "your own marks only, so the answer is not counted as right: no probe was answered",
    }[graded.grader]
    if graded.outcome == "reviewed":
        why = "the probes were right and you marked every required point; without a judge prose is not scored"
        showing.console().print(f" [bold]reviewed[/] [dim]{why}[/]\n")
    else:
        if graded.outcome == "wrong":
            why = "no required point is made" if graded.is_on_topic else "it is about something else"
            how = f"{why}; right probes alone earn nothing"
        showing.console().print(f" [bold]{graded.earned:.0%}[/] [dim]{how}[/]\n")


def _after(sitting: Sitting, instance: Instance) -> None:
    """Offer a model answer, then continue."""
    question = instance.question
    while True:
        key = sitting.dialogue.read("\n Enter next · a show an answer that would score 5 · q quit > ").lower()
        if key == "q":
            raise Quit
        if key != "a" or question.interview is None:
            return
        showing.interview(question.title, question.interview, instance.render)
