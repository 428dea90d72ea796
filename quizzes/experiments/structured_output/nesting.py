from typing import Any

from engine.config.features import StructuredOutputsConfig
from engine.core.grammar_protocol import GrammarError
from engine.sampling_params import StructuredOutputsParams
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.structured_output._toy import compile_regex

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
def nesting(ctx: Context, depth: int = arg(3, 1, 12)) -> Result:
    """Compare finite automata with stack-based grammars on nested brackets.

    Writes "x in up to `depth` pairs of brackets" as a regular expression and asks the grammar backends to compile it.

    Returns:
        Balanced brackets, up to a depth, as a regular expression and as a grammar.
        pattern_length [characters]
        automaton_states [states]: States of the automaton after every prefix of the deepest text.
        accepts_depth: Brackets `depth` deep are a whole output.
        accepts_deeper: Brackets one level deeper are accepted.
        automaton_takes_grammar, automaton_takes_recursive_schema: Whether the automaton backend compiles a
            context-free grammar, and a recursive schema.
        automaton_kinds [kinds]: Kinds of structured output, of six, that the automaton backend compiles.
        stack_kinds [kinds]: The same for the pushdown backend (xgrammar), by the engine's own table.
    """
    from engine.grammar.compile import GrammarCompiler, choose_backend
    from engine.grammar.vocabulary import Vocabulary

    tokens = ["(", ")", "x"]
    pattern = "x"
    for _ in range(depth):
        pattern = rf"(x|\({pattern}\))"
    compiled = compile_regex(tokens, pattern)

    def is_whole(level: int) -> bool:
        grammar = compiled.start()
        return grammar.accept_tokens([0] * level + [2] + [1] * level + [3])

    def compiles(kind: str, value: Any) -> bool:
        letters = Vocabulary([bytes([code]) for code in range(32, 127)] + [b""], frozenset({95}))
        try:
            GrammarCompiler(letters, StructuredOutputsConfig(backend="dfa")).compile(
                StructuredOutputsParams(**{kind: value})
            )
        except GrammarError:
            return False
        return True

    def routed(kind: str, backend: str) -> bool:
        try:
            return choose_backend(kind, backend) == backend
        except GrammarError:
            return False

    accepts, deeper = is_whole(depth), is_whole(depth + 1)
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
