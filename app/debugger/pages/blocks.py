"""Page Blocks: one block's hash chain, owners and history; the prefix tree; the eviction order."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.debugger import session
from app.debugger.charts.rects import Rect, rect_chart
from app.debugger.colours import BLOCK_SWATCHES
from app.debugger.page_frame import choose_step, heading, legend, plain, row_table, run_page, step_bar
from app.debugger.runs import Run
from app.debugger.views.block_history import MEANING, history, last_touch
from app.debugger.views.contents import Contents, request_names, short
from app.debugger.views.eviction import Free, eviction_order
from app.debugger.views.hash_chain import Chain, chain
from app.debugger.views.prefix_tree import Box, Node, icicle, prefix_tree
from app.debugger.views.texts import Speller, speller, visible
from engine.trace.blocks import NULL_BLOCK

MAX_ROWS = 70
MAX_QUEUE = 500
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
    heading(
        "Blocks & prefix tree",
        run,
        f"{index.num_blocks - 1:,} blocks of {index.block_size} tokens and the null block 0",
    )
    if not index.num_steps:
        st.info("This run has no steps yet.")
        return
    step = step_bar(run, "blocks")
    contents = _contents(run.run_id, index.num_steps, id(run), step, run)
    spell = speller(index.header)
    block = _block_box(run, contents)
    if block is not None:
        _show_block(run, contents, block, spell)
    st.subheader(f"Prefix tree after step {step:,}", anchor=False)
    _show_tree(run, contents, block, spell)
    st.subheader("Eviction order", anchor=False)
    _show_queue(contents, spell)


# ---------------------------------------------------------------------- one block


def _block_box(run: Run, contents: Contents) -> int | None:
    most = run.index.num_blocks - 1
    chosen = session.selection().block
    if chosen is not None and chosen > most:
        st.warning(f"There is no block {chosen}: they go from 0 to {most:,}.")
        chosen = None
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="blocks_block_bar"):
        st.markdown("Block", width="content")
        block = st.number_input(
            f"Block, 0 to {most:,}",
            0,
            most,
            chosen,
            key=f"blocks_block_{chosen}",
            placeholder="none",
            width=120,
            label_visibility="collapsed",
        )
        st.caption(f"of 0 to {most:,}", width="content")
        if chosen is None:
            st.caption("Choose a block here, in the tree or in the eviction order.", width="content")
    if block != chosen:
        session.select(block=None if block is None else int(block))
        st.rerun()
    return chosen


def _choose_block(block: int) -> None:
    if session.selection().block != block:
        session.select(block=block)
        st.rerun()


def _show_block(run: Run, contents: Contents, block: int, spell: Speller | None) -> None:
    if block == NULL_BLOCK:
        st.info(
            "Block 0 is the null block: it is never allocated and stands for blocks behind a sliding window."
        )
        return
    found = chain(contents, block)
    st.markdown(_facts(contents, block, found))
    links, events = st.columns([3, 2])
    with links:
        _show_content(contents, block, spell)
        if found is not None:
            _show_chain(contents, found)
    with events:
        _show_history(contents, block)


def _facts(contents: Contents, block: int, found: Chain | None) -> str:
    """Describe a block after the step in sentences."""
    owners = contents.owners.get(block, [])
    hashed = contents.blocks.hash[block]
    if owners:
        names = ", ".join(
            f"{plain(contents.reader.requests[place.number].request_id)} (entry {place.index})"
            for place in owners
        )
        text = f"**Block {block}** is held by {names}: reference count {contents.blocks.ref[block]}. "
    elif contents.blocks.ref[block]:
        text = f"**Block {block}** is held by a transfer: reference count {contents.blocks.ref[block]}. "
    elif hashed:
        text = f"**Block {block}** is free and cached: no request holds it, but a prefix hit can reuse it. "
    else:
        text = f"**Block {block}** is free and not cached. "
    text += (
        f"Hash `{short(hashed)}`. "
        if hashed
        else "No hash: not full, not published, or published as another block. "
    )
    touched = last_touch(contents, block)
    text += "It was never used." if touched is None else f"Last used in step {touched}."
    if found is not None and hashed and not found.is_reachable:
        gone = next(link.index for link in found.links if not link.is_published)
        text += f" **A prefix hit cannot reach it**: block {gone} of its sequence is not in the cache."
    return text


def _show_content(contents: Contents, block: int, spell: Speller | None) -> None:
    place = contents.place(block)
    if place is None:
        return
    tokens = contents.tokens(place)
    request = contents.reader.requests[place.number].request_id
    size = contents.reader.block_size
    where = f"tokens {place.index * size} to {place.index * size + len(tokens) - 1} of {request}"
    st.caption(
        f"Holds {plain(where)}" + ("" if len(tokens) == size else f"; room for {size - len(tokens)} more")
    )
    text = visible("".join(map(spell, tokens))) if spell else " ".join(map(str, tokens))
    st.code(text or "no token yet", language=None, wrap_lines=True)


def _show_chain(contents: Contents, found: Chain) -> None:
    """List the chain from its root; choosing a row selects its block."""
    rows = [
        {
            "entry": link.index,
            "hash": short(link.hash),
            "block": link.block,
            "state": _state(contents, link.block, link.is_published),
            "held by": ", ".join(_owner_names(contents, link.block)),
        }
        for link in found.links
    ]
    name = plain(contents.reader.requests[found.place.number].request_id)
    st.caption(
        f"Hash chain from the root in the sequence of {name}. Each hash covers its block and all earlier ones. The "
        f"last row is the chosen block. Children: {', '.join(map(str, found.children)) or 'none'}."
    )
    row = row_table(
        pd.DataFrame(rows).astype({"block": "Int64"}),
        f"blocks_chain_{contents.step}_{found.links[-1].block}",
        f"Chain of {len(rows)} blocks from the root to the chosen block",
        max_height=250,
        column_config=SMALL,
    )
    if row is not None and (block := found.links[row].block) is not None:
        _choose_block(block)
    if found.children:
        with st.container(horizontal=True, gap="small"):
            for child in found.children[:8]:
                if st.button(
                    f"→ block {child:,}", key=f"blocks_child_{child}", help="A block with the next content"
                ):
                    _choose_block(child)


def _state(contents: Contents, block: int | None, is_published: bool) -> str:
    if block is None:
        return "gone"
    if contents.owners.get(block):
        state = "● shared" if len(contents.owners[block]) > 1 else "held"
        return state if is_published else f"{state}, not published"
    return "▨ cached, free" if is_published else "free"


def _owner_names(contents: Contents, block: int | None) -> list[str]:
    owners = contents.owners.get(block or 0, [])
    return request_names(contents.reader, [place.number for place in owners])


def _show_history(contents: Contents, block: int) -> None:
    events = history(contents.reader, block)
    count = f"{len(events):,} {'event' if len(events) == 1 else 'events'}"
    st.caption(f"{count} of block {block:,} in the whole run; choose one to go to its step.")
    if not events:
        return
    rows = [
        {
            "step": event.step,
            "event": event.kind,
            "request": "—" if event.number is None else contents.reader.requests[event.number].request_id,
            "refs": event.ref,
            "hash": (event.hash_hex or "—")[:8],
            "meaning": MEANING[event.kind],
        }
        for event in events
    ]
    alt = f"{len(rows)} events of block {block} with steps and requests"
    row = row_table(rows, f"blocks_history_{block}", alt, max_height=360, column_config=SMALL)
    if row is not None:
        choose_step(events[row].step)


# ---------------------------------------------------------------------- all blocks


def _show_tree(run: Run, contents: Contents, block: int | None, spell: Speller | None) -> None:
    usual = "all" if len(contents.block_of) <= MANY else "held"
    which = st.segmented_control(
        "Blocks", ["all", "held", "shared", "cached and free"], default=usual, key="blocks_tree_kind"
    )
    which = which or usual
    trees = _trees(
        run.run_id, run.index.num_steps, id(run), contents.step, which in ("all", "cached and free"), contents
    )
    trees = [tree for tree in trees if _wanted(tree, which)]
    if not trees:
        st.caption("No such blocks after this step.")
        return
    boxes, num_hidden = icicle(trees, MAX_ROWS)
    end = max(box.right for box in boxes)
    legend(SWATCHES)
    rects = [_rect(contents, number, box, spell) for number, box in enumerate(boxes)]
    used = sum(node.num_blocks for tree in trees for node in tree.walk() if node.owners)
    refs = sum(node.num_refs for tree in trees for node in tree.walk())
    alt = (
        f"Tree of shared prefixes after step {contents.step}: {len(trees)} sequences from the root, {used} blocks "
        f"held; without sharing {refs} would be needed. The table lists the same nodes."
    )
    if st.toggle("Show as table", key="blocks_tree_table"):
        _show_tree_table(contents, boxes)
        picked = None
    else:
        picked = rect_chart(
            rects,
            x=(0, end),
            unit="block of the sequence",
            alt=alt,
            hint="Width: number of blocks. Rows: requests whose sequences diverge. Click a node for its owners.",
            chosen=next(
                (n for n, box in enumerate(boxes) if block and any(block in b for b in box.node.blocks)), None
            ),
            row_height=20 if boxes[-1].bottom <= 24 else 12,
            key="blocks_tree",
        )
    st.caption(
        f"{used:,} {'block is' if used == 1 else 'blocks are'} held; without sharing {refs:,} would be needed."
        + (f" {num_hidden} smaller trees are not drawn." if num_hidden else "")
    )
    if picked is not None:
        box = boxes[int(picked.id)]
        column = min(max((picked.x or box.left) - box.left, 0), len(box.node.blocks) - 1)
        st.session_state["blocks_node"] = (contents.step, int(picked.id))
        if box.node.blocks[column]:
            _choose_block(box.node.blocks[column][0])
    at_step, chosen = st.session_state.get("blocks_node", (None, 0))
    if at_step == contents.step and chosen < len(boxes):
        st.markdown(_describe(contents, boxes[chosen].node))


def _wanted(tree: Node, which: str) -> bool:
    states = {node.state for node in tree.walk()}
    if which == "shared":
        return "shared" in states
    if which == "cached and free":
        return "cached" in states
    return which == "all" or bool(states & {"shared", "used"})


def _rect(contents: Contents, number: int, box: Box, spell: Speller | None) -> Rect:
    node = box.node
    names = request_names(contents.reader, node.owners)
    label = f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0] if names else node.state
    return Rect(box.left, box.right, box.top, box.bottom, node.state, label, _title(contents, node), number)


def _title(contents: Contents, node: Node) -> str:
    names = request_names(contents.reader, node.owners)
    who = f"held by {', '.join(names[:6])}" + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    if not names:
        who = "cached and free" if node.state == "cached" else "evicted"
    count = len(node.contents)
    copies = f", {node.num_blocks} copies" if node.num_blocks > count else ""
    if count == 1:
        return f"entry {node.depth}: 1 block{copies}, {who}"
    return f"entries {node.depth} to {node.depth + count - 1}: {count} blocks{copies}, {who}"


def _describe(contents: Contents, node: Node) -> str:
    blocks = [str(block) for each in node.blocks for block in each]
    listed = ", ".join(blocks[:40]) + (f" and {len(blocks) - 40} more" if len(blocks) > 40 else "")
    title = plain(_title(contents, node))
    return f"**{title[:1].upper()}{title[1:]}**. Blocks: {listed or 'none'}."


def _show_tree_table(contents: Contents, boxes: list[Box]) -> None:
    rows = [
        {
            "from entry": box.node.depth,
            "blocks": box.node.num_blocks,
            "state": box.node.state,
            "references each": len(box.node.owners),
            "owners": ", ".join(request_names(contents.reader, box.node.owners)),
            "first block": next((b[0] for b in box.node.blocks if b), None),
        }
        for box in boxes
    ]
    st.dataframe(
        pd.DataFrame(rows).astype({"first block": "Int64"}),
        hide_index=True,
        height=300,
        alt="Nodes of the prefix tree",
    )


def _show_queue(contents: Contents, spell: Speller | None) -> None:
    num_free = sum(ref == 0 for ref in contents.blocks.ref) - 1
    num_cached = sum(
        block not in contents.owners and not contents.blocks.ref[block]
        for block in contents.block_of.values()
    )
    st.caption(
        f"{num_free:,} free blocks in the order of reuse; {num_cached:,} of them hold cached content. A freed block "
        "with cached content joins at the back, so the least recently used is evicted first; one without joins at the "
        "front."
    )
    only_cached = st.toggle("Only blocks with cached content", key="blocks_queue_cached")
    queue = eviction_order(contents, only_cached, MAX_QUEUE)
    if not queue:
        st.caption("None.")
        return
    rows = [
        {
            "place": free.place,
            "block": free.block,
            "hash": short(free.hash),
            "holds": _holds(contents, free, spell),
        }
        for free in queue
    ]
    alt = f"The first {len(rows)} of {num_free} free blocks in eviction order"
    columns = SMALL | {"holds": st.column_config.TextColumn(width="large")}
    row = row_table(rows, f"blocks_queue_{contents.step}_{only_cached}", alt, column_config=columns)
    if len(queue) == MAX_QUEUE:
        st.caption(f"The first {MAX_QUEUE} are listed.")
    if row is not None:
        _choose_block(queue[row].block)


def _holds(contents: Contents, free: Free, spell: Speller | None) -> str:
    if not free.hash:
        return "nothing"
    if free.content is None:
        return "content from a transfer"
    tokens = contents.tokens(free.content)
    text = visible("".join(map(spell, tokens))) if spell else " ".join(map(str, tokens[:8]))
    return f"entry {free.content.index} of {contents.reader.requests[free.content.number].request_id}: {text[:60]}"
