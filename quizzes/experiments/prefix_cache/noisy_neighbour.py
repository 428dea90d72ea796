from collections import deque
from typing import Any

from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, experiment
from quizzes.experiments.charts import vega
from quizzes.experiments.prefix_cache._tokens import Fresh

BLOCK = 16


class TokenQuota:
    """Admits at most `tokens` prompt tokens of a tenant per round; the rest waits for the next round."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._waiting: deque[list[int]] = deque()

    def offer(self, prompt: list[int]) -> None:
        self._waiting.append(prompt)

    def admit(self) -> list[list[int]]:
        """Return the prompts admitted in this round, oldest first."""
        left, admitted = self.tokens, []
        while self._waiting and len(self._waiting[0]) <= left:
            prompt = self._waiting.popleft()
            left -= len(prompt)
            admitted.append(prompt)
        return admitted

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)


@experiment("E23")
def noisy_neighbour(
    ctx: Context,
    sessions: int = arg(4, 1, 12),
    session_blocks: int = arg(5, 1, 20),
    documents: int = arg(4, 0, 12),
    document_blocks: int = arg(10, 1, 40),
    pool: int = arg(60, 24, 1000),
    rounds: int = arg(5, 2, 12),
) -> Result:
    """Measure the hits that one tenant loses to another tenant's document scan, and compare remedies.

    In each round every chat session asks again with the same history, then the scanner sends `documents` new
    documents. Sizes in blocks of 16 tokens; every chat prompt ends in one more token. Hit rates count tokens of full
    blocks.

    Returns:
        Hit rate of the chat tenant after the first round, by remedy.
        alone [share]: Without the scan.
        shared [share]: One pool, no measures.
        salted [share]: One pool, a salt per tenant.
        quota [share]: One pool; the gateway lets one document per round in.
        partitioned [share]: Two engines with half the blocks each.
        quota_backlog [documents]: Still waiting at the gateway at the end: the scanner's price of the quota.
        evictions_shared [blocks]
    """
    size: dict[str, Any] = {"sessions": sessions, "blocks": session_blocks, "rounds": rounds}
    scan: dict[str, Any] = {"documents": documents, "document_blocks": document_blocks}
    pool = max(pool, 2 * max(session_blocks, document_blocks) + 4)

    def play(*engines: CoreEngine, **more: Any) -> float:
        return _play(engines[0], engines[-1], **{**size, **scan, **more})

    def engine(blocks: int = pool, traced: bool = False) -> CoreEngine:
        return ctx.core(num_blocks=blocks, block_size=BLOCK, traced=traced)

    common, quota = engine(traced=True), TokenQuota(document_blocks * BLOCK)
    return Result(
        shared=play(common),
        alone=play(engine(), documents=0, document_blocks=1),
        salted=play(engine(), salts=("chat", "scan")),
        quota=play(engine(), quota=quota),
        partitioned=play(engine(pool // 2), engine(pool // 2)),
        quota_backlog=quota.num_waiting,
        evictions_shared=common.scheduler.kv.pool.num_evictions,
    )


def _play(
    chat: CoreEngine,
    scanner: CoreEngine,
    *,
    sessions: int,
    blocks: int,
    rounds: int,
    documents: int,
    document_blocks: int,
    salts: tuple[str | None, str | None] = (None, None),
    quota: TokenQuota | None = None,
) -> float:
    """The chat tenant's hit rate from the second round on."""
    fresh = Fresh()
    histories = [fresh(blocks * BLOCK + 1) for _ in range(sessions)]
    gate = quota or TokenQuota(documents * document_blocks * BLOCK)
    sent = hits = 0
    for turn in range(rounds):
        for index, history in enumerate(histories):
            name = f"chat{index}.{turn}"
            chat.run([Ask(name, history, fresh(1), cache_salt=salts[0])])
            hits += chat.outcomes[name].cached_tokens if turn else 0
        for _ in range(documents):
            gate.offer(fresh(document_blocks * BLOCK))
        for document in gate.admit():
            scanner.run([Ask(f"scan{sent}", document, fresh(1), cache_salt=salts[1])])
            sent += 1
    return hits / ((rounds - 1) * sessions * blocks * BLOCK)


def chart(result: Result) -> dict[str, Any]:
    """The chat's hit rate by measure."""
    names = ("alone", "shared", "salted", "quota", "partitioned")
    return vega(
        [{"measure": name, "hit rate": getattr(result, name)} for name in names],
        "bar",
        x=("measure:N", {"sort": list(names)}),
        y=("hit rate:Q", {"scale": {"domain": [0, 1]}}),
    )
