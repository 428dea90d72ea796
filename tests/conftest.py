"""Settings of every test run, read before any test module imports torch or huggingface_hub; the tiers."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from prep_common.memory import collect_rarely
from tests.seeds import SEED

# Tensors in tests are tiny, and test processes run in parallel: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests never use the network: an id that is not on disk must fail at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests of the C++ kernels never run without them.
os.environ["PREP_KERNELS_BUILD"] = "wait"
# Tests have a home and a cache of their own.
os.environ.pop("PREP_HOME", None)
# `./prep test` exports how it was typed, and hints repeat it: the tests expect the plain name.
os.environ.pop("PREP_COMMAND", None)
# Processes of xdist have COLUMNS, and pipes wrap where it is set.
os.environ.pop("COLUMNS", None)


def restore_signals() -> None:
    """Undo what nohup, cron and shells in the background do: programs that tests start inherit ignored signals.

    This process survives a hangup that it was told to ignore; what it starts does not.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, lambda *_: None),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


restore_signals()
# Examples are the same in every run, but for `prep test --all`, which draws fresh ones from its seed.
settings.register_profile("prep", derandomize=not SEED)
settings.load_profile("prep")
pytest_plugins = ["tests.browser"]
TESTS = Path(__file__).parent
FAST = (
    "prep_common",
    "core/test_admission*.py", "core/test_blocks.py", "core/test_hashing.py", "core/test_kv_events.py",
    "core/test_lifecycle.py", "core/test_passed_over.py", "core/test_prefix_cache.py", "core/test_queues.py",
    "core/test_reasons.py", "core/test_router.py", "core/test_scheduler.py", "core/test_stats.py",
    "contracts/test_block_pool_contract.py", "engine/test_resolve.py", "frontend/test_detokenizer.py",
    "frontend/test_output_processor.py", "grammar/test_regex.py", "grammar/test_json_schema.py",
    "lora/test_lora_slots.py",
    "packaging/test_import_circles.py", "packaging/test_language.py", "packaging/test_pages.py",
    "packaging/test_shape.py", "packaging/test_suite.py", "quizzes/test_expressions.py", "quizzes/test_grading.py",
    "quizzes/test_instance.py",
    "quizzes/test_labelled_answers.py", "quizzes/test_learning.py", "quizzes/test_registry.py", "sample", "spec",
    "trace/test_trace_file.py", "trace/test_trace_replay.py", "app/test_test.py",
)  # fmt: skip
"""The fast tier: files and folders whose tests take seconds together."""


@cache
def is_fast(path: Path) -> bool:
    relative = path.relative_to(TESTS)
    return any(part.match(pattern) for part in (relative, *relative.parents) for pattern in FAST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the files of the fast tier when it is asked for: the others take longer to import than to run."""
    is_other = collection_path.suffix == ".py" and not is_fast(collection_path)
    return True if config.option.markexpr == "fast" and is_other else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage only among what the tests make: the million objects of collection stay until the end.

    Looking through them took a third of collection, and a second whenever a test asked for it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        collect_rarely()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain at exit about objects that were never freed


REACHED = pytest.StashKey["frozenset[str] | None"]()
"""Files whose slow tests the push tier runs, because what changed can reach them; None for all."""


def pytest_configure(config: pytest.Config) -> None:
    """Find what changed can reach; with xdist, once, before the processes that run tests start."""
    from_main_process = getattr(config, "workerinput", {}).get("reached", "")
    if from_main_process != "":
        config.stash[REACHED] = from_main_process and frozenset(from_main_process)
    elif "reached" in config.option.markexpr:
        from tests import reach

        changed = reach.change()
        config.stash[REACHED] = None if changed is None else reach.reached(changed.files)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(reach.sentence(changed, config.stash[REACHED]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand what was found to a process of xdist."""
    reached = node.config.stash.get(REACHED, "")
    node.workerinput["reached"] = sorted(reached) if reached else reached


def is_reached(path: Path, config: pytest.Config) -> bool:
    reached = config.stash.get(REACHED, frozenset())
    return reached is None or path.relative_to(TESTS.parent).as_posix() in reached


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        if is_fast(item.path) and not slow:
            item.add_marker("fast")
        if slow and is_reached(item.path, config):
            item.add_marker("reached")
        if {"browser", "chromium"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("browser")
            # A browser on a loaded machine is late now and then. A second failure counts; the first is printed.
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect garbage after each file, as it is collected rarely within one: its models and servers must go."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests ran twice, so that a defect that shows itself now and then is seen."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"ran again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_line(f"{title}:\n{text}")
