"""Invented shops: titles, people, prices. All names are invented, so a model cannot know them from elsewhere.

A catalogue is small (2 to 10 titles) and its words are distinctive: no two titles in it share a word, so the last
word before a fact names exactly one row.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random

Language = str  # "en" or "ja"

ADJECTIVES = {
    "en": """Silver Glass Paper Crimson Hidden Quiet Golden Frozen Velvet Broken Lonely Burning Distant Hollow Gentle
    Midnight Copper Winter Summer Autumn Secret Falling Painted Wandering Electric Crystal Forgotten Scarlet Iron
    Little Northern Southern Rainy Sleeping Dancing Stolen Seventh Last Final Morning Cloudy Amber Emerald Salted
    Crooked Wooden Lucky Brave Honest Stray Moonlit Violet Marble Borrowed Blue White Black Green Rusty Tiny""".split(),
    "ja": """銀 硝子 月夜 真夏 青空 黄昏 星屑 雪国 深海 氷 炎 風 春 秋 北 西 古都 未来 幻 影 森 雨 朝 黄金 鉄 花 竜 狐
    南 東 虹 霧 砂 雷 天空 深夜 放課後 七色 秘密 小町""".split(),
}
# No word mixes scripts: the tokenizer would split it, and a title's last word must stay one piece.
NOUNS = {
    "en": """Harbor Orchard Lantern Garden Bridge River Castle Library Compass Kitchen Station Mountain Island Forest
    Mirror Clock Letter Train Window Crown Sword Detective Painter Violin Piano Teacup Bakery Umbrella Lighthouse
    Market Voyage Promise Shadow Feather Fox Crane Tiger Dragon Rabbit Sparrow Wolf Whale Moon Star Comet Planet
    Engine Circus Theater Archive Diary Atlas Signal Melody Anthem Festival Carnival Desert Valley Tower Temple Palace
    Workshop Anchor Sailor Captain Knight Witch Doctor Tailor Gardener Stranger Runner Rival Circle Cipher Puzzle
    Riddle Recipe Noodle Dumpling Journey""".split(),
    "ja": """港 庭 図書館 剣士 探偵 航海 食堂 列車 迷宮 手紙 時計 灯台 橋 塔 城 鏡 傘 鍵 王国 約束 旅人 画家 医師 船長
    騎士 楽団 劇場 工房 市場 神社 駅 島 山 谷 川 翼 狼 鶴 鯨 猫 彗星 惑星 方程式 暗号 日記 地図 合図 旋律 ギター
    ピアノ ランタン サーカス コンパス レシピ パズル""".split(),
}
FAMILY = {
    "en": """Sato Mori Tanaka Kondo Ito Hayashi Ueda Okada Kimura Sasaki Fujita Maeda Ogawa Hara Endo Arai Nomura
    Sakai Kojima Ishida Imai Matsui Kudo Noda""".split(),
    "ja": """佐藤 森 田中 近藤 伊藤 林 上田 岡田 木村 前田 小川 原 遠藤 新井 野村 酒井 石田 今井 松井 工藤 野田 高木
    村上 中島""".split(),
}
GIVEN = {
    "en": """Mika Ren Yuki Aoi Sora Haru Nao Kei Emi Taro Jun Rika Shin Mai Kenji Yumi Akira Hana Ryo Saki Daiki Nana
    Goro Toru""".split(),
    "ja": """ミカ レン ユキ アオイ ソラ ハル ナオ ケイ エミ タロウ ジュン リカ シン マイ ケンジ ユミ アキラ ハナ リョウ
    サキ ダイキ ナナ ゴロウ トオル""".split(),
}
GENRES = {
    "en": "mystery romance comedy fantasy horror sports cooking history music school robot ghost".split(),
    "ja": "推理 恋愛 コメディ ファンタジー ホラー スポーツ 料理 歴史 音楽 学園 ロボット 怪談".split(),
}
SHOPS = {
    "en": [
        "Kitsune Books", "Lantern Lane Manga", "Page Turner", "Tanuki Comics", "Corner Panel", "Blue Door Books",
    ],
    "ja": "きつね書店 たぬき堂 あおぞら書店 ことり文庫 まんが横丁 ひだまり書房".split(),
}  # fmt: skip
POLICIES = ("returns", "shipping", "hours", "hold", "wrapping")


@dataclass(frozen=True)
class Item:
    """One row of the shop: all facts about a title."""

    title: str
    author: str
    genre: str
    price: int
    volumes: int
    stock: int
    next_title: str  # title that readers of this one also enjoy


@dataclass(frozen=True)
class Catalogue:
    """One shop on one day."""

    language: Language
    shop: str
    items: tuple[Item, ...]
    genre_picks: tuple[tuple[str, str], ...]  # (genre, recommended title), one for each genre on the shelves
    staff_pick: str
    policies: tuple[tuple[str, int], ...]  # (policy, its number)
    closing_hour: int

    def item(self, title: str) -> Item:
        return next(item for item in self.items if item.title == title)


def join_title(language: Language, adjective: str, noun: str) -> str:
    return f"{adjective} {noun}" if language == "en" else f"{adjective}の{noun}"


def is_held_out(title: str) -> bool:
    """Whether a title is reserved for validation and test: a fixed tenth of the word combinations."""
    return zlib.crc32(title.encode()) % 10 == 0


def _distinct_numbers(rng: Random, count: int, leading: list[int], width: int) -> list[int]:
    """Draw distinct numbers whose leading digits mostly differ, so that the first digit decides most comparisons."""
    digits = rng.sample(leading, min(count, len(leading)))
    while len(digits) < count or (count > 2 and rng.random() < 0.15):
        digits = digits[: count - 1]
        digits.append(rng.choice(digits))
    rng.shuffle(digits)
    numbers: list[int] = []
    for digit in digits:
        numbers.append(rng.choice([n for n in range(10 * digit, 10 * digit + 10) if n not in numbers]))
    return [number * 10 ** (width - 2) for number in numbers]


def draw_titles(rng: Random, language: Language, count: int, held_out: bool) -> list[str]:
    """Draw `count` titles without common words, all from one side of the train/test split."""
    adjectives, nouns = list(ADJECTIVES[language]), list(NOUNS[language])
    titles: list[str] = []
    while len(titles) < count:
        adjective, noun = rng.choice(adjectives), rng.choice(nouns)
        title = join_title(language, adjective, noun)
        if is_held_out(title) == held_out:
            titles.append(title)
            adjectives.remove(adjective)
            nouns.remove(noun)
    return titles


def draw_catalogue(rng: Random, language: Language, rows: int, held_out: bool = False) -> Catalogue:
    """Draw a shop with `rows` titles."""
    titles = draw_titles(rng, language, rows, held_out)
    genres = rng.sample(GENRES[language], min(max(2, (rows + 1) // 2), 5))
    shelf = genres[:rows] + rng.choices(genres, k=max(0, rows - len(genres)))
    authors = _draw_people(rng, language, rows)
    prices = _distinct_numbers(rng, rows, [2, 3, 4, 5, 6, 7, 8, 9], width=3)
    volumes = _distinct_numbers(rng, rows, [1, 2, 3, 4, 5, 6, 7, 8, 9], width=2)
    order = rng.sample(titles, rows)  # a ring: no title recommends itself
    following = dict(zip(order, order[1:] + order[:1], strict=True))
    items = tuple(
        Item(title, author, genre, price, count, rng.randint(2, 9), following[title])
        for title, author, genre, price, count in zip(titles, authors, shelf, prices, volumes, strict=True)
    )
    present = list(dict.fromkeys(item.genre for item in items))
    picks = tuple((g, rng.choice([item.title for item in items if item.genre == g])) for g in present)
    numbers = {
        "returns": rng.randint(5, 30),
        "shipping": rng.randint(20, 99) * 10,
        "hours": rng.randint(7, 11),
        "hold": rng.randint(2, 9),
        "wrapping": rng.randint(5, 19) * 10,
    }
    kept = rng.sample(POLICIES, rng.randint(2, min(4, rows + 1)))
    policies = tuple((policy, numbers[policy]) for policy in kept)
    shop, staff_pick = rng.choice(SHOPS[language]), rng.choice(titles)
    return Catalogue(language, shop, items, picks, staff_pick, policies, closing_hour=rng.randint(17, 22))


def _draw_people(rng: Random, language: Language, count: int) -> list[str]:
    families, givens = rng.sample(FAMILY[language], count), rng.sample(GIVEN[language], count)
    pairs = zip(families, givens, strict=True)
    return [f"{given} {family}" if language == "en" else f"{family}{given}" for family, given in pairs]
