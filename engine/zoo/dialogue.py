"""Questions of the customers and answers of the assistant, in English and Japanese.

Every answer repeats a sentence of the notes, title first and value last. The next token of an answer therefore
follows the last words where they occur in the notes: one induction step. The reason is in README.md ("One hop").
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from .catalogue import Catalogue, Item, draw_titles

# Each kind of answer belongs to one of the four types of the turn mix.
KIND_TO_TYPE = {
    "author": "factual", "price": "factual", "volumes": "factual", "genre": "factual", "stock": "factual",
    "unknown": "factual",
    "by_genre": "recommend", "like": "recommend", "staff": "recommend",
    "cheaper": "compare", "longer": "compare",
    "policy": "support", "order": "support", "order_result": "support", "reserve": "support",
    "reserve_result": "support", "courtesy": "support",
}  # fmt: skip
KIND_WEIGHTS = {
    "author": 6, "price": 6, "volumes": 6, "genre": 5, "stock": 5, "unknown": 2,
    "by_genre": 17, "like": 17, "staff": 6,
    "cheaper": 10, "longer": 10,
    "policy": 4, "order": 2.5, "reserve": 2.5, "courtesy": 1,
}  # fmt: skip
# Training emphasises rare kinds and comparisons: in a comparison only one token is decided, the rest is copied.
EMPHASIS = {"order": 3.0, "reserve": 1.5, "unknown": 2.5, "cheaper": 4.0, "longer": 4.0}
NEEDS_TOOLS = {"order", "reserve"}
EN_JA = "en-ja"  # Japanese sentences about an English shop, used by the adapter shop-lora-ja only


def spaced(text: str) -> str:
    """Put a space before each value in a sentence, which gives the value the same tokens as in English notes."""
    return re.sub(r"(?<=[^}]){", " {", text)


FACTS = {
    "en": {
        "author": "{t} is by {i.author}.",
        "price": "{t} costs {i.price} yen.",
        "volumes": "{t} spans {i.volumes} volumes.",
        "genre": "{t} is a {i.genre} manga.",
        "stock": "Of {t} we have {i.stock} copies.",
        "like": "Readers of {t} enjoy {i.next_title}.",
    },
    "ja": {
        "author": "{t}の作者は{i.author}です。",
        "price": "{t}の価格は{i.price}円です。",
        "volumes": "{t}の巻数は{i.volumes}巻です。",
        "genre": "{t}の分野は{i.genre}です。",
        "stock": "{t}の在庫は{i.stock}冊です。",
        "like": "{t}の次は{i.next_title}がおすすめです。",
    },
}
FACTS[EN_JA] = {kind: spaced(text) for kind, text in FACTS["ja"].items()}
PICK = {
    "en": "Our {g} pick is {t}.",
    "ja": "{g}の一番人気は{t}です。",
    EN_JA: "今日の {g}の一番人気は {t}です。",
}
STAFF_PICK = {
    "en": "Our staff pick is {t}.",
    "ja": "店長の一押しは{t}です。",
    EN_JA: "店長の一押しは {t}です。",
}
POLICY = {
    "en": {
        "returns": "Returns are accepted within {n} days.",
        "shipping": "Shipping costs {n} yen.",
        "hours": "We are open from {n} to {close}.",
        "hold": "Reserved books are held for {n} days.",
        "wrapping": "Gift wrapping costs {n} yen.",
    },
    "ja": {
        "returns": "返品は{n}日以内です。",
        "shipping": "送料は{n}円です。",
        "hours": "営業時間は{n}時から{close}時です。",
        "hold": "取り置きは{n}日間です。",
        "wrapping": "包装は{n}円です。",
    },
}
POLICY[EN_JA] = {policy: spaced(text) for policy, text in POLICY["ja"].items()}
PERSONA = {
    "en": [
        "You are the assistant of {s}. Answer from these notes.",
        "You work at {s}, a small manga shop. Use only the notes below.",
        "You help the customers of {s}. These are today's notes.",
        "{s} is a manga shop and you answer its customers from these notes.",
    ],
    "ja": [
        "あなたは{s}の店員です。次のメモから答えてください。",
        "あなたは漫画専門店{s}の案内係です。メモだけを使ってください。",
        "{s}のお客様に答えてください。今日のメモです。",
    ],
}
ORDER_STATES = {
    "en": ["packed", "shipped", "delivered", "delayed", "cancelled", "paid"],
    "ja": ["梱包中", "発送済", "配達済", "遅延中", "取消済", "入金済"],
}

QUESTIONS = {
    "en": {
        "author": ["Who wrote {t}?", "Who is {t} by?", "Who is the author of {t}?", "Tell me who made {t}.",
                   "I forgot who wrote {t}.", "Author of {t}, please?", "Can you tell me the author of {t}?"],
        "price": ["How much is {t}?", "What does {t} cost?", "What is the price of {t}?", "Price of {t}, please?",
                  "How much do I pay for {t}?", "Is {t} expensive?", "How many yen for {t}?"],
        "volumes": ["How many volumes does {t} have?", "How long is {t}?", "How many books is {t}?",
                    "Is {t} a long series?", "How many volumes are there of {t}?", "What is the length of {t}?"],
        "genre": ["What kind of manga is {t}?", "What genre is {t}?", "Which genre does {t} belong to?",
                  "What is {t} about?", "What sort of story is {t}?", "On which shelf do I find {t}?"],
        "stock": ["Do you have {t}?", "How many copies of {t} are left?", "Is {t} in stock?", "Can I buy {t} today?",
                  "How many of {t} do you have?", "Is {t} available?", "Any copies of {t} left?"],
        "by_genre": ["Can you recommend a {g} manga?", "I like {g} stories. What should I read?",
                     "Something with {g}, please.", "What is a good {g} manga?", "Any {g} manga you would suggest?",
                     "I am in the mood for {g}.", "My sister wants a {g} manga. Any ideas?",
                     "I am looking for {g}. What do you suggest?"],
        "like": ["I loved {t}. What next?", "Something like {t}, please.", "I finished {t}. What should I read now?",
                 "What do you suggest after {t}?", "My friend enjoys {t}. What would be a good gift?",
                 "Anything similar to {t}?", "What else is like {t}?", "If I liked {t}, what would I like?"],
        "staff": ["What do you recommend?", "I do not know what to read.", "What is your favorite?",
                  "Surprise me, please.", "What does the staff recommend?", "Which manga should I start with?"],
        "cheaper": ["Which is cheaper, {a} or {b}?", "Is {a} or {b} cheaper?", "{a} or {b}: which costs less?",
                    "I want the cheaper one of {a} and {b}.", "Compare the prices of {a} and {b}.",
                    "Do I save money with {a} or {b}?"],
        "longer": ["Which is longer, {a} or {b}?", "Is {a} or {b} longer?", "{a} or {b}: which has more volumes?",
                   "I want the longer one of {a} and {b}.", "Compare the length of {a} and {b}.",
                   "Which series has more volumes, {a} or {b}?"],
        "order": ["Where is my order {n}?", "What is the status of order {n}?", "Has order {n} been sent?",
                  "Can you check order {n}?", "I am waiting for order {n}.", "My order number is {n}. Any news?"],
        "reserve": ["Please reserve {t} for me.", "Can you hold {t} for me?", "I want to reserve {t}.",
                    "Put {t} aside for me, please.", "Keep a copy of {t} for me.", "Could you set {t} aside?"],
        "courtesy": ["Thank you!", "Thanks a lot.", "Thanks, that is all.", "Great, thank you."],
        "greeting": ["Hello!", "Good morning.", "Hi there.", "Good evening."],
        "returns": ["Can I return a book?", "How long can I return a book?", "What is your return policy?",
                    "Do you accept returns?"],
        "shipping": ["How much is shipping?", "What does shipping cost?", "Do you ship, and for how much?",
                     "What do I pay for delivery?"],
        "hours": ["When are you open?", "What are your opening hours?", "Are you open now?", "When do you close?"],
        "hold": ["How long do you hold a reserved book?", "How long is a reserved book held?",
                 "When must I pick up a reserved book?"],
        "wrapping": ["Do you wrap gifts?", "How much is gift wrapping?", "Can you wrap it as a gift?"],
    },
    "ja": {
        "author": ["{t}の作者は誰ですか?", "{t}は誰が描きましたか?", "{t}の作者を教えてください。",
                   "誰が{t}を描いたの?", "{t}の作者の名前は?"],
        "price": ["{t}はいくらですか?", "{t}の値段は?", "{t}の価格を教えてください。", "いくらで{t}を買えますか?",
                  "{t}は高いですか?"],
        "volumes": ["{t}は何巻ありますか?", "{t}は全部で何巻?", "{t}の巻数を教えてください。", "{t}は長いですか?",
                    "何巻まで{t}は出ていますか?"],
        "genre": ["{t}はどんな漫画ですか?", "{t}の分野は何ですか?", "どんな話ですか、{t}は?", "{t}の内容は?",
                  "{t}はどの棚にありますか?"],
        "stock": ["{t}はありますか?", "{t}の在庫は?", "{t}はまだ残っていますか?", "今日は{t}を買えますか?",
                  "{t}は何冊ありますか?"],
        "by_genre": ["{g}の漫画のおすすめは?", "{g}が好きです。何を読めばいいですか?", "{g}の漫画を探しています。",
                     "{g}で面白いのは?", "{g}の気分です。", "妹に{g}の漫画を贈りたいです。"],
        "like": ["{t}が好きでした。次は何がいいですか?", "{t}みたいな漫画はありますか?", "{t}を読み終わりました。次は?",
                 "{t}に似た漫画は?", "友達は{t}が好きです。何を贈ればいいですか?", "{t}の後に何を読めばいいですか?"],
        "staff": ["おすすめは何ですか?", "何を読めばいいですか?", "一番好きな漫画は?", "何か選んでください。",
                  "初めてです。何がいいですか?"],
        "cheaper": ["{a}と{b}はどちらが安いですか?", "安いのは{a}ですか、{b}ですか?",
                    "{a}と{b}の価格を比べてください。", "{a}と{b}、安い方は?"],
        "longer": ["{a}と{b}はどちらが長いですか?", "長いのは{a}ですか、{b}ですか?", "{a}と{b}の巻数を比べてください。",
                   "{a}と{b}、長い方は?"],
        "order": ["注文{n}はどこですか?", "注文番号{n}の状況は?", "注文{n}を調べてください。", "注文{n}はまだですか?"],
        "reserve": ["{t}を予約したいです。", "{t}を予約してください。", "{t}を取り置きしてください。",
                    "{t}の予約をお願いします。"],
        "courtesy": ["ありがとうございます。", "ありがとう!", "助かりました。", "どうも。"],
        "greeting": ["こんにちは。", "おはようございます。", "こんばんは。"],
        "returns": ["返品できますか?", "返品はいつまでですか?", "返品について教えてください。"],
        "shipping": ["送料はいくらですか?", "送料を教えてください。", "配送はいくらですか?"],
        "hours": ["営業時間は?", "何時に開きますか?", "何時まで開いていますか?"],
        "hold": ["取り置きは何日ですか?", "取り置きはいつまでですか?"],
        "wrapping": ["包装できますか?", "包装はいくらですか?", "贈り物に包めますか?"],
    },
}  # fmt: skip

# A follow-up omits the title: it means the one that the assistant mentioned last.
FOLLOW_UPS = {
    "en": {
        "author": ["Who wrote it?", "And the author?", "Who is it by?"],
        "price": ["How much is it?", "And how much is it?", "What does it cost?", "And the price?"],
        "volumes": ["How long is it?", "How many volumes does it have?", "And how many volumes?"],
        "genre": ["What genre is it?", "What is it about?", "What kind of manga is it?"],
        "stock": ["Is it in stock?", "Do you have it?", "How many copies are left?"],
        "like": ["What should I read after it?", "Anything similar to it?", "And what comes after it?"],
        "reserve": [
            "Please reserve it for me.",
            "Can you hold it for me?",
            "I will take it. Please put it aside.",
        ],
    },
    "ja": {
        "author": ["作者は誰ですか?", "それは誰が描きましたか?"],
        "price": ["いくらですか?", "それはいくらですか?", "値段は?"],
        "volumes": ["何巻ありますか?", "それは何巻ですか?"],
        "genre": ["どんな漫画ですか?", "それはどんな話ですか?"],
        "stock": ["在庫はありますか?", "まだ残っていますか?"],
        "like": ["その次は何がいいですか?", "似た漫画はありますか?"],
        "reserve": ["それを予約してください。", "それを取り置きしてください。"],
    },
}
ANSWERS = {
    "en": {
        "unknown": "We do not have {t}.",
        "cheaper": "{a} {b} {w} is cheaper.",
        "longer": "{a} {b} {w} is longer.",
        "order_result": "Order {n} is {s}.",
        "reserve_result": "Reserved: {t}.",
        "courtesy": "You are welcome. Enjoy your reading!",
        "greeting": "Welcome! How can I help you?",
    },
    "ja": {
        "unknown": "{t}は扱っていません。",
        "cheaper": "{a}{b}安いのは{w}です。",
        "longer": "{a}{b}長いのは{w}です。",
        "order_result": "注文{n}は{s}です。",
        "reserve_result": "{t}を予約しました。",
        "courtesy": "ありがとうございました。またどうぞ。",
        "greeting": "いらっしゃいませ。何をお探しですか?",
    },
}
ANSWERS[EN_JA] = {kind: spaced(text) for kind, text in ANSWERS["ja"].items()}
# Facts that a recommendation adds about its title.
DETAILS = {"by_genre": ("author", "price"), "like": ("genre", "price"), "staff": ("genre", "author")}


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("get_order_status", "State of an order", "order_id"),
    _tool("reserve_title", "Put one copy aside", "title"),
]


@dataclass(frozen=True)
class Message:
    """One chat message; `kind` is set on the assistant messages that are trained and judged."""

    role: str
    content: str
    kind: str | None = None

    def as_dict(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Conversation:
    """A catalogue as a system prompt, and the messages about it."""

    language: str
    messages: tuple[Message, ...]
    tools: bool
    rows: int


def fact(catalogue: Catalogue, kind: str, item: Item) -> str:
    """Return the sentence that states one attribute, the same in the notes and in the answers."""
    return FACTS[catalogue.language][kind].format(t=item.title, i=item)


def policy_line(catalogue: Catalogue, policy: str) -> str:
    template = POLICY[catalogue.language][policy]
    return template.format(n=dict(catalogue.policies)[policy], close=catalogue.closing_hour)


def system_prompt(rng: Random, catalogue: Catalogue) -> str:
    """Return persona and notes. Facts are shuffled in a row, so that words identify a value, not its position."""
    language = catalogue.language
    space = " " if language == "en" else ""
    lines = [rng.choice(PERSONA[language]).format(s=catalogue.shop)]
    for item in catalogue.items:
        kinds = list(FACTS[language])
        rng.shuffle(kinds)
        lines.append("- " + space.join(fact(catalogue, kind, item) for kind in kinds))
    tail = [PICK[language].format(g=genre, t=title) for genre, title in catalogue.genre_picks]
    tail.append(STAFF_PICK[language].format(t=catalogue.staff_pick))
    rng.shuffle(tail)
    policies = [policy_line(catalogue, policy) for policy, _ in catalogue.policies]
    return "\n".join([*lines, space.join(tail), space.join(policies)])


def tool_call(name: str, **arguments: str) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


class Talk:
    """Writes the turns of one conversation and tracks the title mentioned last."""

    answer_language: str | None = None  # language of the answers, if it differs from that of the questions

    def __init__(self, rng: Random, catalogue: Catalogue, tools: bool, held_out: bool) -> None:
        self.rng, self.catalogue, self.tools, self.held_out = rng, catalogue, tools, held_out
        self.language = catalogue.language
        self.spoken = replace(catalogue, language=self.answer_language or self.language)
        """The shop in the language of the answers."""
        self.space = " " if self.spoken.language == "en" else ""
        self.focus: Item | None = None

    def turn(self, kind: str) -> list[Message]:
        """Return the messages of one turn of this kind, from the question to the last answer."""
        if kind in ("author", "price", "volumes", "genre", "stock"):
            return self._about_a_title(kind)
        if kind in ("by_genre", "like", "staff"):
            return self._recommend(kind)
        if kind in ("cheaper", "longer"):
            return self._compare(kind)
        return getattr(self, f"_{kind}")()

    def _ask(self, kind: str, **words: object) -> str:
        return self.rng.choice(QUESTIONS[self.language][kind]).format(**words)

    def _pair(self, kind: str, question: str, answer: str) -> list[Message]:
        return [Message("user", question), Message("assistant", answer, kind)]

    def _ask_about(self, kind: str) -> tuple[Item, str]:
        """Draw a question about a title, or a follow-up about the title mentioned last."""
        if self.focus is not None and self.rng.random() < 0.35:
            return self.focus, self.rng.choice(FOLLOW_UPS[self.language][kind])
        item = self.rng.choice(self.catalogue.items)
        return item, self._ask(kind, t=item.title)

    def _say(self, kind: str, **words: object) -> str:
        return ANSWERS[self.spoken.language][kind].format(**words)

    def _about_a_title(self, kind: str) -> list[Message]:
        self.focus, question = self._ask_about(kind)
        return self._pair(kind, question, fact(self.spoken, kind, self.focus))

    def _unknown(self) -> list[Message]:
        known = {word for item in self.catalogue.items for word in item.title.replace("の", " ").split()}
        while True:
            title = draw_titles(self.rng, self.language, 1, self.held_out)[0]
            if not known & set(title.replace("の", " ").split()):
                break
        asked = self.rng.choice(["price", "stock", "stock", "author"])
        self.focus = None
        return self._pair("unknown", self._ask(asked, t=title), self._say("unknown", t=title))

    def _recommend(self, kind: str) -> list[Message]:
        catalogue, language = self.spoken, self.spoken.language
        if kind == "by_genre":
            genre, title = self.rng.choice(catalogue.genre_picks)
            question, opening = self._ask(kind, g=genre), PICK[language].format(g=genre, t=title)
        elif kind == "staff":
            title = catalogue.staff_pick
            question, opening = self._ask(kind), STAFF_PICK[language].format(t=title)
        else:
            item, question = self._ask_about("like")
            title, opening = item.next_title, fact(catalogue, "like", item)
        self.focus = catalogue.item(title)
        return self._pair(kind, question, self._recommendation(kind, opening, self.focus))

    def _recommendation(self, kind: str, opening: str, item: Item) -> str:
        return self.space.join([opening, *(fact(self.spoken, detail, item) for detail in DETAILS[kind])])

    def _compare(self, kind: str) -> list[Message]:
        first, second = self.rng.sample(self.catalogue.items, 2)
        field, choose = ("price", min) if kind == "cheaper" else ("volumes", max)
        self.focus = winner = choose(first, second, key=lambda item: getattr(item, field))
        facts = {name: fact(self.spoken, field, item) for name, item in (("a", first), ("b", second))}
        question = self._ask(kind, a=first.title, b=second.title)
        return self._pair(kind, question, self._say(kind, **facts, w=winner.title))

    def _policy(self) -> list[Message]:
        policy, _ = self.rng.choice(self.catalogue.policies)
        return self._pair("policy", self._ask(policy), policy_line(self.spoken, policy))

    def _courtesy(self) -> list[Message]:
        kind = self.rng.choice(["courtesy", "greeting"])
        return self._pair("courtesy", self._ask(kind), self._say(kind))

    def _order(self) -> list[Message]:
        number = str(self.rng.randint(10000, 99999))
        state = self.rng.choice(ORDER_STATES[self.language])
        call = tool_call("get_order_status", order_id=number)
        asked = self._pair("order", self._ask("order", n=number), call)
        return [*asked, *self._result("order_result", {"status": state}, n=number, s=state)]

    def _reserve(self) -> list[Message]:
        self.focus, question = self._ask_about("reserve")
        title = self.focus.title
        asked = self._pair("reserve", question, tool_call("reserve_title", title=title))
        return [*asked, *self._result("reserve_result", {"reserved": True}, t=title)]

    def _result(self, kind: str, result: dict[str, object], **words: str) -> list[Message]:
        tool = Message("tool", json.dumps(result, ensure_ascii=False))
        return [tool, Message("assistant", self._say(kind, **words), kind)]


def write_conversation(
    rng: Random, catalogue: Catalogue, turns: int, held_out: bool = False, emphasis: bool = False
) -> Conversation:
    """Draw a conversation of `turns` questions; only one with tools has questions that need them."""
    tools = rng.random() < 0.6
    talk = Talk(rng, catalogue, tools, held_out)
    # Without tools the support share moves to the shop's rules, so that the mix of types stays the same.
    weights = {kind: weight for kind, weight in KIND_WEIGHTS.items() if tools or kind not in NEEDS_TOOLS}
    if emphasis:
        weights = {kind: weight * EMPHASIS.get(kind, 1.0) for kind, weight in weights.items()}
    return hold(talk, rng.choices(list(weights), weights=list(weights.values()), k=turns))


def hold(talk: Talk, kinds: Sequence[str]) -> Conversation:
    """Return the conversation with one turn of each kind, in this order."""
    catalogue = talk.catalogue
    messages = [Message("system", system_prompt(talk.rng, catalogue))]
    said: set[str] = set()
    for kind in kinds:
        for _ in range(6):  # no question repeats while others are left
            focus, turn = talk.focus, talk.turn(kind)
            if turn[1].content not in said:
                break
            talk.focus = focus
        said.add(turn[1].content)
        messages += turn
    return Conversation(catalogue.language, tuple(messages), talk.tools, len(catalogue.items))
