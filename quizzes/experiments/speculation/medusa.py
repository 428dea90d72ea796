"""Medusa's tree of candidates against the chain of its best ones, with the heads of the shop model.

    tree, as ranks of each head's candidates        a step accepts the longest path that the answer follows

        (0) -- (0, 0) -- (0, 0, 0)                  head 0's second choice, then head 1's best: (1, 0)
        (1) -- (1, 0)                               a chain is the single path (0), (0, 0), (0, 0, 0) ...
        (2)

The engine verifies chains, as vLLM 0.32 does. A tree's acceptance is therefore computed from its answers: the heads'
guesses at every state of an answer are ranked, and the steps follow.
"""

import heapq
from functools import cache
from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.speculation.live import MEDUSA_HEADS, METHODS, prompts, run

Path = tuple[int, ...]
"""Rank of each head's candidate, from head 0 on; 0 is its best one."""
Ranks = list[list[int]]
"""For each answer token but the last: the rank of the token after the next among head 0's guesses, and so on."""
RANKS_KEPT = 16
_NEVER = 1 << 20
"""Rank where the answer has ended."""


@experiment("E36", seconds=30, megabytes=2500)
def medusa_tree(
    ctx: Context,
    workload: Literal["facts", "recommend", "tools", "chat", "free"] = "recommend",
    heads: int = arg(MEDUSA_HEADS, 1, MEDUSA_HEADS),
    nodes: int = arg(16, 1, 64),
    requests: int = arg(8, 1, 24),
    max_tokens: int = arg(48, 8, 64),
) -> Result:
    """Compare tokens per step of a tree of Medusa's candidates with those of a chain of the same heads.

    The tree has the `nodes` candidates that are most likely to be accepted: the product of their heads' accuracies at
    these ranks, measured on other shops (Cai et al. 2024, section 2.3.3). The live engine runs the chain.

    Returns: Greedy answers of `shop`, after each request's first token.
        chain_tokens_per_step, tree_tokens_per_step [tokens]
        live_tokens_per_step [tokens]: The chain again, counted in the engine.
        chain_positions, tree_positions [positions]: In each row of a verifying step, the newest token included.
        head_accuracy [share]: How often each head's best token is right, earlier drafts right or not.
        best_two [share]: How often one of each head's two best tokens is right.
        nodes_by_level [nodes]: Candidates in the tree from head 0, head 1, ...
        steps_chain, steps_tree [steps]
    """
    from engine.zoo.registry import resolve
    from engine.zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve("shop"))
    questions = prompts(workload, requests)
    speculative = {**METHODS["medusa"], "num_speculative_tokens": heads}
    with ctx.llm(max_num_seqs=16, speculative_config=speculative) as llm:
        live = run(llm, questions, temperature=0.0, max_tokens=max_tokens, one_by_one=True)
    ranker = _Ranker(heads)
    answers: list[Ranks] = []
    for question, answer in zip(questions, live.tokens, strict=True):
        prompt = tokenizer.encode(question).ids
        answers += ranker.ranks(prompt + answer, [range(len(prompt), len(prompt) + len(answer))])
    tree = best_tree(_usual_accuracy()[:heads], nodes)
    chain = {(0,) * depth for depth in range(1, heads + 1)}
    steps = {
        name: sum(num_steps(ranks, paths) for ranks in answers)
        for name, paths in (("chain", chain), ("tree", tree))
    }
    tokens = sum(map(len, answers))
    accuracy = _accuracy(answers)
    return Result(
        chain_tokens_per_step=tokens / max(1, steps["chain"]),
        tree_tokens_per_step=tokens / max(1, steps["tree"]),
        live_tokens_per_step=live.tokens_per_step,
        chain_positions=1 + heads,
        tree_positions=1 + len(tree),
        head_accuracy=[shares[0] for shares in accuracy],
        best_two=[shares[0] + shares[1] for shares in accuracy],
        nodes_by_level=[sum(len(path) == depth for path in tree) for depth in range(1, heads + 1)],
        steps_chain=steps["chain"],
        steps_tree=steps["tree"],
    )


class _Ranker:
    """The shop model and its heads in plain torch."""

    def __init__(self, num_heads: int) -> None:
        from engine.zoo.export import load_model
        from engine.zoo.medusa import load_heads
        from engine.zoo.registry import resolve

        self._target = load_model(resolve("shop"))
        self._heads = load_heads(resolve("shop-medusa"))
        self._num_heads = num_heads

    def ranks(self, text: list[int], answers: list[range]) -> list[Ranks]:
        """Return the ranks of each answer, which is a range of places in the text."""
        import torch

        with torch.inference_mode():
            hidden = self._target.hidden(torch.tensor([text]))[0][0]
            # State i gave token i + 1; those that gave an answer's tokens but the last:
            return [
                self._ranks(text[places.start : places.stop], hidden[places.start - 1 : places.stop - 2])
                for places in answers
            ]

    def _ranks(self, answer: list[int], states: Any) -> Ranks:
        import torch

        columns = []
        for ahead, guessed in enumerate(self._heads(states)[: self._num_heads], 1):
            logits = self._target.logits(guessed)[: max(0, len(answer) - ahead)]
            right = logits.gather(1, torch.tensor(answer[ahead:], dtype=torch.int64)[:, None])
            ranks = (logits > right).sum(1).tolist()
            columns.append(ranks + [_NEVER] * (len(answer) - 1 - len(ranks)))
        return [list(row) for row in zip(*columns, strict=True)]


@cache
def _usual_accuracy() -> list[list[float]]:
    """Return `_accuracy` on the expected answers in conversations that no workload of the experiments uses."""
    from engine.zoo.corpus import conversations, tokenize
    from engine.zoo.registry import resolve
    from engine.zoo.tokenizer import load_tokenizer

    tokenizer, ranker = load_tokenizer(resolve("shop")), _Ranker(MEDUSA_HEADS)
    ranks: list[Ranks] = []
    for conversation in conversations("validation", seed=11, number=12):
        sample = tokenize(conversation, tokenizer)
        marks = sample.answer_ids.tolist()
        starts = {number: marks.index(number) for number in sorted(set(marks)) if number > 0}
        answers = [range(start, start + marks.count(number)) for number, start in starts.items()]
        ranks += ranker.ranks(sample.tokens.tolist(), answers)
    return _accuracy(ranks)


def _accuracy(answers: list[Ranks]) -> list[list[float]]:
    """Return the share of places, by head, at which its guess of rank 0, 1, ... was right."""
    rows = [row for ranks in answers for row in ranks]
    shares = []
    for head in range(len(rows[0])):
        ranks = [row[head] for row in rows if row[head] != _NEVER]
        shares.append([ranks.count(rank) / max(1, len(ranks)) for rank in range(RANKS_KEPT)])
    return shares


def best_tree(accuracy: list[list[float]], nodes: int) -> set[Path]:
    """Return the `nodes` paths with the largest products of accuracies; each one's beginnings are among them."""
    tree: set[Path] = set()
    waiting: list[tuple[float, Path]] = [(-accuracy[0][rank], (rank,)) for rank in range(RANKS_KEPT)]
    heapq.heapify(waiting)
    while waiting and len(tree) < nodes:
        value, path = heapq.heappop(waiting)
        tree.add(path)
        if len(path) < len(accuracy):
            for rank, share in enumerate(accuracy[len(path)]):
                heapq.heappush(waiting, (value * share, (*path, rank)))
    return tree


def num_steps(ranks: Ranks, tree: set[Path]) -> int:
    """Return the steps after the first token: each takes the longest path of the tree and one token more."""
    place = steps = 0
    while place < len(ranks):
        path: Path = ()
        while len(path) < len(ranks[place]) and (longer := (*path, ranks[place][len(path)])) in tree:
            path = longer
        place, steps = place + len(path) + 1, steps + 1
    return steps
