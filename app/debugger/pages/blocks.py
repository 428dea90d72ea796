"""Page Blocks: one block's hash chain, owners and history; the prefix tree; the eviction order."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.debugger import session
from app.debugger.charts.rects import Rect, rect_chart
from app.debugger.colours import BLOCK_SWATCHES
from app.debugger.page_frame import choose, legend, number_box, opened, plain, row_table, run_page
from app.debugger.runs import Run
from app.debugger.views.contents import Contents, Place, short
from app.debugger.views.one_block import MEANING, Chain, chain, history, last_touch
from app.debugger.views.prefix_tree import Box, Node, icicle, prefix_tree
from app.debugger.views.texts import Speller, shortened, speller, text_of
from engine.trace.blocks import NULL_BLOCK
from engine.trace.format import shown_name
from prep_common.text import counted

MAX_ROWS = 70
MAX_QUEUE = 500
MAX_TEXT, MAX_TEXT_BLOCKS = 240, 16
"""Characters and blocks of a node's text."""
MANY = 20_000
"""Above this number of published blocks the tree initially shows held blocks only: cached ones take seconds."""
SMALL = {
    name: st.column_config.Column(width="small")
    for name in ("entry", "block", "hash", "place", "step", "event", "refs")
}
SWATCHES = [
    (BLOCK_SWATCHES["shared"], "shared by several"),
    (BLOCK_SWATCHES["used"], "held by one"),
    (BLOCK_SWATCHES["cached"], "cached and free: a prefix hit can reuse it"),
    (BLOCK_SWATCHES["gone"], "gone: evicted, later blocks of the sequence cannot be hit"),
]


WANTED = {
    "all": {"shared", "used", "cached", "gone"},
    "held": {"shared", "used"},
    "shared": {"shared"},
    "cached and free": {"cached"},
}
"""A tree is shown if one of its nodes has one of these states."""


@st.cache_resource(max_entries=8, show_spinner=False)
def _digests(run_id: str, version: int) -> dict[int, list[bytes]]:
    """Digests per request, kept between steps."""
    return {}


@st.cache_resource(max_entries=8, show_spinner="Reading the blocks …")
def _contents(run_id: str, num_steps: int, version: int, step: int, _run: Run) -> Contents:
    reader = _run.reader(step)
    return Contents(reader, step, _digests(run_id, id(reader)))


@st.cache_resource(max_entries=8, show_spinner="Building the tree …")
def _trees(
    run_id: str, num_steps: int, version: int, step: int, cached: bool, _contents: Contents
) -> list[Node]:
    return prefix_tree(_contents, with_cached=cached)


def show() -> None:
    run_page("Blocks & prefix tree", _show)


def _show(run: Run) -> None:
    index = run.index
    size = f"{counted(index.num_blocks - 1, 'block')} of {index.block_size} tokens and the null block 0"
    step = opened(run, "Blocks & prefix tree", "blocks", size)
    if step is None:
        return
    contents = _contents(run.run_id, index.num_steps, id(run), step, run)
    spell = speller(index.header)
    block = _block_box(index.num_blocks - 1)
    if block is not None:
        _show_block(contents, block, spell)
    st.header(f"Prefix tree after step {step:,}", anchor=False)
    _show_tree(run, contents, block, spell)
    st.header("Eviction order", anchor=False)
    _show_queue(contents, spell)


def _block_box(most: int) -> int | None:
    chosen = session.selection().block
    if chosen is not None and chosen > most:
        st.warning(f"There is no block {chosen}: they go from 0 to {most:,}.")
        chosen = None
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="blocks_block_bar"):
        block = number_box("Block", most, chosen, "blocks_block")
        if chosen is None:
            st.caption("Choose a block here, in the tree or in the eviction order.", width="content")
    if block != chosen:
        choose(block=block)
    return chosen


def _show_block(contents: Contents, block: int, spell: Speller | None) -> None:
    if block == NULL_BLOCK:
        st.info(
            "Block 0 is the null block: it is never allocated and stands for blocks behind a sliding window."
        )
        return
    hash_chain = chain(contents, block)
    st.markdown(_facts(contents, block, hash_chain))
    with st.container(key="blocks_split"):
        links, events = st.columns(2)
    with links:
        if (place := contents.place(block)) is not None:
            _show_content(contents, place, spell)
        if hash_chain is not None:
            _show_chain(contents, hash_chain)
    with events:
        _show_history(contents, block)


def _facts(contents: Contents, block: int, hash_chain: Chain | None) -> str:
    """Describe a block after the step in sentences."""
    ref, hashed = contents.blocks.ref[block], contents.blocks.hash[block]
    if owners := contents.owners.get(block):
        names = [f"{plain(contents.name(place.number))} (entry {place.index})" for place in owners]
        text = f"is held by {', '.join(names)}: reference count {ref}"
    elif ref:
        text = f"is held by a transfer: reference count {ref}"
    elif hashed:
        text = "is free and cached: no request holds it, but a prefix hit can reuse it"
    else:
        text = "is free and not cached"
    no_hash = "No hash: not full, not published, or published as another block."
    touched = last_touch(contents, block)
    sentences = [
        f"**Block {block}** {text}.",
        f"Hash `{short(hashed)}`." if hashed else no_hash,
        "It was never used." if touched is None else f"Last used in step {touched}.",
    ]
    if hash_chain is not None and hashed and not hash_chain.is_reachable:
        gone = next(link.index for link in hash_chain.links if not link.is_published)
        sentences.append(
            f"**A prefix hit cannot reach it**: block {gone} of its sequence is not in the cache."
        )
    return " ".join(sentences)


def _show_content(contents: Contents, place: Place, spell: Speller | None) -> None:
    tokens, size = contents.tokens(place), contents.reader.block_size
    first = place.index * size
    where = f"tokens {first} to {first + len(tokens) - 1} of {contents.name(place.number)}"
    room = "" if len(tokens) == size else f"; room for {size - len(tokens)} more"
    st.caption(f"Holds {plain(where)}{room}")
    st.code(text_of(tokens, spell) or "no token yet", language=None, wrap_lines=True)


def _show_chain(contents: Contents, hash_chain: Chain) -> None:
    """List the chain from its root; choosing a row selects its block."""
    rows = [
        {
            "entry": link.index,
            "hash": short(link.hash),
            "block": link.block,
            "state": _state(contents, link.block, link.is_published),
            "held by": ", ".join(
                contents.name(place.number) for place in contents.owners.get(link.block or 0, [])
            ),
        }
        for link in hash_chain.links
    ]
    st.caption(
        f"Hash chain from the root in the sequence of {plain(contents.name(hash_chain.place.number))}. Each hash "
        "covers its block and all earlier ones. The last row is the chosen block. Children: "
        f"{', '.join(map(str, hash_chain.children)) or 'none'}."
    )
    frame = pd.DataFrame(rows).astype({"block": "Int64"})
    key = f"blocks_chain_{contents.step}_{hash_chain.links[-1].block}"
    alt = f"Chain of {counted(len(rows), 'block')} from the root to the chosen block"
    row = row_table(frame, key, alt, max_height=250, column_config=SMALL)
    if row is not None and (block := hash_chain.links[row].block) is not None:
        choose(block=block)
    if hash_chain.children:
        with st.container(horizontal=True, gap="small"):
            for child in hash_chain.children[:8]:
                name, key = f"→ block {child:,}", f"blocks_child_{child}"
                if st.button(name, key=key, help="A block with the next content"):
                    choose(block=child)


def _state(contents: Contents, block: int | None, is_published: bool) -> str:
    if block is None:
        return "gone"
    if owners := contents.owners.get(block):
        state = "● shared" if len(owners) > 1 else "held"
        return state if is_published else f"{state}, not published"
    return "▨ cached, free" if is_published else "free"


def _show_history(contents: Contents, block: int) -> None:
    events = history(contents.reader, block)
    count = counted(len(events), "event")
    st.caption(f"{count} of block {block:,} in the whole run; choose one to go to its step.")
    if not events:
        return
    rows = [
        {
            "step": event.step,
            "event": event.kind,
            "request": "—" if event.number is None else contents.name(event.number),
            "refs": event.ref,
            "hash": (event.hash_hex or "—")[:8],
            "meaning": MEANING[event.kind],
        }
        for event in events
    ]
    alt = f"{counted(len(rows), 'event')} of block {block} with steps and requests"
    columns = {
        name: st.column_config.Column(width=width)
        for name, width in (("step", 48), ("event", 52), ("request", 80), ("refs", 40), ("hash", 76))
    }
    columns["meaning"] = st.column_config.TextColumn(width=250)
    key = f"blocks_history_{block}"
    row = row_table(rows, key, alt, max_height=360, column_config=columns)
    if row is not None:
        choose(step=events[row].step)


def _show_tree(run: Run, contents: Contents, block: int | None, spell: Speller | None) -> None:
    usual = "all" if len(contents.block_of) <= MANY else "held"
    which = st.segmented_control("Blocks", list(WANTED), default=usual, key="blocks_tree_kind") or usual
    with_cached = which in ("all", "cached and free")
    trees = _trees(run.run_id, run.index.num_steps, id(run), contents.step, with_cached, contents)
    trees = [tree for tree in trees if WANTED[which] & {node.state for node in tree.walk()}]
    if not trees:
        st.caption("No such blocks after this step.")
        return
    boxes, num_hidden = icicle(trees, MAX_ROWS)
    legend(SWATCHES)
    nodes = [node for tree in trees for node in tree.walk()]
    used = sum(node.num_blocks for node in nodes if node.owners)
    refs = sum(node.num_refs for node in nodes)
    picked = None
    if st.toggle("Show as table", key="blocks_tree_table"):
        _show_tree_table(contents, boxes, spell)
    else:
        picked = rect_chart(
            [_rect(contents, number, box, spell) for number, box in enumerate(boxes)],
            x=(0, max(box.right for box in boxes)),
            unit="block of the sequence",
            alt=f"Tree of shared prefixes after step {contents.step}: {counted(len(trees), 'sequence')} from "
            f"the root, {used} "
            f"blocks held; without sharing {refs} would be needed. The table lists the same nodes.",
            hint="Width: number of blocks. Rows: requests whose sequences diverge. Click a node for its owners.",
            chosen=next((n for n, box in enumerate(boxes) if block and block in box.node.every_block), None),
            row_height=26 if boxes[-1].bottom <= 14 else 18,
            key="blocks_tree",
        )
    hidden = f" {num_hidden} smaller trees are not drawn." if num_hidden else ""
    are_held = "block is" if used == 1 else "blocks are"
    st.caption(f"{used:,} {are_held} held; without sharing {refs:,} would be needed.{hidden}")
    if picked is not None:
        box = boxes[int(picked.id)]
        column = min(max((picked.x or box.left) - box.left, 0), len(box.node.blocks) - 1)
        st.session_state["blocks_node"] = (contents.step, int(picked.id))
        if box.node.blocks[column]:
            choose(block=box.node.blocks[column][0])
    at_step, chosen = st.session_state.get("blocks_node", (None, 0))
    if at_step == contents.step and chosen < len(boxes):
        node = boxes[chosen].node
        title, more = plain(_title(contents, node)), max(0, len(node.every_block) - 40)
        listed = ", ".join(map(str, node.every_block[:40])) + (f" and {more} more" if more else "")
        st.markdown(f"**{title[:1].upper()}{title[1:]}**. Blocks: {listed or 'none'}.")


def _rect(contents: Contents, number: int, box: Box, spell: Speller | None) -> Rect:
    text = node_text(contents, box.node, spell)
    names = [shown_name(contents.name(owner)) for owner in box.node.owners]
    label = f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0] if names else box.node.state
    if text:  # without owners the texture tells the state
        label = f"{label if names else ''}\n{text}"
    title = f"{_title(contents, box.node)}: {text}" if text else _title(contents, box.node)
    return Rect(box.left, box.right, box.top, box.bottom, box.node.state, label, title, number)


def node_text(contents: Contents, node: Node, spell: Speller | None) -> str:
    """The beginning of the text of a node's blocks; token ids without the tokenizer. A node whose tokens are not
    computed yet has none."""
    tokens: list[int] = []
    for index in range(node.depth, node.depth + min(len(node.contents), MAX_TEXT_BLOCKS)):
        tokens += contents.tokens(Place(node.place.number, index))
    return shortened(text_of(tokens, spell), MAX_TEXT)


def _title(contents: Contents, node: Node) -> str:
    names = [contents.name(owner) for owner in node.owners]
    who = f"held by {', '.join(names[:6])}" + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    if not names:
        who = "cached and free" if node.state == "cached" else "evicted"
    count = len(node.contents)
    copies = f", {node.num_blocks} copies" if node.num_blocks > count else ""
    entries = f"entry {node.depth}" if count == 1 else f"entries {node.depth} to {node.depth + count - 1}"
    return f"{entries}: {counted(count, 'block')}{copies}, {who}"


def _show_tree_table(contents: Contents, boxes: list[Box], spell: Speller | None) -> None:
    rows = [
        {
            "from entry": box.node.depth,
            "blocks": box.node.num_blocks,
            "text": node_text(contents, box.node, spell),
            "state": box.node.state,
            "references each": len(box.node.owners),
            "owners": ", ".join(contents.name(owner) for owner in box.node.owners),
            "first block": next(iter(box.node.every_block), None),
        }
        for box in boxes
    ]
    frame = pd.DataFrame(rows).astype({"first block": "Int64"})
    st.dataframe(frame, hide_index=True, height=300, alt="Nodes of the prefix tree")


def _show_queue(contents: Contents, spell: Speller | None) -> None:
    free = contents.blocks.free_queue()
    num_cached = sum(bool(contents.blocks.hash[block]) for block in free)
    st.caption(
        f"{counted(len(free), 'free block')} in the order of reuse; {num_cached:,} of them hold cached "
        "content. A freed block "
        "with cached content joins at the back, so the least recently used is evicted first; one without joins at the "
        "front."
    )
    only_cached = st.toggle("Only blocks with cached content", key="blocks_queue_cached")
    queue = contents.eviction_order(only_cached)[:MAX_QUEUE]
    if not queue:
        st.caption("None.")
        return
    rows = [
        {
            "place": place,
            "block": block,
            "hash": short(contents.blocks.hash[block]),
            "holds": _holds(contents, block, spell),
        }
        for place, block in queue
    ]
    alt = f"The first {len(rows)} of {len(free)} free blocks in eviction order"
    columns = SMALL | {"holds": st.column_config.TextColumn(width="large")}
    row = row_table(rows, f"blocks_queue_{contents.step}_{only_cached}", alt, column_config=columns)
    if len(queue) == MAX_QUEUE:
        st.caption(f"The first {MAX_QUEUE} are listed.")
    if row is not None:
        choose(block=queue[row][1])


def _holds(contents: Contents, block: int, spell: Speller | None) -> str:
    if not contents.blocks.hash[block]:
        return "nothing"
    place = contents.place(block)
    if place is None:
        return "content from a transfer"
    tokens = contents.tokens(place)
    text = text_of(tokens if spell else tokens[:8], spell)
    return f"entry {place.index} of {contents.name(place.number)}: {shortened(text, 80)}"
