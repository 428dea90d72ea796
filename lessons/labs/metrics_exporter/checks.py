"""Checks of the lab metrics-exporter: single rules, random metrics beside prometheus_client, the engine's metrics."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, groupby
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.sampling_params import SamplingParams
from lessons.course.checking import Failed, Learner, check, run_fewest, smallest

LAB = "metrics-exporter"
Op = tuple[Any, ...]
"""Name of a method of Registry, and its arguments."""
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{(?:{LABEL}(?:,{LABEL})*,?)?\}})? "
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]Inf|NaN)"
)
Samples = dict[tuple[str, frozenset[tuple[str, Any]]], float]


class Reference:
    """A second opinion: the official client, with the methods of the learner's registry."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry()
        self.metrics: dict[str, Any] = {}

    def declare(
        self, kind: str, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = ()
    ) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        if kind == "histogram":
            made: Any = Histogram(name, help, labels, buckets=buckets, registry=self.registry)
        else:
            made = {"counter": Counter, "gauge": Gauge}[kind](name, help, labels, registry=self.registry)
        self.metrics[name] = made

    def touch(self, name: str, *values: str) -> Any:
        return self.metrics[name].labels(*values) if values else self.metrics[name]

    def add(self, name: str, amount: float, *values: str) -> None:
        self.touch(name, *values).inc(amount)

    def assign(self, name: str, value: float, *values: str) -> None:
        self.touch(name, *values).set(value)

    def observe(self, name: str, value: float, *values: str) -> None:
        self.touch(name, *values).observe(value)

    def text(self) -> str:
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()


def parsed(text: str) -> tuple[dict[str, tuple[str, str]], Samples]:
    """Return kind and help of each metric, and all samples, as the official parser reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    kinds, samples = {}, {}
    for family in text_string_to_metric_families(text):
        if not family.name.endswith("_created"):
            kinds[family.name] = (family.type, family.documentation)
            for each in family.samples:
                labels = {
                    name: float(value) if name == "le" else value for name, value in each.labels.items()
                }
                samples[each.name, frozenset(labels.items())] = each.value
    return kinds, samples


def well_formed(text: Any, said: Sequence[str]) -> str:
    """Raise Failed unless each line has the format and the lines of a metric stand together, HELP and TYPE first."""

    def wrong(why: str) -> Failed:
        return Failed(why, example="; ".join(said[-12:]))

    if not isinstance(text, str) or (text and not text.endswith("\n")):
        raise wrong(f"text() gave {text!r}; each line ends with a newline")
    metric, kind, told = "", "", {""}
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            metric, kind = line.split(" ")[2], ""
            if metric in told:
                raise wrong(f"the lines of {metric} do not stand together")
            told.add(metric)
        elif line.startswith("# TYPE "):
            if line.split(" ")[2] != metric or kind:
                raise wrong(f"{line!r} does not follow the HELP of the same metric")
            kind = line.split(" ")[3]
            if kind == "counter" and not metric.endswith("_total"):
                raise wrong(f"the counter {metric} is shown without _total")
        elif "{}" in line.split('"')[0]:
            raise wrong(f"{line!r}: a series without labels has no braces")
        elif (found := SAMPLE.fullmatch(line)) is None:
            raise wrong(f"{line!r} is not a line of the format")
        else:
            names = (
                {metric} if kind != "histogram" else {metric + end for end in ("_bucket", "_sum", "_count")}
            )
            if not kind or found[1] not in names:
                raise wrong(f"{line!r} does not belong below HELP and TYPE of {metric or 'no metric'}")
    return text


def shown(op: Op) -> str:
    return f"{op[0]}({', '.join(map(repr, op[1:]))})"


def compare(learner: Learner, ops: Sequence[Op]) -> None:
    """Give the calls to the learner's registry and to the official client; compare the texts."""
    yours, right, said = learner.new("Registry"), Reference(), []
    for name, *args in ops:
        said.append(shown((name, *args)))
        getattr(yours, name)(*args)
        getattr(right, name)(*args)
    same(well_formed(yours.text(), said), right.text(), said)


def same(yours: str, right: str, said: Sequence[str]) -> None:
    """Compare what the official parser reads in two texts."""
    try:
        (kinds, samples), (right_kinds, right_samples) = parsed(yours), parsed(right)
    except (ValueError, KeyError, IndexError) as error:
        raise Failed(
            f"the official parser refuses the text: {error}", example="; ".join(said[-12:])
        ) from None
    for name, facts in right_kinds.items():
        if kinds.get(name) != facts:
            raise Failed(
                f"metric {name} has type and help {kinds.get(name)}; it must have {facts}",
                example="; ".join(said[-12:]),
            )
    if list(kinds) != list(right_kinds):
        raise Failed(f"the metrics are {list(kinds)}, not {list(right_kinds)}", example="; ".join(said[-12:]))
    for key in sorted({*samples, *right_samples}, key=str):
        mine, theirs = samples.get(key), right_samples.get(key)
        if mine is None or theirs is None or not close(mine, theirs):
            labels = ",".join(f"{name}={value!r}" for name, value in sorted(key[1], key=str))
            raise Failed(
                f"the text has {key[0]}{{{labels}}} {mine}; it must be {theirs}",
                example="; ".join(said[-12:]),
            )


def close(one: float, other: float) -> bool:
    return one == other or (one != one and other != other) or math.isclose(one, other, rel_tol=1e-9)


def refused(learner: Learner, ops: Sequence[Op], wrong: Op) -> None:
    """Raise Failed unless the last call raises ValueError and leaves the text as it was."""
    registry = learner.new("Registry")
    for name, *args in ops:
        getattr(registry, name)(*args)
    before = registry.text()
    example = "; ".join(map(shown, [*ops, wrong]))
    try:
        getattr(registry, wrong[0])(*wrong[1:])
    except ValueError:
        if registry.text() != before:
            raise Failed("a call that raised has changed the text", example=example) from None
        return
    raise Failed("the last call must raise ValueError", example=example)


COUNTER = ("declare", "counter", "vllm:requests", "Requests.", ["model", "reason"])
GAUGE = ("declare", "gauge", "vllm:running", "Running requests.")
HISTOGRAM = ("declare", "histogram", "ttft_seconds", "First token.", ["model"], [0.1, 0.5, 1.0])


@check(LAB)
def counters_only_grow(learner: Learner) -> None:
    """A counter adds up, is shown with _total, and refuses to fall."""
    compare(
        learner, [("declare", "counter", "tokens", "Tokens."), ("add", "tokens", 5), ("add", "tokens", 2.5)]
    )
    compare(learner, [("declare", "counter", "tokens", "Tokens."), ("add", "tokens", 0)])
    refused(learner, [("declare", "counter", "tokens", "T.")], ("add", "tokens", -1))


@check(LAB)
def gauges_go_both_ways(learner: Learner) -> None:
    """A gauge is set, rises and falls; its value may be infinite, not a number, or need many digits."""
    compare(learner, [GAUGE, ("assign", "vllm:running", 7), ("add", "vllm:running", -2.5)])
    compare(learner, [GAUGE, ("assign", "vllm:running", 7), ("assign", "vllm:running", 3)])
    values = [0.1 + 0.2, 1e22, 1e-9, -3.0, math.inf, -math.inf, math.nan]
    smallest(values, lambda value: compare(learner, [GAUGE, ("assign", "vllm:running", value)]))


@check(LAB)
def buckets_are_cumulative(learner: Learner) -> None:
    """Each bucket counts the values up to its bound, that one included; +Inf counts all, beside _sum and _count."""
    plain: Op = ("declare", "histogram", "h", "H.", [], [0.5, 1, 2.5])
    smallest(
        [[], [0.25], [0.5], [3.0], [0.25, 0.75, 2.0, 9.0], [1, 1, 2.5, 2.5001], [-1.0, 0.0]],
        lambda values: compare(learner, [plain, *(("observe", "h", value) for value in values)]),
    )


@check(LAB)
def labels_make_series(learner: Learner) -> None:
    """Each choice of label values is a series; touch lets it exist at 0; without labels it exists at once."""
    compare(learner, [COUNTER, GAUGE, HISTOGRAM])
    compare(
        learner, [COUNTER, ("touch", "vllm:requests", "a", "stop"), ("touch", "vllm:requests", "stop", "a")]
    )
    adds = [
        ("add", "vllm:requests", n, *each) for n, each in enumerate([("a", "b"), ("b", "a"), ("a", "b")], 1)
    ]
    compare(learner, [COUNTER, *adds, ("touch", "vllm:requests", "a", "b")])
    seen = [("observe", "ttft_seconds", 0.3, "a"), ("observe", "ttft_seconds", 0.7, "b")]
    compare(learner, [HISTOGRAM, *seen, ("touch", "ttft_seconds", "c")])


@check(LAB)
def texts_are_escaped(learner: Learner) -> None:
    """A backslash and a line feed are escaped in HELP, these and a double quote in label values."""
    hard = ["a\\b", "a\nb", 'say "hi"', "\\n", '\\"', "ends with \\", '{le="1"}, x', "naïve 東", "", "# TYPE"]
    one = ("declare", "gauge", "g", "G.", ["x"])
    smallest(hard, lambda text: compare(learner, [one, ("assign", "g", 1, text)]))
    smallest(hard[:6], lambda text: compare(learner, [("declare", "gauge", "g", text or "-")]))


@check(LAB)
def each_metric_stands_once(learner: Learner) -> None:
    """HELP and TYPE stand once per metric, followed by all of its samples, in order of declaration and of first use."""
    ops: list[Op] = [COUNTER, HISTOGRAM, GAUGE]
    for model in ("b", "a", "c"):
        ops += [("observe", "ttft_seconds", 0.2, model), ("add", "vllm:requests", 1, model, "stop")]
    compare(learner, ops)
    registry = learner.new("Registry")
    for name, *args in ops:
        getattr(registry, name)(*args)
    models = re.findall(r'^ttft_seconds_\w+\{.*model="(\w)"', registry.text(), re.MULTILINE)
    if (order := [model for model, _ in groupby(models)]) != ["b", "a", "c"]:
        raise Failed(f"the series of ttft_seconds come as {order}", example="; ".join(map(shown, ops)))


@check(LAB)
def wrong_declarations_are_refused(learner: Learner) -> None:
    """Names and labels out of the format, a name that is taken, and buckets that do not increase raise ValueError."""
    names = ["", "1a", "a-b", "a b", "a\n", "ä"]
    wrong: list[Op] = [("declare", "gauge", name, "x") for name in names]
    wrong += [
        ("declare", "gauge", "g", "x", labels)
        for labels in (["a:b"], ["__a"], ["1"], [""], ["a", "a"], ["a\n"])
    ]
    wrong += [("declare", "histogram", "h", "x", ["le"], [1]), ("declare", "summary", "s", "x")]
    wrong += [("declare", "gauge", "ttft_seconds", "x"), ("declare", "counter", "a_total", "x")]
    bounds: list[list[float]] = [[], [1, 1], [2, 1], [1, math.inf], [math.nan]]
    wrong += [("declare", "histogram", "h", "x", [], each) for each in bounds]
    smallest(wrong, lambda op: refused(learner, [HISTOGRAM], op))
    compare(learner, [("declare", "gauge", "a:_1", "x", ["_a", "le"])])


@check(LAB)
def a_refused_call_changes_nothing(learner: Learner) -> None:
    """An unknown metric, another kind or number of label values, a negative amount: it raises; no series appears."""
    wrong: list[Op] = [
        ("add", "nothing", 1), ("touch", "nothing"), ("assign", "vllm:requests", 1, "a", "b"),
        ("observe", "vllm:running", 1), ("add", "ttft_seconds", 1, "a"), ("assign", "ttft_seconds", 1, "a"),
        ("observe", "vllm:requests", 1, "a", "b"), ("touch", "vllm:requests", "a"), ("assign", "vllm:running", 1, "a"),
        ("add", "vllm:requests", -1, "a", "b"), ("add", "vllm:requests", 1, "a", "b", "c"), ("touch", "ttft_seconds"),
    ]  # fmt: skip
    smallest(wrong, lambda op: refused(learner, [COUNTER, GAUGE, HISTOGRAM], op))


# -- quantiles


def quantile(q: float, buckets: Sequence[tuple[float, float]]) -> float:
    """Return a second opinion, in fractions, by walking over the values that each bucket holds."""
    if not 0 <= q <= 1:
        return math.inf if q > 1 else -math.inf
    bounds = sorted({bound for bound, _ in buckets})
    sums = [sum(Fraction(count) for bound, count in buckets if bound == each) for each in bounds]
    counts = list(accumulate(sums, max))
    if len(bounds) < 2 or bounds[-1] != math.inf or not counts[-1]:
        return math.nan
    rank = Fraction(q) * counts[-1]
    place = max(bisect_left(counts, rank), sum(not count for count in counts))
    if bounds[place] == math.inf:
        return bounds[place - 1]
    low, before = (
        (Fraction(0), Fraction(0)) if place == 0 else (Fraction(bounds[place - 1]), counts[place - 1])
    )
    high = Fraction(bounds[place])
    if place == 0 and high <= 0:
        return float(high)
    return float(low + (high - low) * (rank - before) / (counts[place] - before))


def same_quantile(learner: Learner, q: float, buckets: Sequence[tuple[float, float]]) -> None:
    yours, right = learner.call("histogram_quantile", q, list(buckets)), quantile(q, buckets)
    is_number = isinstance(yours, int | float) and not isinstance(yours, bool)
    if not is_number or not (close(yours, right) or math.isclose(yours, right, abs_tol=1e-9)):
        raise Failed(
            f"the quantile is {yours!r}; by the rules it is {right:g}",
            example=f"histogram_quantile({q:g}, {list(buckets)})",
        )


@check(LAB)
def a_quantile_is_interpolated(learner: Learner) -> None:
    """The quantile lies inside its bucket, by its rank; the first bucket begins at 0."""
    latencies = [(0.1, 10.0), (0.5, 60.0), (1.0, 90.0), (math.inf, 100.0)]
    smallest([0.5, 0.9, 0.1, 0.05, 0.35, 0.6, 0.75, 0.0], lambda q: same_quantile(learner, q, latencies))
    same_quantile(learner, 0.5, [(0.5, 0.0), (1.0, 0.0), (2.0, 4.0), (math.inf, 4.0)])
    same_quantile(learner, 0.9, [(-1.0, 2.0), (0.0, 4.0), (3.0, 10.0), (math.inf, 10.0)])


@check(LAB)
def quantiles_at_the_edges(learner: Learner) -> None:
    """Beyond the last bound it is that bound; no values, no bucket inf, q outside 0 to 1 have their own answers."""
    latencies = [(0.1, 10.0), (0.5, 60.0), (math.inf, 100.0)]
    smallest([0.99, 0.61, 1.0, -0.1, 1.1], lambda q: same_quantile(learner, q, latencies))
    smallest(
        [
            [], [(math.inf, 5.0)], [(1.0, 0.0), (math.inf, 0.0)], [(1.0, 3.0), (2.0, 5.0)],
            [(-2.0, 5.0), (-1.0, 6.0), (math.inf, 6.0)], [(0.0, 5.0), (1.0, 6.0), (math.inf, 6.0)],
        ],
        lambda buckets: same_quantile(learner, 0.5, buckets),
    )  # fmt: skip


@check(LAB)
def the_least_quantile_has_a_value(learner: Learner) -> None:
    """q = 0 falls into the first bucket whose count is above 0, also if smaller ones are empty."""
    smallest(
        [
            [(0.5, 3.0), (1.0, 5.0), (math.inf, 6.0)], [(0.5, 0.0), (1.0, 5.0), (math.inf, 6.0)],
            [(0.1, 0.0), (0.5, 0.0), (1.0, 0.0), (math.inf, 6.0)],
            [(-1.0, 0.0), (0.0, 0.0), (2.0, 4.0), (math.inf, 4.0)],
        ],
        lambda buckets: same_quantile(learner, 0.0, buckets),
    )  # fmt: skip


@check(LAB)
def counts_may_be_fractions(learner: Learner) -> None:
    """Counts may be below 1, as rates are: buckets of 0.02 values per second have a quantile like others."""
    rates = [(0.1, 0.005), (0.5, 0.0125), (1.0, 0.02), (math.inf, 0.025)]
    smallest([0.1, 0.5, 0.7, 0.9], lambda q: same_quantile(learner, q, rates))


@check(LAB)
def replicas_are_added_first(learner: Learner) -> None:
    """Buckets of several replicas come in any order; equal bounds are added, and counts never fall towards inf."""
    fast, slow = [(0.5, 90.0), (5.0, 95.0), (math.inf, 95.0)], [(0.5, 0.0), (5.0, 8.0), (math.inf, 8.0)]
    smallest([0.5, 0.9, 0.99], lambda q: same_quantile(learner, q, [*fast, *slow]))
    same_quantile(learner, 0.95, [*slow[::-1], *fast[::-1]])
    same_quantile(learner, 0.9, [(0.5, 40.0), (1.0, 30.0), (2.0, 60.0), (math.inf, 55.0)])


# -- random metrics


@check(LAB)
def random_metrics(learner: Learner) -> None:
    """80 random registries give the samples of the official client; 200 random quantiles are those of the rules."""
    rng = Random(5)

    def run(count: int) -> None:
        bounds = sorted({rng.choice([0.1, 0.5, 1, 2, 10, 1e7]) for _ in range(3)})
        declared = [COUNTER, GAUGE, ("declare", "histogram", "h", "H.", ["x"], bounds)]
        rng.shuffle(declared)
        ops: list[Op] = []
        for _ in range(count):
            value = rng.choice([0.0, 0.1, 0.5, 1.0, 3, 1e7, 1e9])
            model = rng.choice(["a", 'b"', "c\\"])
            ops.append(
                rng.choice(
                    [
                        ("add", "vllm:requests", value, model, "stop"),
                        ("assign", "vllm:running", -value),
                        ("add", "vllm:running", -value),
                        ("observe", "h", value, model),
                        ("touch", "h", model),
                    ]
                )
            )
        run_fewest(ops, lambda some: compare(learner, [*declared, *some]))

    smallest([1 + number // 8 for number in range(80)], run)
    for number in range(200):
        bounds = sorted({rng.choice([-1.0, 0.0, 0.1, 0.5, 1.0, 2.0]) for _ in range(1 + number // 50)})
        buckets = [
            (bound, float(rng.randint(0, 9)))
            for bound in [*bounds, math.inf]
            for _ in range(rng.randint(1, 2))
        ]
        rng.shuffle(buckets)
        same_quantile(learner, rng.choice([0.25, 0.5, 0.9, 0.99, 1.0]), buckets)


# -- the engine's metrics


def series_like(registry: Any) -> dict[str, Any]:
    """Return classes for engine.server.metrics that keep everything in a registry of the lab."""

    def kind_of(kind: str) -> Callable[..., Any]:
        def build(
            name: str, help: str, labelnames: Sequence[str] = (), buckets: Sequence[float] = (), **_: Any
        ) -> Any:
            registry.declare(kind, name, help, list(labelnames), [float(each) for each in buckets])

            def labels(*values: str, **named: str) -> Any:
                chosen = values or tuple(named[each] for each in labelnames)
                registry.touch(name, *chosen)
                return SimpleNamespace(
                    inc=lambda amount=1: registry.add(name, amount, *chosen),
                    set=lambda value: registry.assign(name, value, *chosen),
                    observe=lambda value: registry.observe(name, value, *chosen),
                )

            return SimpleNamespace(labels=labels)

        return build

    kinds: dict[str, Any] = {name: kind_of(name.lower()) for name in ("Counter", "Gauge", "Histogram")}
    return kinds | {"CollectorRegistry": lambda: registry, "ProcessCollector": lambda registry: None}


def served(registry: Any) -> str:
    """Return /metrics of the engine's logger on a registry: ten requests with the engine's scheduler, no model."""
    from engine.server import metrics

    now = [100.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=256)
    cache = CacheConfig(num_blocks=24, block_size=16, enable_prefix_caching=True)
    scheduler, processor = Scheduler(config, cache, clock=clock), OutputProcessor(None, clock)
    with patch.multiple(metrics, **series_like(registry)):
        facts: Any = SimpleNamespace(scheduler=config, cache=cache, lora=None)
        logger = metrics.PrometheusLogger('shop "v2"', facts)
    for number in range(10):
        params = SamplingParams(max_tokens=8 + 5 * number, temperature=0, detokenize=False, ignore_eos=True)
        prompt = [*range(40), *range(100 * number, 100 * number + 9 * number)]
        request = Request(f"r{number}", prompt, params, arrival_time=clock())
        submitted = SubmittedRequest(f"r{number}", None, prompt, params, request.arrival_time, [request])
        scheduler.add(request)
        processor.add(submitted)
        logger.add(submitted)
    while scheduler.has_unfinished():
        out = scheduler.schedule()
        now[0] += 0.02 + 0.001 * len(out.scheduled)
        rows = [
            row
            for row in out.scheduled
            if row.start + row.num_tokens >= scheduler.requests[row.request_id].num_tokens
        ]
        core_outputs = scheduler.update(out, ModelRunnerOutput({row.request_id: [7] for row in rows}))
        processor.update(core_outputs)
        logger.step(scheduler.stats, clock(), core_outputs, processor.take_outputs())
    logger.reject('shop "v2"')
    text: str = registry.text()
    return text


@check(LAB)
def the_engine_exports_by_it(learner: Learner) -> None:
    """Behind the engine's logger, ten requests leave the samples of the official client, under vLLM's names."""
    said = ["the engine's PrometheusLogger on your registry, ten requests"]
    same(well_formed(served(learner.new("Registry")), said), served(Reference()), said)
