"""The registry of adapter versions: its file, its commands, and a server that follows it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.lora.request import LoRAError
from engine.lora.versions import VersionRegistry
from engine.sampling_params import SamplingParams
from engine.server.adapter_versions import PromotedAdapters
from engine.server.models import Models
from engine.server.protocol import LoadLoRARequest
from engine.zoo.registry import resolve


@pytest.fixture
def registry(tmp_path: Path) -> VersionRegistry:
    """A registry of `help` with two versions, which are in truth different adapters; none is promoted."""
    root = tmp_path / "adapters"
    for number, shipped in ((1, "shop-lora-ja"), (2, "shop-lora-support")):
        shutil.copytree(resolve(shipped), root / f"help-{number}")
    registry = VersionRegistry(root / "adapters.json")
    assert [registry.add("help", root / f"help-{number}") for number in (1, 2)] == [1, 2]
    return registry


def in_use(registry: VersionRegistry) -> int | None:
    return registry.promoted().get("help", (None,))[0]


def test_versions_are_promoted_and_rolled_back_in_order(registry: VersionRegistry) -> None:
    assert in_use(registry) is None
    assert registry.promote("help", 1) == 1 and registry.promote("help") == 2 == in_use(registry)
    assert registry.promote("help") == 2, "promoting again changes nothing"
    assert registry.rollback("help") == 1 == in_use(registry)
    with pytest.raises(LoRAError, match="no earlier promoted version"):
        registry.rollback("help")
    assert sorted(registry.read()["help"].versions) == [1, 2], "a rollback forgets no version"


def test_a_version_whose_files_changed_is_neither_promoted_nor_returned_to(registry: VersionRegistry) -> None:
    registry.promote("help", 1)
    registry.promote("help", 2)
    config = registry.file.parent / "help-1" / "adapter_config.json"
    config.write_text(config.read_text() + " ")
    for change in (lambda: registry.rollback("help"), lambda: registry.promote("help", 1)):
        with pytest.raises(LoRAError, match=r"'help': the files in .* have checksum \w{12}…, expected"):
            change()
    assert in_use(registry) == 2


@pytest.mark.parametrize("path", ["../outside", "/etc", "link", ".", ""])
def test_a_path_that_leaves_the_registrys_folder_is_refused(path: str, registry: VersionRegistry) -> None:
    root = registry.file.parent
    shutil.copytree(root / "help-1", root.parent / "outside")
    (root / "link").symlink_to(root.parent / "outside")
    with pytest.raises(LoRAError, match="lies outside"):
        registry.add("evil", root / path)
    value = json.loads(registry.file.read_text())
    value["adapters"]["help"]["versions"]["1"]["path"] = path
    registry.file.write_text(json.dumps(value))
    with pytest.raises(LoRAError, match="lies outside|at least 1 character"):
        registry.promote("help", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"sha256"', '"sha"'), r"adapters\.help\.versions\.1\.sha256: is missing"),
        (lambda text: text.replace('"promoted": []', '"promoted": [7]'), "promotes version 7"),
        (lambda text: text[:-20], "is not JSON"),
        (lambda text: "[]", "must be a mapping of names to values, got"),
    ],
)
def test_a_malformed_file_is_an_error_and_stays_as_it_is(
    change: Callable[[str], str], message: str, registry: VersionRegistry
) -> None:
    registry.file.write_text(changed := change(registry.file.read_text()))
    for use in (registry.read, lambda: registry.promote("help", 1)):
        with pytest.raises(LoRAError, match=message):
            use()
    assert registry.file.read_text() == changed


def test_wrong_names_folders_and_numbers_say_what_there_is(registry: VersionRegistry) -> None:
    root = registry.file.parent
    with pytest.raises(LoRAError, match="cannot name an adapter"):
        registry.add("../help", root / "help-1")
    (root / "empty").mkdir()
    with pytest.raises(LoRAError, match="no adapter_config.json"):
        registry.add("help", root / "empty")
    with pytest.raises(LoRAError, match="no adapter 'other'; known: help"):
        registry.promote("other")
    with pytest.raises(LoRAError, match="no version 9; it has: 1, 2"):
        registry.promote("help", 9)
    with pytest.raises(
        LoRAError, match="no adapter registry .*none.json; create it with: prep adapter add NAME"
    ):
        VersionRegistry(root / "none.json").promoted()
    with pytest.raises(LoRAError, match="cannot read .*: it is a folder"):
        VersionRegistry(root).promoted()


def test_the_commands_do_the_same(registry: VersionRegistry) -> None:
    def run(*words: str) -> str:
        ended = CliRunner().invoke(app, ["adapter", *words, "--registry", str(registry.file)])
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    assert "version 2 is in use" in run("promote", "help")
    assert "version 3 added" in run("add", "help", str(registry.file.parent / "help-1"))
    assert "version 3 is in use" in run("promote", "help", "--version", "3")
    assert "version 2 is in use again" in run("rollback", "help")
    assert json.loads(run("list", "--json"))["help"]["promoted"] == [2]
    wrong = CliRunner().invoke(app, ["adapter", "rollback", "help", "--registry", str(registry.file)])
    assert wrong.exit_code == 2 and "no earlier promoted version" in wrong.output


async def test_a_server_follows_promotions_and_rollbacks_and_never_reuses_kv_of_the_other_version(
    registry: VersionRegistry,
) -> None:
    args = EngineArgs(model="shop", enable_lora=True, num_gpu_blocks_override=256)
    with AsyncLLM(args) as llm:
        models = Models(llm, ["shop"], "shop")

        async def tokens(name: str) -> list[int]:
            params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
            prompt = {"prompt_token_ids": list(range(100, 180))}
            async for output in llm.generate(prompt, params, lora_request=models.find(name)[1]):
                last = output
            return list(last.outputs[0].token_ids)

        expected = {}
        for number, shipped in ((1, "shop-lora-ja"), (2, "shop-lora-support")):
            await models.load(LoadLoRARequest(lora_name=shipped, lora_path=str(resolve(shipped))))
            expected[number] = await tokens(shipped)
        assert expected[1] != expected[2], "the two adapters answer differently"

        registry.promote("help", 1)
        promoted = PromotedAdapters(models, registry.file)
        await promoted.load()
        assert await tokens("help") == expected[1]
        following = asyncio.create_task(promoted.follow(every_s=0.005))
        for change, number in ((registry.promote, 2), (registry.rollback, 1)):
            change("help")
            async with asyncio.timeout(30):
                while (found := await tokens("help")) != expected[number]:
                    assert found in expected.values(), "old or new weights, never a mixture"
        following.cancel()

        config = registry.file.parent / "help-2" / "adapter_config.json"
        value = json.loads(registry.file.read_text())
        value["adapters"]["help"]["promoted"] = [2]
        registry.file.write_text(json.dumps(value))
        config.write_text(config.read_text() + " ")
        with pytest.raises(LoRAError, match="have checksum"):
            await promoted.load()
        assert await tokens("help") == expected[1], "the version before stays in use"
