"""Race of the lab block-manager: seconds for the same calls, in turns, each manager in a process of its own."""

from __future__ import annotations

from statistics import median

from lessons.given.block_load import LOADS
from lessons.labs.identity import same_tokens
from lessons.labs.racing import Race, racer

ROUNDS = 7


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows: list[tuple[str, ...]] = []
    ratios = []
    with racer(yours) as your_guest, racer(ours) as our_guest:
        contestants = [(guest, guest.get("BlockManager")) for guest in (your_guest, our_guest)]
        for load in (*LOADS, f"drawn by seed {seed}"):
            seconds = [
                [
                    guest.call("lessons.given.block_load:seconds_of", make, load, seed)
                    for guest, make in contestants
                ]
                for _ in range(ROUNDS)
            ]
            ratio = median(mine / theirs for mine, theirs in seconds)
            mine, theirs = (1e3 * median(each) for each in zip(*seconds, strict=True))
            rows += [(load, "yours", f"{mine:.2f} ms"), (load, "ours", f"{theirs:.2f} ms")]
            ratios.append(ratio)
        tokens = same_tokens("block-manager", your_guest)
    says = f"your time over ours, the worst of {len(ratios)} loads; less is better, 1 is equal"
    return Race(("load", "manager", "time"), rows, max(ratios), says, tokens=tokens)
