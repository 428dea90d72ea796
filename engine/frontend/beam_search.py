"""Beam search above the engine: keep the `beam_width` most likely continuations, one token at a time.

    prompt --> A B C D          every beam requests one token and its 2 * width best alternatives;
               |\\  |            the best `width` of all of them are the beams of the next step:
               A1 A2 C1 C2      some beams fork (A), some end (B, D)

The engine has no beams: it runs requests of one token whose prompts share almost everything. The prefix cache makes a
step cheap, since only tokens after a beam's last full block are recomputed. V0 had forks in its core and copied
half-full blocks instead; `BeamMemory` counts the cost of each design on the same search.

Sources: vLLM entrypoints/llm.py (LLM.beam_search) and beam_search.py; Kwon et al. 2023, section 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from engine.frontend.block_space_manager import BlockSpaceManager
from engine.outputs import Logprob, RequestOutput
from engine.sampling_params import SamplingParams

MAX_LENGTH_PENALTY = 40
"""Powers of a length of millions stay within the range of a float; vLLM has no limit."""
Generate = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]


@dataclass
class BeamSearchParams:
    """Width and length of the search. Names are vLLM's. Raises ValueError for wrong values."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0  # A beam's score is its cumulative log-probability / length ** length_penalty

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
                raise ValueError(f"{name} must be an integer >= 1 and < 2 ** 31, got {value!r}")
        penalty = self.length_penalty
        is_number = isinstance(penalty, (int, float)) and not isinstance(penalty, bool)
        if not is_number or not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY:
            raise ValueError(
                f"length_penalty must be a number from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}, got {penalty!r}"
            )
        self.length_penalty = float(penalty)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos must be True or False, got {self.ignore_eos!r}")


@dataclass(slots=True)
class BeamSearchSequence:
    """A beam."""

    tokens: list[int]  # Prompt and continuation
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None  # stop (end-of-sequence) or length; None while it grows
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)

    def score(self, num_prompt_tokens: int, length_penalty: float) -> float:
        """Score that ranks finished beams. An end-of-sequence token does not count as length."""
        length = len(self.tokens) - num_prompt_tokens - (self.finish_reason == "stop")
        return self.cum_logprob / max(1, length) ** length_penalty


@dataclass(slots=True)
class BeamMemory:
    """Cost of a search in blocks: shared with copy on write (V0), shared when full (V1), and not shared."""

    cow_copies: int = 0  # Half-full blocks that V0 copies because two beams write into them
    peak_blocks_cow: int = 0
    peak_blocks_unshared: int = 0  # Blocks if every beam had its own copy of everything
    num_computed_tokens: int = 0
    """Tokens that the engine computed; with V0's forks: the prompt, and one token per beam and step."""
    num_cached_tokens: int = 0  # Tokens found in the prefix cache


@dataclass(slots=True)
class BeamSearchOutput:
    """Beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]
    memory: BeamMemory


def beam_search(
    prompt: list[int],
    params: BeamSearchParams,
    generate: Generate,
    *,
    eos_token_ids: frozenset[int] = frozenset(),
    block_size: int = 16,
) -> BeamSearchOutput:
    """Search from `prompt`; `generate` completes a list of prompts by one token each, with logprobs.

    The forks of the search are replayed on V0's block manager, to count its blocks.
    """
    num_alternatives = 2 * params.beam_width
    one_token = SamplingParams(max_tokens=1, temperature=0.0, logprobs=num_alternatives, detokenize=False)
    blocks_per_beam = -(-(len(prompt) + params.max_tokens) // block_size)
    manager = BlockSpaceManager(2 * params.beam_width * blocks_per_beam, 0, block_size)
    names: list[object] = [object()]  # of the beams, in the manager that replays the forks
    manager.allocate(names[0], len(prompt))
    memory, beams = BeamMemory(), [BeamSearchSequence(list(prompt))]
    ended: list[BeamSearchSequence] = []
    for _ in range(params.max_tokens):
        outputs = generate([beam.tokens for beam in beams], one_token)
        candidates: list[tuple[int, BeamSearchSequence]] = []
        for parent, (beam, output) in enumerate(zip(beams, outputs, strict=True)):
            memory.num_cached_tokens += output.num_cached_tokens
            memory.num_computed_tokens += len(output.prompt_token_ids) - output.num_cached_tokens
            children = _continuations(beam, output, eos_token_ids, params.ignore_eos)
            ended += [child for child in children if child.finish_reason]
            candidates += [(parent, child) for child in children if not child.finish_reason]
        best = nlargest(params.beam_width, candidates, key=lambda candidate: candidate[1].cum_logprob)
        beams = [child for _, child in best]
        if not beams:
            break
        names = _fork(manager, names, [parent for parent, _ in best])
        memory.cow_copies = manager.num_copies
        memory.peak_blocks_cow = max(memory.peak_blocks_cow, manager.num_used_blocks)
        unshared = sum(len(manager.block_table(name)) for name in names)
        memory.peak_blocks_unshared = max(memory.peak_blocks_unshared, unshared)
    for beam in beams:
        beam.finish_reason = "length"

    def score(beam: BeamSearchSequence) -> float:
        return beam.score(len(prompt), params.length_penalty)

    return BeamSearchOutput(nlargest(params.beam_width, [*ended, *beams], key=score), memory)


def _continuations(
    beam: BeamSearchSequence, output: RequestOutput, eos_token_ids: frozenset[int], ignore_eos: bool
) -> list[BeamSearchSequence]:
    """Return the beam extended by each of the likeliest next tokens."""
    if output.error:
        raise RuntimeError(output.error)
    (logprobs,) = output.outputs[0].logprobs or [{}]
    return [
        BeamSearchSequence(
            tokens=[*beam.tokens, token_id],
            cum_logprob=beam.cum_logprob + entry.logprob,
            finish_reason="stop" if token_id in eos_token_ids and not ignore_eos else None,
            logprobs=[*beam.logprobs, logprobs],
        )
        for token_id, entry in logprobs.items()
    ]


def _fork(manager: BlockSpaceManager, names: list[object], parents: Sequence[int]) -> list[object]:
    """Fork, free and extend the sequences `names`; parents: index of the sequence that each beam continues.

    The first child of a sequence goes on in its blocks. Return the beams' names.
    """
    heirs: list[object] = []
    for place, parent in enumerate(parents):
        is_first = parent not in parents[:place]
        heirs.append(names[parent] if is_first else object())
        if not is_first:
            manager.fork(names[parent], heirs[-1])
    for index, name in enumerate(names):
        if index not in parents:
            manager.free(name)
    for name in heirs:
        manager.append_slot(name)
    return heirs
