"""Figures of the optional inputs: the request log, the probe, the gateway, the times of the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from engine.server.diagnosis.evidence import Answer, Evidence, Gateway
from engine.server.diagnosis.figures import ITL, TTFT, Between, Figures
from engine.server.diagnosis.options import BASELINE, GATEWAY, LOG, PROBE, SERVER_LOG


@dataclass(frozen=True)
class LogFigures:
    """Figures of a request log's lines."""

    distinct_heads: float
    """Distinct first blocks per request."""
    most_common_head: float
    """Share of the requests with the most frequent first block."""
    again: float
    """Share of the requests whose prompt came before and was aborted then."""
    salted: float
    """Share of the requests with a cache salt."""
    heaviest: str
    """The group with the most tokens, by model, priority and salt; "" if there is only one."""
    heaviest_share: float
    skew: float
    """Seconds by which the log's newest end lies after the window, or (negative) before it."""

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, object]], ended_at: float, seconds: float) -> LogFigures:
        """Read the lines; one at least. The window's end is a time of day of this machine."""
        heads = Counter(line.get("prefix") for line in lines)
        weights: Counter[str] = Counter()
        aborted: set[object] = set()
        again = 0
        for line in lines:
            salt = f", salt {line['salt']}" if "salt" in line else ""
            group = f"{line.get('model')}, priority {line.get('priority', 0)}{salt}"
            weights[group] += int(_float(line.get("prompt")) + _float(line.get("output")))
            key = (line.get("prefix"), line.get("prompt"))
            again += key in aborted
            if line.get("finish_reason") == "abort":
                aborted.add(key)
        heaviest, tokens = weights.most_common(1)[0]
        newest = max(_float(line.get("arrival")) + _float(line.get("E2EMs")) / 1000 for line in lines)
        return cls(
            distinct_heads=len(heads) / len(lines),
            most_common_head=heads.most_common(1)[0][1] / len(lines),
            again=again / len(lines),
            salted=fmean(["salt" in line for line in lines]),
            heaviest=heaviest if len(weights) > 1 else "",
            heaviest_share=tokens / max(1, weights.total()),
            skew=max(0.0, newest - ended_at) or min(0.0, newest - (ended_at - seconds)),
        )


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True)
class ProbeFigures:
    """Figures of the probe's requests as clients saw them, beside the server."""

    ttft_ids: float | None
    """The fastest of several, so that one wait is not taken for a rule."""
    ttft_text: float | None
    gap: float | None
    """Median seconds between two chunks."""
    num_chats: int
    num_ends: int
    """Greetings whose answer ended by itself."""
    said: str
    """The first error; "" without one."""

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> ProbeFigures:
        good = [answer for answer in answers if not answer.error]

        ids, texts = ([answer.ttft for answer in good if answer.kind == kind] for kind in ("ids", "text"))
        ends = [answer.finish_reason == "stop" for answer in good if answer.kind == "chat"]
        said = next((answer.error for answer in answers if answer.error), "")
        return cls(
            ttft_ids=min(ids, default=None),
            ttft_text=min(texts, default=None),
            gap=next((answer.gap for answer in good if answer.kind == "long" and answer.gap), None),
            num_chats=len(ends),
            num_ends=sum(ends),
            said=said,
        )


@dataclass(frozen=True)
class GatewayFigures:
    """A comparison of the replicas behind a gateway, and of its tenants."""

    affinity: bool
    num_replicas: int
    hit_rate: float | None
    """The rate of all replicas together."""
    attempts_per_response: float | None
    tenant_share: float
    """Share of all tokens that belong to the heaviest tenant."""
    num_tenants: int
    canary: str
    """Version of the canary; "" without one."""
    canary_failed: float | None = None
    other_failed: float | None = None
    canary_ttft: float | None = None
    other_ttft: float | None = None
    canary_itl: float | None = None
    other_itl: float | None = None

    @classmethod
    def of(cls, gateway: Gateway) -> GatewayFigures:
        spans = {
            replica.name: Between(replica.looks[0].scrape, replica.looks[-1].scrape)
            for replica in gateway.replicas
            if len(replica.looks) > 1
        }

        def share(part: str, whole: str, names: Sequence[str]) -> float | None:
            total = sum(spans[name].more(whole) for name in names if name in spans)
            return sum(spans[name].more(part) for name in names if name in spans) / total if total else None

        version = str((gateway.canary or {}).get("version", ""))
        compared: dict[str, float | None] = {}
        for side, is_canary in (("canary", True), ("other", False)) if version else ():
            ours = [replica for replica in gateway.replicas if (replica.version == version) == is_canary]
            sent, names = sum(replica.num_requests for replica in ours), [replica.name for replica in ours]
            compared[f"{side}_failed"] = sum(replica.num_failed for replica in ours) / sent if sent else None
            for what, histogram in (("ttft", TTFT), ("itl", ITL)):
                compared[f"{side}_{what}"] = share(f"{histogram}_sum", f"{histogram}_count", names)
        return cls(
            affinity=any(word in gateway.policy for word in ("affinity", "hash", "bounded")),
            num_replicas=len(gateway.replicas),
            hit_rate=share("prefix_cache_hits_total", "prefix_cache_queries_total", list(spans)),
            attempts_per_response=(
                gateway.num_attempts / gateway.num_responses if gateway.num_responses else None
            ),
            tenant_share=max(gateway.tenants.values(), default=0.0) / max(1.0, sum(gateway.tenants.values())),
            num_tenants=len(gateway.tenants),
            canary=version,
            **compared,
        )


@dataclass(frozen=True)
class Case:
    """All figures of a diagnosis; None: that input was not given."""

    now: Figures
    log: LogFigures | None = None
    probe: ProbeFigures | None = None
    gateway: GatewayFigures | None = None
    rank_gap: float | None = None
    """Seconds of own work in a step: those of the slowest rank less those of the fastest; 0 for one rank."""
    was: Figures | None = None
    was_log: LogFigures | None = None
    empty: frozenset[str] = frozenset()
    """Options that were given and brought nothing, such as an empty log."""

    def has(self, option: str) -> bool:
        """Whether an option was given."""
        inputs = {
            LOG: self.log,
            PROBE: self.probe,
            GATEWAY: self.gateway,
            BASELINE: self.was,
            SERVER_LOG: self.rank_gap,
        }
        return inputs[option] is not None or option in self.empty

    @classmethod
    def of(cls, evidence: Evidence, baseline: Evidence | None = None) -> Case:
        has_baseline = baseline is not None and len(baseline.looks) > 1
        given = {LOG: evidence.log, PROBE: evidence.probe, BASELINE: baseline}
        return cls(
            now=Figures(evidence.looks),
            log=_log(evidence),
            probe=ProbeFigures.of(evidence.probe) if evidence.probe else None,
            gateway=GatewayFigures.of(evidence.gateway) if evidence.gateway is not None else None,
            rank_gap=None if evidence.ranks is None else _rank_gap(evidence.ranks),
            was=Figures(baseline.looks) if baseline is not None and has_baseline else None,
            was_log=_log(baseline) if baseline is not None and has_baseline else None,
            empty=frozenset(option for option, value in given.items() if value is not None),
        )


def _log(of: Evidence) -> LogFigures | None:
    if not of.log:
        return None
    return LogFigures.of(of.log, of.ended_at, of.looks[-1].scrape.when - of.looks[0].scrape.when)


def _rank_gap(ranks: Mapping[str, Sequence[float]]) -> float:
    middles = [median(times) / 1000 for times in ranks.values() if times]
    return max(middles) - min(middles) if len(middles) > 1 else 0.0
