"""Checks of the lab grammar-mask: single rules, random vocabularies, then the engine's sampler with the masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from threading import Lock
from typing import Any

from engine.grammar.dfa import DEAD, DFA, START
from engine.grammar.manager import GrammarCompiler, pattern_tree
from engine.grammar.regex import Node, parse
from engine.grammar.schema.layout import Layout
from engine.sampling_params import StructuredOutputsParams
from lessons.course.checking import Failed, Learner, check, run_fewest, smallest
from prep_common.sandbox import GuestError, GuestStopped
from prep_common.sandbox.handle import Handle

LAB = "grammar-mask"


class Automaton:
    """The engine's automaton as the learner sees it: a state with all its moves. It counts the calls."""

    def __init__(self, tree: Node) -> None:
        self.dfa = DFA(tree)
        self.num_calls: dict[int, int] = {}

    def state(self, number: Any) -> tuple[dict[int, int], bool]:
        if type(number) is not int or not 0 < number < self.dfa.num_states:
            raise Failed(f"the automaton was asked for the state {number!r}, to which no move leads")
        self.num_calls[number] = self.num_calls.get(number, 0) + 1
        moves = {byte: target for byte in range(256) if (target := self.dfa.step(number, byte)) != DEAD}
        return moves, self.dfa.is_accepting(number)


class Case:
    """A learner's grammar, and a second opinion: each token tried by itself, byte by byte."""

    def __init__(self, learner: Learner, pattern: str, tokens: Sequence[bytes], *eos: int) -> None:
        self.tokens, self.eos = list(tokens), list(eos)
        self.automaton = Automaton(parse(pattern))
        self.said = [f"pattern {pattern!r}, tokens {dict(enumerate(self.tokens))}, eos {self.eos}"]
        self.yours = learner.new(
            "Grammar", learner.callback(self.automaton.state), START, self.tokens, self.eos
        )
        self.place = self.yours.start()
        self.path = [b""]
        """Text after each accepted token; the end of sequence has the text None."""

    @property
    def text(self) -> bytes | None:
        return self.path[-1]

    def leads_on(self, text: bytes) -> bool:
        state = START
        for byte in text:
            state = self.automaton.dfa.step(state, byte)
        return state != DEAD

    def is_allowed(self, text: bytes | None, token_id: int) -> bool:
        if text is None or not 0 <= token_id < len(self.tokens):
            return False
        if token_id in self.eos:
            return self.automaton.dfa.matches(text)
        return bool(self.tokens[token_id]) and self.leads_on(text + self.tokens[token_id])

    def follow(self, token_ids: Sequence[int]) -> list[Any]:
        """Return the texts after each token, up to the first that is not allowed."""
        texts: list[Any] = []
        for token_id in token_ids:
            text = texts[-1] if texts else self.text
            if not self.is_allowed(text, token_id):
                break
            assert text is not None
            texts.append(None if token_id in self.eos else text + self.tokens[token_id])
        return texts

    def mask(self) -> Handle:
        """Ask for the mask and compare it; return the object."""
        self.said.append("mask()")
        found = self.place.mask()
        if not isinstance(found, Handle) or not found.has("typecode") or found.typecode != "I":
            self.fail('returned something other than an array("I")')
        words = found.tolist()
        right = [token_id for token_id in range(len(self.tokens)) if self.is_allowed(self.text, token_id)]
        allowed = [32 * at + bit for at, word in enumerate(words) for bit in range(32) if word >> bit & 1]
        if allowed != right:
            self.fail(f"allows the tokens {self.shown(allowed)}; by the rules {self.shown(right)}")
        if len(words) != (size := -(-len(self.tokens) // 32)):
            self.fail(f"has {len(words)} words; {len(self.tokens)} tokens need {size}")
        return found

    def accept(self, *token_ids: int) -> None:
        texts = self.follow(token_ids)
        right = len(texts) == len(token_ids)
        self.ask("accept", list(token_ids), right)
        self.path += texts if right else []
        self.compare_end()

    def validate(self, *token_ids: int) -> None:
        self.ask("validate", list(token_ids), list(token_ids[: len(self.follow(token_ids))]))

    def rollback(self, count: int) -> None:
        self.ask("rollback", count, None)
        del self.path[len(self.path) - count :]
        self.compare_end()

    def ask(self, name: str, argument: Any, right: Any) -> None:
        self.said.append(f"{name}({argument})")
        answer = getattr(self.place, name)(argument)
        if answer != right or type(answer) is not type(right):
            self.fail(f"returned {answer!r}; by the rules it is {right!r}")

    def compare_end(self) -> None:
        if (ended := self.place.get("is_ended")) is not (self.text is None):
            self.fail(f"is followed by is_ended {ended!r}; by the rules it is {self.text is None}")

    def shown(self, token_ids: Sequence[int]) -> str:
        named = [
            f"{token_id} {self.tokens[token_id]!r}" for token_id in token_ids if token_id < len(self.tokens)
        ]
        beyond = [str(token_id) for token_id in token_ids if token_id >= len(self.tokens)]
        return ", ".join([*named[:8], *(["..."] if len(named) > 8 else []), *beyond[:2]]) or "none"

    def fail(self, words: str) -> None:
        raise Failed(f"{self.said[-1]} {words}", example="; ".join([self.said[0][:300], *self.said[1:][-8:]]))


EOS = b"<eos>"
"""Stands for end of sequence in a list of tokens; its bytes are never read."""


def case(learner: Learner, pattern: str, *tokens: str | bytes) -> Case:
    """Return a case whose last token is end of sequence."""
    spelled = [each.encode() if isinstance(each, str) else each for each in tokens]
    return Case(learner, pattern, [*spelled, EOS], len(spelled))


# -- single rules


@check(LAB)
def a_token_that_leads_on_is_allowed(learner: Learner) -> None:
    """A token is allowed exactly if its bytes lead from the current state to a state of the automaton."""
    choice = case(
        learner, "true|tea|no", "t", "tr", "te", "tea", "tree", "n", "no", "not", "x", "r", "ue", "rue"
    )
    choice.mask()
    choice.accept(0)
    choice.mask()
    choice.accept(11)
    choice.mask()


@check(LAB)
def a_token_may_cross_states(learner: Learner) -> None:
    """A token of several bytes is allowed if every one of them leads on, however many states it crosses."""
    json = case(
        learner,
        r'\{"n": [0-9]+, "t": "[a-z]*"\}',
        '{"',
        '{"n": ',
        "n",
        '": ',
        "1",
        "12, ",
        '12, "t": "ab"}',
        ', "',
    )
    for token_id in (0, 2, 3, 4):
        json.mask()
        json.accept(token_id)
    json.mask()


@check(LAB)
def end_of_sequence_where_it_is_complete(learner: Learner) -> None:
    """End of sequence is allowed where the text is complete, and only there; several ids may stand for it."""
    number = case(learner, "[0-9]+(\\.[0-9])?", "1", ".", ".5", "1.")
    number.mask()
    for token_id in (0, 1, 0):
        number.accept(token_id)
        number.mask()
    two = Case(learner, "a+", [EOS, b"a", b"b", b"a"], 0, 3)
    for token_id in (0, 1, 3):
        two.mask()
        two.accept(token_id)


@check(LAB)
def nothing_comes_after_the_end(learner: Learner) -> None:
    """After end of sequence the mask is empty and no token is accepted, not even a second end."""
    ended = case(learner, "a*", "a", "aa")
    ended.accept(0, 2)
    ended.mask()
    for token_id in (0, 2):
        ended.accept(token_id)
        ended.validate(token_id)
    ended.rollback(1)
    ended.mask()


@check(LAB)
def tokens_without_bytes_are_never_allowed(learner: Learner) -> None:
    """A special token has no bytes, so it leads nowhere: it is never allowed, or an output could go on for ever."""
    special = case(learner, "a+", b"", "a", b"")
    special.mask()
    special.accept(1)
    special.mask()
    special.accept(0)
    special.validate(1, 2, 1)


@check(LAB)
def tokens_cut_characters(learner: Learner) -> None:
    """A token may begin or end within a character; the text is complete at the character's last byte only."""
    for pattern in ("[é漢]+", "漢?é", "[^a]{1,3}"):
        cut = case(
            learner,
            pattern,
            b"\xc3",
            b"\xa9",
            b"\xc3\xa9",
            b"\xe6",
            b"\xbc\xa2",
            b"\xe6\xbc",
            b"\xa2\xc3",
            "a",
        )
        cut.mask()
        for token_id in (5, 6, 1):
            cut.accept(token_id)
            cut.mask()


@check(LAB)
def equal_bytes_are_both_allowed(learner: Learner) -> None:
    """Two ids with the same bytes are both allowed."""
    twins = case(learner, "ab", "a", "a", "ab", "b", "ab")
    twins.mask()
    twins.accept(1)
    twins.mask()


@check(LAB)
def the_words_have_the_engines_layout(learner: Learner) -> None:
    """Token v is bit v % 32 of word v // 32, with ceil(V / 32) words, and the bits past the vocabulary are 0."""

    def run(size: int) -> None:
        case(learner, "(a|bb)*", *["a", "b", "c", "bb", "ab"] * (size // 5), *["a"] * (size % 5)).mask()

    smallest([0, 1, 30, 31, 32, 63, 64, 100], run)


@check(LAB)
def accept_is_all_or_nothing(learner: Learner) -> None:
    """`accept` of several tokens returns False, and changes nothing, if one of them is not allowed."""
    words = case(learner, "(ab|cd)+", "a", "b", "ab", "c", "d", "bc")
    words.accept(0, 1, 3)
    words.mask()
    words.accept(4, 0, 0)
    words.mask()
    words.accept(4, 6, 0)
    words.mask()
    words.accept(4, 0, 5, 4, 6)
    words.mask()


@check(LAB)
def ids_outside_are_not_allowed(learner: Learner) -> None:
    """An id below 0 or beyond the vocabulary is not allowed: False, and no IndexError."""
    some = case(learner, "a*", "b", "a")
    for token_id in (-1, -2, 3, 10**6):
        some.accept(token_id)
        some.validate(1, token_id, 1)
    some.mask()


@check(LAB)
def validate_changes_nothing(learner: Learner) -> None:
    """`validate` returns the longest prefix that would be accepted, end of sequence included, and changes nothing."""
    words = case(learner, "(ab)+", "a", "b", "ab")
    words.validate(0, 1, 2, 2, 3, 0)
    words.validate(0, 0)
    words.validate()
    words.validate(1)
    words.mask()
    words.accept(2)
    words.validate(3)
    words.mask()


@check(LAB)
def rollback_undoes_tokens(learner: Learner) -> None:
    """`rollback` undoes tokens of one call or several, also the end; a count without so many raises ValueError."""
    words = case(learner, "(ab)+", "a", "b", "ab")
    words.accept(0, 1)
    words.accept(2)
    words.accept(0)
    words.rollback(0)
    words.rollback(3)
    words.mask()
    words.accept(1, 3)
    words.rollback(1)
    words.mask()
    for count in (-1, 3):
        words.said.append(f"rollback({count})")
        try:
            words.place.rollback(count)
        except ValueError:
            continue
        words.fail("must raise ValueError: 2 tokens were accepted")
    words.mask()


@check(LAB)
def each_state_is_asked_for_once(learner: Learner) -> None:
    """The automaton is asked once for each state, for all masks, tokens and requests together."""
    words = case(learner, "(true|false|[0-9]{1,4})(, (true|false))*", "t", "tr", "true", ", ", "1", "23", "f")
    for _ in range(2):
        for token_ids in ((2, 3), (4, 5, 3), (6,), (1,)):
            words.mask()
            words.accept(*token_ids)
            words.mask()
            words.rollback(len(token_ids))
        words.place, words.path = words.yours.start(), [b""]
    most = max(words.automaton.num_calls, key=words.automaton.num_calls.__getitem__)
    if (count := words.automaton.num_calls[most]) > 1:
        words.fail(f"is the last call; the automaton was asked {count} times for state {most}")


@check(LAB)
def a_mask_is_built_once(learner: Learner) -> None:
    """All places in a state get the same object, each time they ask."""
    words = case(learner, "(ab)*", "a", "b", "ab")
    first = words.mask()
    words.accept(2)
    words.place, words.path = words.yours.start(), [b""]
    if words.mask() is not first:
        words.fail("on a second place in the first state returned another object")
    words.accept(0, 1, 2)
    after = words.mask()
    words.rollback(1)
    words.accept(0, 1)
    if words.mask() is not after:
        words.fail("returned another object than before, in the same state")


@check(LAB)
def places_are_independent(learner: Learner) -> None:
    """Tokens that one request accepts change no other request's place."""
    words = case(learner, "ab|cd", "a", "b", "c", "d")
    other = words.yours.start()
    words.accept(0)
    if other.accept([2]) is not True or other.get("is_ended"):
        words.fail("was followed by accept([2]) on another place, which must return True")
    words.mask()


PATTERNS = (
    "(ab|a|b)*c?",
    "[a-c]{2,5}",
    "(a|é)(b|漢)*",
    "a(bc)+|b(ca)*|cab",
    '"[^"]*"',
    "(abc?){1,3}é",
)


@check(LAB)
def random_vocabularies(learner: Learner) -> None:
    """Random tokens and requests over six patterns: every answer is that of trying each token by itself."""
    rng = Random(8)

    def run(number: int) -> None:
        pattern = PATTERNS[number % len(PATTERNS)]
        letters = [b"a", b"b", b"c", b'"', b"\xc3", b"\xa9", b"\xe6", b"\xbc\xa2", "é漢".encode()]
        tokens = [b"".join(rng.choices(letters, k=rng.randint(0, 4))) for _ in range(rng.randint(4, 40))]
        eos = rng.randrange(len(tokens))
        tokens[eos] = EOS
        ops: list[tuple[str, Any]] = []
        for _ in range(12):
            token_ids = [rng.randrange(len(tokens)) for _ in range(rng.randint(1, 2))]
            ops.append(rng.choice([("accept", token_ids), ("good", rng.random()), ("good", rng.random())]))
            ops.append(rng.choice([("mask", 0), ("validate", token_ids), ("rollback", rng.randint(0, 2))]))

        def replay(some: Sequence[tuple[str, Any]]) -> None:
            each = Case(learner, pattern, tokens, eos)
            for kind, value in some:
                if kind == "mask":
                    each.mask()
                elif kind == "rollback":
                    each.rollback(min(value, len(each.path) - 1))
                elif kind == "good":
                    good = [at for at in range(len(tokens)) if each.is_allowed(each.text, at)]
                    each.accept(*([good[int(value * len(good))]] if good else []))
                else:
                    getattr(each, kind)(*value)

        run_fewest(ops, replay, tries=30)

    smallest(range(18), run)


# -- the engine


class LabGrammar:
    """A learner's place behind the engine's protocol. Two threads of the engine use it, so they take turns."""

    def __init__(self, place: Any, lock: Lock) -> None:
        self.place, self.lock = place, lock

    def ask(self, name: str, *args: Any) -> Any:
        with self.lock:
            return getattr(self.place, name)(*args)

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        return self.ask("accept", list(token_ids)) is True

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        return list(self.ask("validate", list(token_ids)))

    def rollback(self, num_tokens: int) -> None:
        self.ask("rollback", num_tokens)

    def fill_bitmask(self, words: Any) -> None:
        import numpy as np

        with self.lock:
            words[:] = np.array(self.place.mask().tolist(), np.uint32).view(np.int32)

    def is_terminated(self) -> bool:
        with self.lock:
            return self.place.get("is_ended") is True


class LabCompiled:
    """A learner's grammar behind the engine's protocol."""

    def __init__(self, make: Callable[[], Any], lock: Lock) -> None:
        self.lock = lock
        with lock:
            self.yours = make()

    def start(self) -> LabGrammar:
        with self.lock:
            return LabGrammar(self.yours.start(), self.lock)


class LabCompiler(GrammarCompiler):
    """The engine's compiler, which gives the automaton of a pattern to the learner."""

    learner: Learner
    lock: Lock

    def compile(self, params: StructuredOutputsParams) -> LabCompiled:
        return LabCompiled(partial(self.make, pattern_tree(params, Layout(is_compact=True))), self.lock)

    def make(self, tree: Node) -> Any:
        state, words = self.learner.callback(Automaton(tree).state), self.vocabulary
        return self.learner.new("Grammar", state, START, words.token_bytes, sorted(words.eos_token_ids))


ASKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Price of Silver Harbor?", {"regex": "[0-9]{3} yen(, (in stock|sold out))?"}),
    ("Say it in Japanese: harbour", {"regex": "[ぁ-ん一-龯]{2,5}[。!]"}),
    ("Do you ship to Tokyo?", {"choice": ["yes, in two days", "yes", "no"]}),
    (
        "Describe the book.",
        {"json": {"type": "object", "properties": {"title": {"type": "string", "maxLength": 8}}}},
    ),
)


def answers(llm: Any) -> list[list[int]]:
    """Serve requests with grammars, the second half of them sampled; return their tokens."""
    from engine.sampling_params import SamplingParams

    found = []
    for number, (prompt, structure) in enumerate(ASKS * 2):
        params = SamplingParams(
            temperature=0.0 if number < len(ASKS) else 0.9,
            seed=number,
            max_tokens=24,
            structured_outputs=StructuredOutputsParams(**structure, disable_any_whitespace=True),
        )
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        found.append(list(output.outputs[0].token_ids))
    return found


@check(LAB)
def the_engine_samples_with_it(learner: Learner) -> None:
    """Eight requests to the shop model, greedy and sampled, with drafts, get the tokens of the engine's own backend."""
    from engine.core.errors import EngineDeadError
    from engine.llm import LLM
    from lessons.mine.identity import quiet_engine

    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    with LLM("shop", speculative_config=drafts, structured_outputs_config={"backend": "dfa"}) as llm:
        ours = answers(llm)
        core: Any = llm.llm_engine.engine_core
        core.grammars._compiler = compiler = LabCompiler(
            core.grammars._make_vocabulary(), core.grammars.config
        )
        core.grammars._grammars.clear()
        compiler.learner, compiler.lock = learner, Lock()
        try:
            with quiet_engine():
                yours = answers(llm)
        except EngineDeadError as dead:
            cause = dead.__cause__
            if isinstance(cause, (Failed, GuestError, GuestStopped)):
                raise cause from None
            raise Failed(f"the engine stopped: {cause or dead}") from None
    for number, (mine, theirs) in enumerate(zip(yours, ours, strict=True)):
        if mine != theirs:
            prompt, structure = ASKS[number % len(ASKS)]
            raise Failed(
                f"the tokens are {mine}; with the engine's grammar they are {theirs}",
                example=f"{prompt!r}, {structure}, {'greedy' if number < len(ASKS) else f'seed {number}'}",
            )
