"""Typed answers, labelled by hand: right, wrong, part (of the points), refused (asked again, nothing scored)."""

from __future__ import annotations

import pytest

from quizzes.grading import ParseError, parse
from quizzes.grading.check import share_of_points
from quizzes.question import Answer, Band, Check

BANDS = Check(bands=[Band(rel=0.03, points=1), Band(rel=0.25, points=0.6), Band(factor=2, points=0.3)])
STEPS = Answer(id="x", type="int", unit="steps")
PLAIN = Answer(id="x", type="int")
BYTES = Answer(id="x", type="int", unit="B")
GIB = Answer(id="x", type="float", unit="GiB")
WIDE_GIB = Answer(id="x", type="float", unit="GiB", check=Check(rel=0.1))
BANDED = Answer(id="x", type="float", unit="GiB", check=BANDS)
MS = Answer(id="x", type="float", unit="ms")
SHARE = Answer(id="x", type="float", unit="share")
PERCENT = Answer(id="x", type="float", unit="%")
RATIO = Answer(id="x", type="float", unit="x", check=Check(factor=2))
RATE = Answer(id="x", type="float", unit="tok/s")
TFLOPS = Answer(id="x", type="float", unit="TFLOP/s")
MILLIONS = Answer(id="x", type="float", unit="M tokens")
PER_TOKEN = Answer(id="x", type="int", unit="B/token")
SIGN = Answer(id="x", type="float", unit="ms", check=Check(sign=True))
NEAR = Answer(id="x", type="int", unit="tokens", check=Check(abs=5))
YES = Answer(id="x", type="bool")
WORD = Answer(id="x", type="word", accept=["recomputation"])
WORDS = Answer(id="x", type="words")
INTS = Answer(id="x", type="ints")
PARAMS = Answer(id="x", type="int", unit="parameters")
NO_UNIT = Answer(id="x", type="float")
EXACT_FLOAT = Answer(id="x", type="float", check=Check(exact=True))

LABELLED = [
    # whole numbers: exact
    (STEPS, 98, "98", "right"),
    (STEPS, 98, " 98 ", "right"),
    (STEPS, 98, "98 steps", "right"),
    (STEPS, 98, "98 Steps", "right"),
    (STEPS, 98, "98.0", "right"),
    (STEPS, 98, "=98", "right"),
    (STEPS, 98, "~98", "right"),
    (STEPS, 1, "1 step", "right"),
    (STEPS, 98, "2*49", "right"),
    (STEPS, 98, "14 x 7 steps", "right"),
    (STEPS, 98, "14 × 7", "right"),
    (STEPS, 98, "(3 + 4) * 14", "right"),
    (STEPS, 98, "10^2 - 2", "right"),
    (STEPS, 98, "1,000/10 - 2", "right"),
    (STEPS, 98, "38*32", "wrong"),
    (STEPS, 98, "90-98", "refused"),
    (STEPS, 98, "2*49*", "refused"),
    (STEPS, 98, "98/0*2", "refused"),
    (STEPS, 98, "9**9**9", "refused"),
    (STEPS, 98, "2*steps", "refused"),
    (STEPS, 98, "97", "wrong"),
    (STEPS, 98, "99", "wrong"),
    (STEPS, 98, "980", "wrong"),
    (STEPS, 98, "-98", "refused"),
    (STEPS, 98, "0", "wrong"),
    (STEPS, 98, "62", "wrong"),
    (STEPS, 98, "98k", "wrong"),
    (STEPS, 98, "0098", "right"),
    (STEPS, 98, "98.5", "refused"),
    (STEPS, 98, "98 tokens", "refused"),
    (STEPS, 98, "98 ms", "refused"),
    (STEPS, 98, "98 %", "refused"),
    (STEPS, 98, "ninety-eight", "right"),
    (STEPS, 98, "98 or 99", "refused"),
    (STEPS, 98, "9 8", "refused"),
    (STEPS, 98, "9,8", "refused"),
    (STEPS, 98, "98..99", "refused"),
    (STEPS, 98, "98; drop table", "refused"),
    (STEPS, 98, "__import__('os')", "refused"),
    (STEPS, 98, "", "refused"),
    (STEPS, 98, "   ", "refused"),
    (STEPS, 98, "?", "refused"),
    (STEPS, 98, "asdf", "refused"),
    (STEPS, 98, "nan", "refused"),
    (STEPS, 98, "inf", "refused"),
    (STEPS, 98, "-Infinity", "refused"),
    (STEPS, 98, "1e999", "refused"),
    (STEPS, 98, "9" * 5000, "refused"),
    (STEPS, 98, "9" * 100, "refused"),
    (STEPS, 98, "0x62", "refused"),
    (STEPS, 98, "yes", "refused"),
    # thousands and suffixes
    (PLAIN, 1536, "1536", "right"),
    (PLAIN, 1536, "1,536", "right"),
    (PLAIN, 1536, "1_536", "right"),
    (PLAIN, 1536, "1 536", "right"),
    (PLAIN, 1536, "1\N{NO-BREAK SPACE}536", "right"),
    (PLAIN, 1536, "1\N{NARROW NO-BREAK SPACE}536", "right"),
    (PLAIN, 1536, "1.536k", "right"),
    (PLAIN, 1536, "1.536e3", "right"),
    (PLAIN, 1536, "3072/2", "right"),
    (PLAIN, 1536, "1.5k", "wrong"),
    (PLAIN, 1536, "15,36", "refused"),
    (PLAIN, 1536, "1,5360", "refused"),
    (PLAIN, 1536, "1.536", "refused"),
    (PLAIN, 1536, "1536/0", "refused"),
    (PLAIN, 1536, "1536 tokens", "refused"),
    (PARAMS, 7_000_000_000, "7B", "right"),
    (PARAMS, 7_000_000_000, "7 billion", "right"),
    (PARAMS, 7_000_000_000, "7G parameters", "right"),
    (PARAMS, 7_000_000_000, "7M", "wrong"),
    (PARAMS, 7_000_000_000, "7 GB", "refused"),
    # bytes, to the byte
    (BYTES, 1536, "1536 B", "right"),
    (BYTES, 1536, "1.5 KiB", "right"),
    (BYTES, 1536, "1.5kib", "right"),
    (BYTES, 1536, "12288 bits", "right"),
    (BYTES, 1536, "1.536 kB", "right"),
    (BYTES, 1536, "1.5 kB", "wrong"),
    (BYTES, 1536, "1536 bits", "wrong"),
    (BYTES, 1536, "1.5001 KiB", "refused"),
    (BYTES, 1536, "1.5k", "refused"),
    (BYTES, 1536, "1536 tokens", "refused"),
    (BYTES, 1_000_000_000, "1 GB", "right"),
    (BYTES, 1_000_000_000, "1 GiB", "wrong"),
    (BYTES, 1_000_000_000, "1 gb", "right"),
    (BYTES, 1 << 30, "1 gib", "right"),
    # floats: 2 %
    (GIB, 2.5, "2.5", "right"),
    (GIB, 2.5, "2.5 GiB", "right"),
    (GIB, 2.5, "2.45", "right"),
    (GIB, 2.5, "2.44", "wrong"),
    (GIB, 2.5, "2560 MiB", "right"),
    (GIB, 2.5, "2.684 GB", "right"),
    (GIB, 2.5, "2.5 GB", "wrong"),
    (GIB, 2.5, "2,684 MB", "refused"),
    (GIB, 2.5, "2,5", "refused"),
    (GIB, 2.5, "2.5 Gb", "refused"),
    (GIB, 2.5, "2.5 G", "refused"),
    (GIB, 2.5, "2.5 GiB/s", "refused"),
    (GIB, 2.5, "2.5 tok", "refused"),
    (GIB, 2.5, "5/2", "right"),
    (WIDE_GIB, 2.5, "2.5 GB", "right"),
    (WIDE_GIB, 2.5, "2.8", "wrong"),
    (BANDED, 10.0, "10.2", "right"),
    (BANDED, 10.0, "12", "part"),
    (BANDED, 10.0, "19", "part"),
    (BANDED, 10.0, "21", "wrong"),
    (BANDED, 10.0, "-10", "wrong"),
    (BANDED, 10.0, "10 GB", "part"),
    (EXACT_FLOAT, 0.1, "0.1", "right"),
    (EXACT_FLOAT, 0.1, "1/10", "right"),
    (EXACT_FLOAT, 0.1, "0.1001", "wrong"),
    # time
    (MS, 12.5, "12.5", "right"),
    (MS, 12.5, "12.5ms", "right"),
    (MS, 12.5, "0.0125 s", "right"),
    (MS, 12.5, "12500 us", "right"),
    (MS, 12.5, "12500 µs", "right"),
    (MS, 12.5, "12.5 s", "wrong"),
    (MS, 12.5, "125", "wrong"),
    (MS, 12.5, "12.5 m", "refused"),
    (MS, 12.5, "12.5 steps", "refused"),
    (MS, 12.5, "12:30", "refused"),
    (SIGN, -3.0, "-100", "right"),
    (SIGN, -3.0, "3", "wrong"),
    (SIGN, -3.0, "0", "wrong"),
    # shares and percent
    (NO_UNIT, 0.63, "63 %", "right"),
    (NO_UNIT, 0.63, "0.63 %", "wrong"),
    (NO_UNIT, 63.0, "63 %", "wrong"),
    (SHARE, 0.63, "0.63", "right"),
    (SHARE, 0.63, ".63", "right"),
    (SHARE, 0.63, "63 %", "right"),
    (SHARE, 0.63, "63%", "right"),
    (SHARE, 0.63, "63 percent", "right"),
    (SHARE, 0.63, "63", "refused"),
    (SHARE, 0.63, "0.63 %", "wrong"),
    (SHARE, 0.63, "0.36", "wrong"),
    (SHARE, 0.63, "63 x", "refused"),
    (PERCENT, 63.0, "63", "right"),
    (PERCENT, 63.0, "63 %", "right"),
    (PERCENT, 63.0, "0.63 share", "right"),
    (PERCENT, 63.0, "0.63", "refused"),
    # ratios and rates
    (RATIO, 4.0, "4x", "right"),
    (RATIO, 4.0, "2", "right"),
    (RATIO, 4.0, "8 times", "right"),
    (RATIO, 4.0, "8.1", "wrong"),
    (RATIO, 4.0, "1.9x", "wrong"),
    (RATIO, 4.0, "-4", "wrong"),
    (RATIO, 4.0, "400 %", "refused"),
    (RATE, 12_000.0, "12000", "right"),
    (RATE, 12_000.0, "12k tok/s", "right"),
    (RATE, 12_000.0, "12k tokens per second", "right"),
    (RATE, 12_000.0, "12 tok/ms", "right"),
    (RATE, 12_000.0, "720,000 tokens/min", "refused"),
    (RATE, 12_000.0, "12 tok/s", "wrong"),
    (RATE, 12_000.0, "12k tokens", "refused"),
    (RATE, 12_000.0, "12k req/s", "refused"),
    (TFLOPS, 989.0, "989", "right"),
    (TFLOPS, 989.0, "989 TFLOPS", "right"),
    (TFLOPS, 989.0, "0.989 PFLOP/s", "right"),
    (TFLOPS, 989.0, "989 GFLOP/s", "wrong"),
    (TFLOPS, 989.0, "989 T", "refused"),
    (TFLOPS, 989.0, "989 GB/s", "refused"),
    (PER_TOKEN, 131_072, "128 KiB/token", "right"),
    (PER_TOKEN, 131_072, "131072", "right"),
    (PER_TOKEN, 131_072, "128 KiB per token", "right"),
    (PER_TOKEN, 131_072, "128 kB/token", "wrong"),
    (PER_TOKEN, 131_072, "128 KiB", "refused"),
    (NEAR, 100, "105", "right"),
    (NEAR, 100, "106", "wrong"),
    (MILLIONS, 5.0, "5", "right"),
    (MILLIONS, 5.0, "5 M tokens", "right"),
    (MILLIONS, 5.0, "5 Mtok", "right"),
    (MILLIONS, 5.0, "5000 ktok", "right"),
    (MILLIONS, 5.0, "5 million tokens", "right"),
    (MILLIONS, 5.0, "5 tokens", "wrong"),
    (MILLIONS, 5.0, "5M", "refused"),
    # yes and no
    (YES, True, "yes", "right"),
    (YES, True, "TRUE", "right"),
    (YES, True, "y", "right"),
    (YES, True, "no", "wrong"),
    (YES, False, "no", "right"),
    (YES, False, "true", "wrong"),
    (YES, True, "maybe", "refused"),
    (YES, True, "it depends", "refused"),
    (YES, True, "1", "refused"),
    # words
    (WORD, "recompute", "recompute", "right"),
    (WORD, "recompute", "Recompute.", "right"),
    (WORD, "recompute", "recomputation", "right"),
    (WORD, "recompute", "not recompute", "wrong"),
    (WORD, "recompute", "swap", "wrong"),
    (WORD, "recompute", "recompute or swap", "wrong"),
    (WORD, "recompute", "re", "wrong"),
    (WORD, "recompute", "!!!", "refused"),
    (WORD, "prefix-cache hit", "prefix cache hit", "right"),
    # lists
    (INTS, [4, 1, 8], "4, 1, 8", "right"),
    (INTS, [4, 1, 8], "(4, 1, 8)", "right"),
    (INTS, [4, 1, 8], "[4,1,8]", "right"),
    (INTS, [4, 1, 8], "4 1 8", "right"),
    (INTS, [4, 1, 8], "4; 1; 8", "right"),
    (INTS, [4, 1, 8], "1, 4, 8", "part"),
    (INTS, [4, 1, 8], "4, 1", "wrong"),
    (INTS, [4, 1, 8], "4, 1, 8, 8", "wrong"),
    (INTS, [4, 1, 8], "4, 1, 9", "wrong"),
    (INTS, [4, 1, 8], "4, one, 8", "right"),
    (INTS, [4, 1, 8], "4, 1.5, 8", "refused"),
    (INTS, [1536, 12], "1,536, 12", "refused"),
    (INTS, [], "none", "right"),
    (INTS, [7], "none", "wrong"),
    (WORDS, ["r1", "r3"], "r1, r3", "right"),
    (WORDS, ["r1", "r3"], "R1 and R3", "right"),
    (WORDS, ["r1", "r3"], "r1 -> r3", "right"),
    (WORDS, ["r1", "r3"], "r3, r1", "part"),
    (WORDS, ["r1", "r3"], "r1", "wrong"),
    (WORDS, ["r1", "r3"], "r1, , r3", "refused"),
]


HEDGES = ("", "roughly ", "~", "about ", "it is ")
AMOUNTS: list[tuple[Answer, object, dict[str, str], dict[str, str]]] = [
    # asked, expected, units of equal amounts, units of other amounts
    (
        MS,
        7.36,
        {
            "7.36": "ms|milliseconds|millisecond|msec|Milliseconds",
            "7360": "us|µs|usec|microseconds|microsecond",
            "0.00736": "s|sec|secs|second|seconds",
            "7.36e6": "ns|nanoseconds",
        },
        {"7.36": "s|seconds|us|microseconds|ns|min", "7360": "ms|milliseconds", "0.736": "ms", "8": "ms"},
    ),
    (
        BYTES,
        336_000_000,
        {
            "336": "MB|megabytes|Megabytes|megabyte|mb",
            "336000": "kB|kilobytes",
            "0.336": "GB|gigabytes",
            "336000000": "B|bytes",
            "2688": "Mbit|megabits",
        },
        {"336": "MiB|mebibytes|kB|GB|bytes|Mbit|megabits", "352321536": "B|bytes", "0.336": "MB"},
    ),
    (
        PER_TOKEN,
        327_680,
        {
            "320": "KiB per token|KiB/token|kibibytes per token|KiB a token|KiB / tok|KiB each token",
            "327680": "bytes per token|B/token|B/tok",
            "0.3125": "MiB per token|mebibytes/token",
        },
        {"320": "kB per token|B/token|MiB per token|bytes a token", "327680": "kB/token"},
    ),
    (
        STEPS,
        320,
        {
            "320": "steps|step|iterations|iteration|Steps",
            "three hundred twenty": "steps|iterations",
            "three hundred and twenty": "steps",
        },
        {"321": "steps|iterations", "32": "steps", "three hundred": "steps", "thirty-two": "iterations"},
    ),
    (
        PERCENT,
        200 / 3,
        {
            "66.7": "%|percent|per\u00a0cent|pct|Percent",
            "0.667": "share",
            "2/3": "share",
            "two thirds": "share",
        },
        {
            "0.667": "%|per\u00a0cent",
            "2/3": "%",
            "33.3": "%|per\u00a0cent|percent",
            "66.7": "share",
            "60": "%",
        },
    ),
    (
        SHARE,
        2 / 3,
        {"66.7": "%|percent|per\u00a0cent|pct", "0.667": "share|", "2/3": "|share", "two thirds": "|share"},
        {"0.667": "%|percent", "1/3": "|share", "33.3": "per\u00a0cent", "one third": ""},
    ),
    (
        GIB,
        1.5,
        {"1.5": "GiB|gibibytes|gibibyte|gib", "1536": "MiB|mebibytes", "1.61": "GB|gigabytes"},
        {"1.5": "GB|gigabytes|MiB|TiB|Gbit", "1.61": "GiB|gibibytes", "1536": "MB|KiB"},
    ),
]
SPELLED: list[tuple[Answer, object, str, str]] = [
    (answer, expected, f"{hedge}{number} {unit}", label)
    for answer, expected, equal, other in AMOUNTS
    for label, amounts in (("right", equal), ("wrong", other))
    for number, units in amounts.items()
    for unit in units.split("|")
    for hedge in HEDGES
] + [
    (answer, expected, text, label)
    for answer, expected, label, texts in (
        (PERCENT, 200 / 3, "refused", "2/3|0.667|.667|two thirds|1|0.5|1.008|66,7|66,667|0,667|66 to 67|2:3"),
        (SHARE, 2 / 3, "refused", "66.7|67|0,667|,667|2/3 of it|1.5"),
        (MS, 7.36, "refused", "7,36|7,36 ms|7,360|7,360 us|7.36 parsecs|7 ms 360 us|7.36 tokens"),
        (BYTES, 336_000_000, "refused", "336M|336 million|336,0 MB|0,336 GB|336000 KB|336 Mb|336 tokens"),
        (PER_TOKEN, 327_680, "refused", "320 KB per token|320 KB/token|320 KiB|320 kilo|320K"),
        (NEAR, 4096, "refused", "4k|4K|4k tokens|4 ktok|4 Ki"),
        (NEAR, 4096, "right", "4,096|4.096k|2^12|2\u00b9\u00b2|4 * 1024 tokens|4096 tok"),
        (NEAR, 12_000, "right", "12k|12k tokens|12 ktok|12 thousand"),
        (RATE, 12_000.0, "refused", "12.000|12.000 tok/s|12,000|12k/s|12000 t/s"),
        (RATE, 12_000.0, "right", "1.2\u00d710\u2074|12 \u00d7 10\u00b3 tok/s|12000.0"),
        (PER_TOKEN, 327_680, "refused", "320 kb per token|320 kb/token|327.68 kB|320 KiB for each token"),
        (STEPS, 320, "refused", "320 tokens|320 or 330|about|3,20|320,0|some|three twenty|3 hundred"),
        (STEPS, 320, "right", "ca. 320|approx. 320|c. 320|320ish|320 or so|320!|exactly 320|20*16|3.2e2"),
        (STEPS, 12, "right", "a dozen|one dozen|dozen|twelve|Twelve steps|roughly a dozen"),
        (STEPS, 12, "wrong", "two dozen|twenty|eleven|a hundred|one thousand"),
        (STEPS, 12, "refused", "half a dozen|dozens|a few|a couple|twelve thirteen|the twelfth|a"),
        (STEPS, 32, "right", "thirty-two|thirty two|Thirty-Two|THIRTY-TWO steps|4 x 8|2^5"),
        (STEPS, 32, "wrong", "thirty|three|two|thirty-three|twenty-three|three hundred two"),
        (STEPS, 2005, "right", "two thousand five|two thousand and five|2,005|2005 iterations"),
        (NO_UNIT, 0.32, "refused", "0,32|,32|0,320|zero point three two"),
        (NO_UNIT, 0.32, "right", "0.32|.32|32 %|32 per\u00a0cent|8/25"),
        (NO_UNIT, 0.32, "wrong", "32|3.2|0.032|0.32 %|half"),
        (NO_UNIT, 1.234, "refused", "1,234|12,345"),
        (RATIO, 4.0, "right", "four times|fourfold|4-fold|4x|4 ×|roughly four times"),
        (RATIO, 4.0, "wrong", "forty times|tenfold|one|-4x"),
        (INTS, [4, 1, 8], "right", "four, one, eight|4, 1 and 8|4 1 8|4;1;8"),
        (INTS, [4, 1, 8], "refused", "4-1-8|4/1/8|four, one, many"),
    )
    for text in texts.split("|")
]


@pytest.mark.parametrize("label", ["right", "wrong", "refused"])
def test_equal_amounts_are_right_or_asked_again_however_they_are_spelled(label: str) -> None:
    spelled = [row[:3] for row in SPELLED if row[3] == label]
    assert len(SPELLED) >= 300 and len(spelled) >= 50
    assert [(row, got) for row in spelled if (got := label_of(*row)) != label] == []


def label_of(answer: Answer, expected: object, typed: str) -> str:
    try:
        value = parse(typed, answer).value
    except ParseError as error:
        assert error.what and error.next_step, "a refusal says what is wrong and what to type"
        assert error.answer == answer.id
        return "refused"
    share = share_of_points(value, expected, answer)
    return "right" if share == 1 else "wrong" if share == 0 else "part"


@pytest.mark.parametrize(("answer", "expected", "typed", "label"), LABELLED)
def test_a_typed_answer_gets_its_label(answer: Answer, expected: object, typed: str, label: str) -> None:
    assert label_of(answer, expected, typed) == label


def test_the_table_is_large_and_has_every_label() -> None:
    labels = [label for *_, label in LABELLED]
    assert len(LABELLED) >= 150
    assert all(labels.count(label) >= 5 for label in ("right", "wrong", "refused", "part"))


def test_no_wrong_answer_is_accepted_where_exactness_is_asked() -> None:
    exact = [row for row in LABELLED if row[0].type != "float" and row[3] != "right"]
    assert len(exact) >= 60
    assert not [typed for answer, expected, typed, _ in exact if label_of(answer, expected, typed) == "right"]
