"""Token masks of grammars over toy vocabularies."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from engine.config.features import StructuredOutputsConfig
from engine.core.grammar_protocol import GrammarError
from engine.sampling_params import StructuredOutputsParams
from quizzes.experiments import Result, arg, experiment


def compile_regex(tokens: Sequence[str], regex: str) -> Any:
    """Compile `regex` for a vocabulary of these tokens; the token after the last one ends an output."""
    from engine.grammar.dfa_backend import CompiledDFA
    from engine.grammar.regex import parse
    from engine.grammar.vocabulary import Vocabulary

    spelled = [*(token.encode() for token in tokens), b""]
    return CompiledDFA(parse(regex), Vocabulary(spelled, frozenset({len(tokens)})))


def bits_of(words: Sequence[int], size: int) -> list[int]:
    """Return the token ids whose bit is set: token v is bit v % 32 of word v // 32."""
    return [token for token in range(size) if int(words[token // 32]) >> (token % 32) & 1]


def mask_of(grammar: Any, size: int) -> tuple[list[int], list[int]]:
    """Return the int32 words of a grammar's mask of `size` tokens, and the token ids that it allows."""
    import numpy as np

    words = np.zeros(-(-size // 32), np.int32)
    grammar.fill_bitmask(words)
    return words.tolist(), bits_of(words.view(np.uint32).tolist(), size)


@experiment("E41")
def token_mask(
    vocabulary: list[str] = arg(
        ["t", "true", "tru", "e", "ue", "r", "false", "fal", "se", "f", " "], chars=(1, 40), count=(1, 200)
    ),
    regex: str = arg("true|false", chars=(1, 200)),
    said: list[str] = arg(["t"], chars=(1, 40), count=(0, 50)),
) -> Result:
    """Compute the tokens that a regular expression allows after some tokens of a toy vocabulary, as the sampler's
    bits.

    Returns: One row of a step's bitmask.
        allowed [tokens]: Sorted by their place in the vocabulary; end-of-sequence is "<eos>".
        num_allowed [tokens]; eos_allowed
        accepted [tokens]: Tokens of `said` that the grammar accepted, from the left.
        words [int32]: Bit v % 32 of word v // 32 stands for token v.
    """
    ids = {token: index for index, token in enumerate(vocabulary)}
    grammar = compile_regex(vocabulary, regex).start()
    accepted = grammar.validate_tokens([ids.get(token, len(vocabulary)) for token in said])
    grammar.accept_tokens(accepted)
    words, allowed = mask_of(grammar, len(vocabulary) + 1)
    names = [*vocabulary, "<eos>"]
    return Result(
        allowed=[names[token] for token in allowed],
        num_allowed=len(allowed),
        eos_allowed=len(vocabulary) in allowed,
        accepted=len(accepted),
        words=words,
    )


@experiment("E41")
def forced(
    texts: list[str] = arg(["small", "smart", "medium"], chars=(1, 40), count=(1, 20)),
    said: str = arg("smart", chars=(1, 40)),
) -> Result:
    """Find the positions at which a grammar allows one token only, which jump-forward decoding can skip.

    Returns: `said`, one of `texts`, letter by letter, with a vocabulary of single characters.
        positions [positions]: Tokens of the output, end-of-sequence included.
        forced [positions]: Positions with exactly one allowed token.
        forced_share [share]
        choices [tokens]: By position: number of allowed tokens.
    """
    if said not in texts:
        raise ValueError(f"{said!r} is none of the texts: {', '.join(texts)}")
    letters = sorted(set("".join(texts)))
    grammar = compile_regex(letters, "|".join(re.escape(text) for text in texts)).start()
    counts = []
    for token in [*map(letters.index, said), len(letters)]:
        counts.append(len(mask_of(grammar, len(letters) + 1)[1]))
        grammar.accept_tokens([token])
    alone = counts.count(1)
    return Result(positions=len(counts), forced=alone, forced_share=alone / len(counts), choices=counts)


@experiment("E41", "E36")
def draft_masks(
    vocabulary: list[str] = arg(["a", "b", "c", "ab", "bc", "abc"], chars=(1, 40), count=(1, 200)),
    regex: str = arg("(abc)+", chars=(1, 200)),
    said: list[str] = arg(["a"], chars=(1, 40), count=(0, 50)),
    drafts: list[str] = arg(["b", "c", "c"], chars=(1, 40), count=(0, 16)),
) -> Result:
    """Build the grammar masks of a row with drafts, one after each token (`engine/grammar/manager.py`).

    Returns:
        rows [masks]; mask_bytes [B]
        allowed [tokens]: By mask: allowed tokens; all of them after a draft that breaks the grammar.
        legal_drafts [drafts]: Drafts from the left that the grammar would take.
        position_after [tokens]: Position of the grammar after the masks are made and the drafts are rolled back.
    """
    import numpy as np

    from engine.grammar.manager import fill_positions

    size = len(vocabulary) + 1
    ids = {token: index for index, token in enumerate(vocabulary)}
    grammar = compile_regex(vocabulary, regex).start()
    grammar.accept_tokens([ids.get(token, len(vocabulary)) for token in said])
    guesses = [ids.get(token, len(vocabulary)) for token in drafts]
    legal = len(grammar.validate_tokens(guesses))
    words = np.zeros((1 + len(guesses), -(-size // 32)), np.int32)
    fill_positions(grammar, guesses, words)
    undone = 0
    with suppress(ValueError):  # the grammar's position is the number of tokens that can be rolled back
        while True:
            grammar.rollback(1)
            undone += 1
    return Result(
        rows=len(words),
        mask_bytes=words.nbytes,
        allowed=[len(bits_of(line.tolist(), size)) for line in words.view(np.uint32)],
        legal_drafts=legal,
        position_after=undone,
    )


RECURSIVE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": []}},
    "$ref": "#/$defs/node",
}
EXAMPLES = {
    "regex": "[ab]+",
    "choice": ["yes", "no"],
    "json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "json_object": True,
    "grammar": 'root ::= "(" root ")" | "x"',
    "structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}',
}


@experiment("E41")
def nesting(depth: int = arg(3, 1, 12)) -> Result:
    """Compare finite automata with stack-based grammars on nested brackets.

    Writes "x in up to `depth` pairs of brackets" as a regular expression and asks the grammar backends to compile it.

    Returns: Balanced brackets, up to a depth, as a regular expression and as a grammar.
        pattern_length [characters]
        automaton_states [states]: States of the automaton after every prefix of the deepest text.
        accepts_depth: Brackets `depth` deep are a whole output.
        accepts_deeper: Brackets one level deeper are accepted.
        automaton_takes_grammar, automaton_takes_recursive_schema: Whether the automaton backend compiles a
            context-free grammar, and a recursive schema.
        automaton_kinds [kinds]: Kinds of structured output, of six, that the automaton backend compiles.
        stack_kinds [kinds]: The same for the pushdown backend (xgrammar), by the engine's own table.
    """
    from engine.grammar.manager import GrammarCompiler, choose_backend
    from engine.grammar.vocabulary import Vocabulary

    pattern = "x"
    for _ in range(depth):
        pattern = rf"(x|\({pattern}\))"
    compiled = compile_regex(["(", ")", "x"], pattern)
    letters = Vocabulary([bytes([code]) for code in range(32, 127)] + [b""], frozenset({95}))
    automaton = GrammarCompiler(letters, StructuredOutputsConfig(backend="dfa"))

    def is_whole(level: int) -> bool:
        return compiled.start().accept_tokens([0] * level + [2] + [1] * level + [3])

    def compiles(kind: str, value: Any) -> bool:
        try:
            automaton.compile(StructuredOutputsParams(**{kind: value}))
        except GrammarError:
            return False
        return True

    def routed(kind: str, backend: str) -> bool:
        try:
            return choose_backend(kind, backend) == backend
        except GrammarError:
            return False

    accepts, deeper = is_whole(depth), is_whole(depth + 1)  # states are made when a text reaches them
    return Result(
        pattern_length=len(pattern),
        automaton_states=compiled.dfa.num_states,
        accepts_depth=accepts,
        accepts_deeper=deeper,
        automaton_takes_grammar=compiles("grammar", EXAMPLES["grammar"]),
        automaton_takes_recursive_schema=compiles("json", RECURSIVE),
        automaton_kinds=sum(compiles(kind, value) for kind, value in EXAMPLES.items()),
        stack_kinds=sum(routed(kind, "xgrammar") for kind in EXAMPLES),
    )
