"""Prose: sentences, questions about them, points; a judge behind a real HTTP endpoint: honest, gullible or broken."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from quizzes import question_bank
from quizzes.free_text.canaries import AT_LEAST, Canary, GateResult, agrees, build, gate
from quizzes.free_text.endpoint import KEY_VARIABLE, Endpoint, JudgeError, checked_url, complete
from quizzes.free_text.judge import ask_endpoint, mark, prompt_hash
from quizzes.free_text.lints import lints
from quizzes.free_text.scoring import key_points, score
from quizzes.free_text.sentences import closest, sentences
from quizzes.free_text.settings import JudgeSettings, forget, load, save
from quizzes.instance import draw
from quizzes.question import KeyPoint, Question
from tests.quizzes import made_up

IDLE = KeyPoint(
    id="idle",
    say="A static batch keeps finished slots idle until its longest member ends.",
    weight=2,
    must=True,
    probes=["batching.static_vs_continuous"],
    good=[
        "everyone waits for the slowest request in the group",
        "short ones sit in the batch until the long one is done",
    ],
    bad=["a static batch never has idle slots, all of its members finish together"],
)
ADMIT = KeyPoint(
    id="admit",
    say="Continuous batching admits a waiting request in the step after a slot is free.",
    good=["a new request joins as soon as another leaves"],
    bad=["continuous batching admits new requests only when the whole batch is done"],
)
ANSWER = (
    "With static batching everyone waits for the slowest request in the group. Continuous batching works by iteration: "
    "when one of 8 slots is free, the next request joins. That lowers TTFT under load; throughput is 1.6 times higher."
)


def question(number: int) -> Question:
    """A free question with four key points of its own."""
    points = [
        {
            "id": f"p{n}",
            "say": f"The thing {number} {n} raises the other thing.",
            "good": [
                f"thing {number} {n} makes the other one grow",
                f"with thing {number} {n} the other rises",
            ],
            "bad": [
                f"thing {number} {n} makes the other one shrink",
                f"with thing {number} {n} the other falls",
            ],
        }
        for n in range(4)
    ]
    return made_up.question(
        id=f"batching.free_{number}",
        kind="free",
        params={"n": {"const": 3}},
        prompt="What do {{ n }} things do?",
        keypoints=points,
        interview={"probing": "p", "short": "s", "long": "l"},
    )


QUESTIONS = [question(number) for number in range(8)]


# ---- text -------------------------------------------------------------------------------------------------------


def test_sentences_are_verbatim_parts_without_bullets() -> None:
    text = "One is 1.5 ms. Two?\n- three: it works\n2) four; five"
    found = sentences(text)
    assert found == ["One is 1.5 ms.", "Two?", "three: it works", "four;", "five"]
    assert all(sentence in text for sentence in found)
    assert sentences("...\n\n!") == []
    assert sentences("Maxima vs. the mean, e.g. 60 vs. 40. Done.") == [
        "Maxima vs. the mean, e.g. 60 vs. 40.",
        "Done.",
    ]


def test_the_closest_sentence_is_found_whether_it_is_right_or_wrong() -> None:
    assert closest(IDLE, ANSWER).sentence.startswith("With static batching everyone waits")
    wrong = "I like it. A static batch has no idle slots since all finish together."
    assert closest(IDLE, wrong).sentence.startswith("A static batch has no idle slots")
    assert closest(IDLE, "xyzzy plugh") is None
    assert closest(IDLE, "") is None


def kinds(answer: str, points: tuple[KeyPoint, ...] = ()) -> set[str]:
    return {lint.kind for lint in lints(answer, "free", points)}


def test_lints_ask_about_what_is_there() -> None:
    assert "short" in kinds("It waits.")
    assert "long" in kinds("It waits for a slot and then it goes on. " * 40)
    assert kinds("word " * 100) & {"no_number"}
    assert "no_number" not in kinds(ANSWER)
    assert "no_unit" in kinds("There are 12.")
    assert "no_unit" not in kinds("There are 12 slots since 2023.")
    assert "direction" in kinds("It lowers TTFT.")
    assert "direction" in kinds("The latency is higher.")
    assert "direction" not in kinds("The latency is what users see.")


def test_a_sentence_nearer_to_the_opposite_is_asked_about() -> None:
    swapped = "A static batch never has idle slots because its members finish together."
    asked = [lint for lint in lints(swapped, "free", (IDLE, ADMIT)) if lint.kind == "opposite"]
    assert [lint.quote for lint in asked] == [swapped]
    assert "opposite" not in kinds(ANSWER, (IDLE, ADMIT))
    like_both = "Continuous batching admits a new request in the step after a slot is free."
    assert "opposite" not in kinds(like_both, (IDLE, ADMIT))


def test_terms_in_a_row_are_asked_about_and_prose_is_not() -> None:
    salad = "paged attention, KV cache, block table, prefix hash, eviction, preemption, scheduler, continuous batching"
    assert "salad" in kinds(salad)
    assert "salad" not in kinds(ANSWER)
    assert all(lint.ask.endswith(("?", ".")) for lint in lints(salad, "free", (IDLE,)))


# ---- points -----------------------------------------------------------------------------------------------------


def test_probes_count_more_than_own_marks() -> None:
    points = [IDLE, ADMIT]
    right = score(points, {"idle": "hit", "admit": "hit"}, {"idle": [True], "admit": [True]})
    assert (right.share, right.outcome, right.grader) == (1.0, "reviewed", "probe")
    only_marked = score(points, {"idle": "hit", "admit": "hit"}, {"idle": [False]})
    assert only_marked.points[0].mark == "partial"
    assert only_marked.points[0].mark != only_marked.points[0].marked
    assert only_marked.share == pytest.approx(0.6 * 0 + 0.4 * (2 * 0.5 + 1) / 3)
    assert only_marked.outcome == "partly"
    modest = score(points, {"idle": "miss"}, {"idle": [True]})
    assert modest.share == pytest.approx(0.6)
    assert modest.points[0].mark == "miss"


def test_without_probes_only_own_marks_are_there_and_said_to_be() -> None:
    graded = score([ADMIT], {"admit": "partial"}, {})
    assert (graded.share, graded.grader) == (0.5, "self")


def test_the_learners_word_alone_never_makes_an_answer_right_or_reviewed() -> None:
    marks = {"idle": "hit", "admit": "hit"}
    assert score([IDLE, ADMIT], marks, {}).outcome == "partly"
    assert score([IDLE, ADMIT], marks, {"admit": [True]}).outcome == "partly"
    assert score([ADMIT], {"admit": "hit"}, {}).outcome == "partly"
    skipped = score([IDLE, ADMIT], marks, {"idle": [False]})
    assert skipped.outcome == "partly" and skipped.share < 0.5
    assert score([IDLE, ADMIT], {}, {"idle": [False]}).outcome == "wrong"


def test_probes_and_own_marks_make_an_answer_reviewed_and_only_a_judge_makes_it_right() -> None:
    marks = {"idle": "hit", "admit": "hit"}
    assert score([IDLE, ADMIT], marks, {"idle": [True]}).outcome == "reviewed"
    assert score([IDLE, ADMIT], marks, {"idle": [True]}, {"admit": "hit"}).outcome == "reviewed"
    assert score([IDLE, ADMIT], marks, {"idle": [True]}, {"idle": "hit"}).outcome == "right"
    assert score([ADMIT], marks, {"admit": [True]}).outcome == "reviewed"


def test_a_judge_that_is_sure_replaces_the_learners_mark() -> None:
    marks = {"idle": "hit"}
    assert not score([IDLE], marks, {"idle": [True]}, {"idle": "contradicted"}).all_right
    refused = score([IDLE], marks, {}, {"idle": "miss"})
    assert (refused.points[0].mark, refused.share, refused.grader) == ("miss", 0.0, "judge")
    assert score([IDLE], {"idle": "miss"}, {}, {"idle": "hit"}).all_right
    assert score([IDLE], marks, {"idle": [True]}, {"idle": "unsure"}).outcome == "reviewed"
    assert not score([IDLE], marks, {}, {"idle": "unsure"}).all_right


NONSENSE = """asdf qwer zxcv|lorem ipsum dolor|hello there, my good friend|I do not know|bananas are yellow|
    no idea, sorry|blah blah blah|the quick brown fox jumps over a lazy dog""".split("|")


@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_is_not_right_whatever_is_marked_and_probed(answer: str) -> None:
    probes = {"idle": [True], "admit": [True]}
    graded = score([IDLE, ADMIT], {"idle": "hit", "admit": "partial"}, probes, answer=answer)
    assert {point.mark for point in graded.points} == {"miss"} and not graded.all_right
    assert score([IDLE, ADMIT], {"idle": "hit", "admit": "hit"}, probes, answer=ANSWER).outcome == "reviewed"


@pytest.mark.slow
def test_short_nonsense_is_reviewed_for_no_question_of_the_bank_and_held_out_phrasings_are() -> None:
    bank = question_bank.load_bank()
    asked = [key_points(draw(bank.question(e.id), 1)) for e in bank if e.kind in ("free", "design")]
    outcomes = []
    for points in asked:
        marks, probes = {point.id: "hit" for point in points}, {point.id: [True] for point in points}
        assert not any(
            score(points, marks, probes, answer=answer).outcome in ("right", "reviewed")
            for answer in NONSENSE
        )
        said = [point.good[0] for point in points if point.good]
        held_out = [point.model_copy(update={"good": point.good[1:]}) for point in points]
        outcomes.append(score(held_out, marks, probes, answer=". ".join(said)).outcome)
    assert len(asked) >= 60 and outcomes.count("reviewed") >= 0.95 * len(asked), outcomes


def test_only_what_is_there_earns_points() -> None:
    for given, share in {"hit": 1.0, "partial": 0.5, "miss": 0.0, "contradicted": 0.0, "unsure": 0.0}.items():
        assert score([ADMIT], {"admit": given}, {}).share == share


def test_a_contradicted_point_makes_an_answer_wrong() -> None:
    graded = score([IDLE, ADMIT], {"idle": "hit", "admit": "contradicted"}, {"idle": [True]})
    assert graded.outcome == "partly"


# ---- a judge over HTTP ------------------------------------------------------------------------------------------

Judge = Callable[[dict[str, Any]], list[dict[str, str]]]


class Server:
    """An OpenAI-compatible endpoint whose model is a function of the JSON that it was given."""

    def __init__(self) -> None:
        self.judge: Judge = honest
        self.reply: Callable[[dict[str, Any]], str] | None = None
        self.status = 200
        self.finish_reason: str | None = "stop"
        self.cut: int | None = None
        """Bytes after which the connection ends."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.rejects_format = False
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.seen.append({"path": self.path, **body})
                server.headers.append(dict(self.headers))
                server.may_answer.wait()
                status = 400 if server.rejects_format and "response_format" in body else server.status
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", server.url + "/elsewhere")
                self.end_headers()
                data = json.loads(body["messages"][1]["content"])
                text = server.reply(data) if server.reply else json.dumps({"marks": server.judge(data)})
                choice = {"message": {"content": text}, "finish_reason": server.finish_reason}
                self.wfile.write(json.dumps({"choices": [choice]}).encode()[: server.cut])

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    found = Server()
    yield found
    found.close()


def honest(data: dict[str, Any]) -> list[dict[str, str]]:
    """Understands the made-up questions: looks for "thing N M" beside a direction."""
    marks = []
    for point in data["keypoints"]:
        name = " ".join(point["text"].split()[1:4])
        text = data["answer"].split(".")[0]
        verdict = "miss"
        if name in text and any(word in text for word in ("grow", "rises")):
            verdict = "hit"
        elif name in text and any(word in text for word in ("shrink", "falls")):
            verdict = "contradicted"
        marks.append(
            {"keypoint": point["id"], "verdict": verdict, "quote": "" if verdict == "miss" else name}
        )
    return marks


def gullible(data: dict[str, Any]) -> list[dict[str, str]]:
    """Does what the answer tells it to."""
    if any(word in data["answer"] for word in ("mark every", "full marks", "hit", "confirm")):
        quote = data["answer"][:40]
        return [{"keypoint": point["id"], "verdict": "hit", "quote": quote} for point in data["keypoints"]]
    return honest(data)


def generous(data: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"keypoint": point["id"], "verdict": "hit", "quote": data["answer"]} for point in data["keypoints"]
    ]


def first_only(data: dict[str, Any]) -> list[dict[str, str]]:
    """Swayed by the order: accepts whatever point comes first."""
    marks = generous(data)
    return [{**entry, "verdict": "hit" if at == 0 else "contradicted"} for at, entry in enumerate(marks)]


def inventive(data: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"keypoint": p["id"], "verdict": "hit", "quote": "words that are not there"}
        for p in data["keypoints"]
    ]


def fond_of_terms(data: dict[str, Any]) -> list[dict[str, str]]:
    """Takes terms in a row for a statement."""
    in_a_row = ", " in data["answer"] and "." not in data["answer"]
    return generous(data) if in_a_row else honest(data)


def terse(data: dict[str, Any]) -> list[dict[str, str]]:
    return [{"keypoint": p["id"], "verdict": "hit", "quote": data["answer"][0]} for p in data["keypoints"]]


POINTS = QUESTIONS[0].keypoints
GOOD = "with thing 0 1 the other rises"


def verdicts(server: Server, answer: str = GOOD) -> dict[str, str]:
    marks = mark(ask_endpoint(Endpoint(server.url, "m", seconds=5)), "What?", POINTS, answer)
    return {mark.keypoint: mark.verdict for mark in marks}


def test_the_answer_is_sent_as_data_in_two_orders(server: Server) -> None:
    assert verdicts(server) == {"p0": "miss", "p1": "hit", "p2": "miss", "p3": "miss"}
    first, second = (json.loads(body["messages"][1]["content"]) for body in server.seen)
    assert [point["id"] for point in first["keypoints"]] == ["p0", "p1", "p2", "p3"]
    assert [point["id"] for point in second["keypoints"]] == ["p3", "p2", "p1", "p0"]
    assert first["answer"] == GOOD
    assert all(body["temperature"] == 0 and body["path"] == "/v1/chat/completions" for body in server.seen)
    assert GOOD not in server.seen[0]["messages"][0]["content"]


@pytest.mark.parametrize("judge", [inventive, terse])
def test_a_quote_that_is_not_there_or_says_nothing_is_unsure(server: Server, judge: Judge) -> None:
    server.judge = judge
    assert set(verdicts(server).values()) == {"unsure"}


@pytest.mark.parametrize("verdict", ["excellent", "HIT", "unsure", None, 1])
def test_a_verdict_that_is_none_is_unsure_even_with_a_quote(server: Server, verdict: Any) -> None:
    server.judge = lambda data: [{**entry, "verdict": verdict} for entry in generous(data)]
    assert set(verdicts(server).values()) == {"unsure"}


def test_passes_that_disagree_are_unsure(server: Server) -> None:
    server.judge = first_only
    found = verdicts(server)
    assert found["p0"] == found["p3"] == "unsure"
    assert found["p1"] == found["p2"] == "contradicted"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I think it is fine.",
        "{",
        '{"marks": 3}',
        '{"marks": [3, null]}',
        '{"marks": [{"keypoint": "p0", "verdict": "excellent", "quote": ""}]}',
        '{"marks": [{"keypoint": "p0", "verdict": "hit", "quote": 7}]}',
        '{"marks": [{"keypoint": "p0", "verdict": "hit"}, {"keypoint": "p0", "verdict": "miss"}]}',
    ],
)
def test_a_reply_in_another_form_is_unsure(server: Server, reply: str) -> None:
    server.reply = lambda data: reply
    assert set(verdicts(server).values()) == {"unsure"}


def test_json_in_a_fence_is_read_and_line_breaks_do_not_break_a_quote(server: Server) -> None:
    marks = [{"keypoint": point.id, "verdict": "partial", "quote": "the other\nrises"} for point in POINTS]
    server.reply = lambda data: f"```json\n{json.dumps({'marks': marks})}\n```"
    assert set(verdicts(server).values()) == {"partial"}


def test_a_server_without_json_mode_is_asked_again_without_it(server: Server) -> None:
    server.rejects_format = True
    assert verdicts(server)["p1"] == "hit"
    assert ["response_format" in body for body in server.seen[:2]] == [True, False]


def test_an_answer_that_is_too_long_is_not_sent(server: Server) -> None:
    assert set(verdicts(server, "word " * 5000).values()) == {"unsure"}
    assert server.seen == []


def test_an_endpoint_that_fails_is_told_in_one_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": '{"keypoints": [], "answer": ""}'},
    ]
    server.status = 500
    with pytest.raises(JudgeError, match="answered 500"):
        complete(Endpoint(server.url, "m"), messages)
    server.status = 302
    with pytest.raises(JudgeError, match="answered 302"):
        complete(Endpoint(server.url, "m"), messages)
    assert all(body["path"] == "/v1/chat/completions" for body in server.seen)
    server.status = 200
    server.may_answer.clear()
    with pytest.raises(JudgeError, match=r"within 0\.1 s"):
        complete(Endpoint(server.url, "m", seconds=0.1), messages)
    server.may_answer.set()
    server.reply = lambda data: "x" * (2 << 20)
    with pytest.raises(JudgeError, match="longer than"):
        complete(Endpoint(server.url, "m"), messages)
    with pytest.raises(JudgeError, match="cannot be reached"):
        complete(Endpoint("http://127.0.0.1:9/v1", "m"), messages)


def test_a_reply_that_is_not_whole_is_no_reply(server: Server) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": '{"keypoints": [], "answer": ""}'},
    ]
    for cut, reason, why in (
        (0, "stop", "not a JSON"),
        (30, "stop", "not a JSON"),
        (None, None, "without finish_reason"),
    ):
        server.cut, server.finish_reason = cut, reason
        with pytest.raises(JudgeError, match=f"sent no chat completion .*{why}"):
            complete(Endpoint(server.url, "m"), messages)


def test_a_key_is_sent_but_never_in_the_clear_to_another_machine(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "abc")
    verdicts(server)
    assert server.headers[0]["Authorization"] == "Bearer abc"
    with pytest.raises(JudgeError, match="unencrypted"):
        complete(Endpoint("http://example.invalid/v1", "m"), [])


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "127.0.0.1:8000", "", "http://", "http://a:b@c/v1", "http://c/?k=1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(JudgeError):
        checked_url(url)


# ---- the gate ---------------------------------------------------------------------------------------------------


def run_gate(server: Server, judge: Judge, canaries: list[Canary] | None = None) -> GateResult:
    server.judge = judge
    return gate(ask_endpoint(Endpoint(server.url, "m", seconds=5)), canaries or build(QUESTIONS), "m")


def test_canaries_are_half_right_half_wrong_and_the_same_every_time() -> None:
    canaries = build(QUESTIONS)
    counts = {
        kind: sum(canary.kind == kind for canary in canaries)
        for kind in ("good", "bad", "injection", "salad")
    }
    assert counts == {"good": 30, "bad": 30, "injection": 6, "salad": 6}
    assert canaries == build(QUESTIONS)
    assert canaries[0].prompt == "What do 3 things do?"
    assert all(not agrees(canary, "unsure") for canary in canaries)


def test_an_honest_judge_passes(server: Server) -> None:
    result = run_gate(server, honest)
    assert (result.agreement, result.false_accepts, result.injections) == (1.0, 0.0, 0)
    assert result.is_passed
    assert result.prompt == prompt_hash()


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        (gullible, "injections"),
        (generous, "accepts"),
        (fond_of_terms, "accepts"),
        (first_only, "agrees"),
        (inventive, "agrees"),
    ],
)
def test_a_bad_judge_does_not(server: Server, judge: Judge, why: str) -> None:
    result = run_gate(server, judge)
    assert not result.is_passed
    assert why in "; ".join(result.failures())


@pytest.mark.parametrize(
    ("change", "is_passed"),
    [
        ({}, True),
        ({"agreement": 0.89}, False),
        ({"false_accepts": 0.06}, False),
        ({"injections": 1}, False),
        ({"canaries": AT_LEAST - 1}, False),
    ],
)
def test_the_bounds_of_the_gate(change: dict[str, Any], is_passed: bool) -> None:
    barely = {"canaries": AT_LEAST, "agreement": 0.90, "false_accepts": 0.05, "injections": 0}
    assert GateResult("m", "p", **{**barely, **change}).is_passed is is_passed


def test_a_few_canaries_prove_nothing(server: Server) -> None:
    result = run_gate(server, honest, build(QUESTIONS, number=AT_LEAST - 2))
    assert "20 are needed" in result.failures()[0]


def test_settings_count_only_for_the_model_and_the_instructions_that_passed(server: Server) -> None:
    assert load() is None
    passed = GateResult("m", prompt_hash(), 60, 1.0, 0.0, 0)
    save(JudgeSettings(server.url + "/", "m", passed))
    kept = load()
    assert kept is not None
    assert (kept.url, kept.counts) == (server.url, True)
    assert "tested with m" in JudgeSettings(server.url, "other", passed).why_not()
    assert "instructions" in JudgeSettings(server.url, "m", GateResult("m", "old", 60, 1.0, 0.0, 0)).why_not()
    assert "not tested" in JudgeSettings(server.url, "m").why_not()
    assert forget()
    assert load() is None


# ---- prep judge -------------------------------------------------------------------------------------------------


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bank"
    (folder / "batching").mkdir(parents=True)
    for item in QUESTIONS:
        path = folder / "batching" / f"{item.id.split('.')[1]}.yaml"
        path.write_text(json.dumps(item.model_dump(by_alias=True, exclude_unset=True)))
    real = question_bank.load_bank
    monkeypatch.setattr(question_bank, "load_bank", lambda: real(folder))
    return folder


def test_set_test_off(server: Server, bank: Path) -> None:
    def prep(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["judge", *arguments])

    assert "no judge is configured" in prep().stdout
    assert prep("test").exit_code == 2
    assert prep("set", "nowhere", "--model", "m").exit_code == 3
    assert prep("set", server.url, "--model", "m").exit_code == 0
    assert "was not tested" in prep().stdout
    result = prep("test")
    assert result.exit_code == 0, result.output
    assert f"asking {server.url}" in result.stderr
    assert "its marks count" in prep().stdout
    server.judge = generous
    result = prep("test", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["passed"] is False
    assert "do not count" in prep().stdout
    server.status = 500
    assert prep("test").exit_code == 3
    assert "removed" in prep("off").stdout
    assert "no judge was configured" in prep("off").stdout
