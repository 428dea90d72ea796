"""The pictures of the workbench in README.md and docs/debugger_tour.md, taken from it:

    python docs/screenshots.py            all of them, into docs/
    python docs/screenshots.py kernel     one of them
    python docs/screenshots.py step       the animated one: 20 steps around the first preemption, a second each
    python docs/screenshots.py --to /tmp  somewhere else, to look at first

Starts `prep app` on a free port and drives Chromium (needs `pip install "prep-workbench[test]"` and a Chromium:
`apt-get install chromium`, or PREP_CHROMIUM=/path/to/it). Writes nothing but the pictures. Each carries the words of
its page, so that a test finds a picture whose page says something else by now.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # from a checkout, without installing it

from app.bench.debugger_browser import FLAGS, HEALTH, MISSING, find_chromium  # noqa: E402
from app.debugger.runs import open_run  # noqa: E402
from engine.server.child_server import PREP, ChildServer  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH = 1280
MOST_BYTES = {".png": 250_000, ".webp": 2_000_000}
FRAME_MS = 850
WORDS = "words"
"""Key of the words of the page in a PNG; a WebP has them as XMP."""
SCRIPT_IS_DONE = '[data-testid="stApp"][data-test-script-state="notRunning"]'
OPAQUE = "[data-stale] { opacity: 1 !important; transition: none !important; }"
"""Streamlit dims parts of a page whose script runs again, which would flicker in the animation."""


class Shot(NamedTuple):
    """A picture: which page, how much of it, and what must be there before it is taken."""

    address: str
    """`{step}` stands for the first preemption of the run."""
    run: str
    height: int
    shows: str
    """Text."""
    steps: range | None = None
    """Steps of an animation, relative to the first preemption; None: one picture."""

    @property
    def suffix(self) -> str:
        return ".png" if self.steps is None else ".webp"


SHOTS = {
    "step": Shot("step?run={run}&step={step}", "memory-pressure", 740, "was preempted", range(-6, 14)),
    "kernel": Shot(
        "kernel?run={run}&step={step}&request=ben", "memory-pressure", 912, "Head 4 reads kv head"
    ),
    "compare": Shot("compare?run={run}&other=swap", "recompute", 800, "The first different decision"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of the workbench.")
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(SHOTS)} (all)")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", help="folder (docs/)")
    wanted = parser.parse_args()
    unknown = set(wanted.names) - SHOTS.keys()
    if unknown:
        parser.error(f"no picture is called {', '.join(sorted(unknown))}: {', '.join(SHOTS)}")
    with workbench() as url, tab() as page:
        for name in wanted.names or SHOTS:
            target = wanted.to / f"{name}{SHOTS[name].suffix}"
            take(page, url, SHOTS[name], target)
            print(f"{target}  {target.stat().st_size / 1000:.0f} kB")


def take(page: Page, url: str, shot: Shot, target: Path) -> None:
    preemption = open_run(shot.run).index.next_event("preempt", -1)
    step = 0 if preemption is None else preemption.step
    page.set_viewport_size({"width": WIDTH, "height": shot.height})
    page.goto(f"{url}/{shot.address.format(run=shot.run, step=step)}")
    page.wait_for_selector(SCRIPT_IS_DONE)
    page.wait_for_selector("html.prep-shown", state="attached")
    page.get_by_text(shot.shows).first.wait_for(state="visible")
    page.wait_for_timeout(1000)  # charts draw after their page is done, and nothing says when
    if shot.steps is None:
        image, words = frame(page)
        image.save(target, pnginfo=png_words(words), optimize=True)
    else:
        film(page, step, shot.steps, target)
    most = MOST_BYTES[target.suffix]
    if target.stat().st_size > most:
        raise SystemExit(f"{target.name} has {target.stat().st_size:,} bytes, at most {most:,} are wanted")


def frame(page: Page) -> tuple[Image.Image, str]:
    """Return what the page shows and the words of its page in the order of the document."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return image, page.locator(".stMain").inner_text()


def film(page: Page, middle: int, steps: range, target: Path) -> None:
    """Take one picture per step, from the one at `middle`, and save them as an animation."""
    page.add_style_tag(content=OPAQUE)
    for _ in range(-steps.start):
        page.keyboard.press("ArrowLeft")
    frames, words = [], []
    for step in steps:
        page.wait_for_selector(f'.step-view[data-step="{middle + step}"][data-details="ready"]')
        page.wait_for_timeout(150)
        image, said = frame(page)
        frames.append(image)
        words.append(said)
        page.keyboard.press("ArrowRight")
    times = [FRAME_MS * (4 if step == 0 else 1) for step in steps]
    frames[0].save(
        target,
        save_all=True,
        append_images=frames[1:],
        duration=times,
        loop=0,
        quality=70,
        method=4,
        xmp="\f".join(words).encode(),
    )


def png_words(words: str) -> PngInfo:
    info = PngInfo()
    info.add_itxt(WORDS, words, zip=True)
    return info


def words_of(picture: Path) -> str:
    """Return the words of the page when the picture was taken; "" if it carries none."""
    with Image.open(picture) as image:
        image.load()
        return str(image.info.get(WORDS) or image.info.get("xmp", b"").decode())


@contextmanager
def workbench() -> Iterator[str]:
    """The address of a `prep app` with a learner's folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        words = ["app", "--no-browser"]
        with ChildServer(
            PREP, args=words, name="prep app", path=HEALTH, environment={"PREP_HOME": home}, cwd=home
        ) as server:
            yield server.url


@contextmanager
def tab() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = browser.new_page(reduced_motion="reduce", color_scheme="dark")
        page.set_default_timeout(60_000)  # the kernel view loads a model
        yield page
        browser.close()


if __name__ == "__main__":
    main()
