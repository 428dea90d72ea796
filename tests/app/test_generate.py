"""`prep generate` and `prep chat` on the shipped model."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from app.cli.chat import Conversation
from app.cli.main import app
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from engine.zoo.registry import resolve
from engine.zoo.shop import is_shop_model
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--num-gpu-blocks-override", "128"]


def prep(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def generated(*arguments: str) -> list[dict]:
    result = prep("generate", "shop", *arguments, "--json", *SMALL)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_is_the_request_outputs() -> None:
    (output,) = generated("-p", "Readers of", "--max-tokens", "5", "--logprobs", "2")
    (completion,) = output["outputs"]
    assert output["prompt"] == "Readers of"
    assert len(completion["token_ids"]) == len(completion["logprobs"]) == 5
    assert completion["finish_reason"] == "length"


def test_a_seed_repeats_its_completions_and_children_differ() -> None:
    arguments = ["-p", "Of", "-n", "3", "--temperature", "1.5", "--seed", "4", "--max-tokens", "12"]
    first, second = generated(*arguments), generated(*arguments)
    texts = [completion["text"] for completion in first[0]["outputs"]]
    assert texts == [completion["text"] for completion in second[0]["outputs"]]
    assert len(set(texts)) == 3


def test_several_prompts_are_answered_in_order() -> None:
    outputs = generated("-p", "One", "-p", "Two", "-p", "Three", "--max-tokens", "2")
    assert [output["prompt"] for output in outputs] == ["One", "Two", "Three"]


def test_text_alone_goes_to_stdout() -> None:
    result = prep("generate", "shop", "-p", "Readers of", "--max-tokens", "4", *SMALL)
    (output,) = generated("-p", "Readers of", "--max-tokens", "4")
    assert result.stdout == output["outputs"][0]["text"] + "\n"
    assert "tok/s" in result.stderr and "next:" in result.stderr


def test_a_pipe_is_one_prompt() -> None:
    result = prep("generate", "shop", "--max-tokens", "3", "--json", *SMALL, stdin="Two\nlines\n")
    assert json.loads(result.stdout)[0]["prompt"] == "Two\nlines"


def test_chat_wraps_the_prompt_in_the_models_template_and_the_shops_notes() -> None:
    (output,) = generated("--chat", "-p", "Hello!", "--max-tokens", "2")
    assert output["prompt"].endswith("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
    assert "manga" in output["prompt"]


def test_beam_search_prints_no_special_tokens() -> None:
    result = prep("generate", "shop", "--chat", "-p", "What do you recommend?", "--beam-width", "2", *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Our staff pick is Honest Fox.")
    assert "<|" not in result.stdout


def test_a_copy_of_a_shop_model_gets_the_notes_of_the_shop(tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    shutil.copytree(resolve("shop"), copy)
    assert is_shop_model(str(copy)) and is_shop_model("shop-draft")
    assert not is_shop_model("Qwen/Qwen3-0.6B") and not is_shop_model(str(tmp_path))
    result = prep("generate", str(copy), "--chat", "-p", "What do you recommend?", *SMALL)
    assert result.stdout.startswith("Our staff pick is Honest Fox."), result.output


def test_logprobs_are_a_table_with_one_line_per_token() -> None:
    result = prep("generate", "shop", "-p", "Of", "--max-tokens", "3", "--logprobs", "1", *SMALL)
    lines = result.stderr.splitlines()
    assert any("logprob" in line and "rank" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-p", ""], "prompt is empty"),
        (["-p", "x", "--temperature", "-1"], "temperature must be"),
        (["-p", "x", "--top-p", "0"], "top_p must be"),
        (["-p", "x", "-n", "2"], "n must be 1 when temperature is 0"),
        (["-p", "x", "-n", "2"], "--temperature 0.8"),
        (["-p", "x", "--beam-width", "100"], "--beam-width must be at most 10, got 100"),
        (["-p", "x", "--beam-width", "4", "--temperature", "1"], "takes no temperature"),
        (["-p", "x", "--logprobs", "99"], "logprobs must be at most"),
        (["-p", "x", "--block-size", "0"], "block_size must be"),
        (["-p", "x", "--max-tokens", "1000", "--num-gpu-blocks-override", "5"], "the whole KV cache has 4"),
        (["-p", "x", "--attention-backend", "warp"], "warp"),
        (["-p", "x", "--scheduler-cls", "nowhere:Nothing"], "scheduler_cls"),
        (["-p", "word " * 3000], "max_model_len"),
    ],
)
def test_bad_input_is_refused_with_a_reason(arguments: list[str], told: str) -> None:
    result = prep("generate", "shop", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("model", "told"),
    [("./nowhere", "no folder"), ("no-one/nothing", "no-one/nothing"), ("shopp", "shopp")],
)
def test_a_model_that_is_not_there_is_named(model: str, told: str) -> None:
    result = prep("generate", model, "-p", "x")
    assert result.exit_code in (2, 3)
    assert told in result.stderr


@pytest.mark.slow
def test_ctrl_c_stops_a_generation_without_a_traceback(tmp_path: Path) -> None:
    trace = tmp_path / "run.itrace"
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli.main", "generate", "shop", "-p", "x", "--ignore-eos"]
        + ["--max-tokens", "1900", "-n", "64", "--temperature", "1", "--trace", str(trace)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def has_steps() -> bool:
        assert process.poll() is None, process.communicate()
        with suppress(OSError, TraceError):  # the file, or its header, is not there yet
            return TraceReader(trace).num_steps > 0
        return False

    wait_until(has_steps)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_a_piped_chat_remembers_the_conversation_in_the_prefix_cache() -> None:
    result = prep("chat", "shop", *SMALL, stdin="What do you recommend?\nThank you!\n")
    assert result.exit_code == 0, result.output
    cached = [line for line in result.stderr.splitlines() if "prompt tokens cached" in line]
    assert len(cached) == 2
    assert int(cached[1].split("tok/s), ")[1].split()[0]) > 200


def test_chat_commands_work_and_an_unknown_one_is_named() -> None:
    result = prep(
        "chat", "shop", *SMALL, stdin="/system You are brief.\n/system\n/reset\n/what\n/quit\nnot read\n"
    )
    assert result.exit_code == 0
    assert "You are brief." in result.stderr
    assert "no command /what" in result.stderr
    assert "not read" not in result.output
    assert result.stdout == ""


def test_ctrl_c_in_a_chat_stops_the_answer_and_keeps_what_was_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Engine:
        """Says one word and is interrupted."""

        input_processor = SimpleNamespace(chat_prompt=lambda messages: messages)

        def stream(self, prompt: object, params: object, **_: object) -> Iterator[RequestOutput]:
            asked.append(prompt)
            words = CompletionOutput(0, "Well, ", [7])
            yield RequestOutput("0", None, [1, 2, 3], None, [words], finished=False)
            raise KeyboardInterrupt

    asked: list[list[dict[str, str]]] = []
    engine = Engine()
    engine.llm_engine = engine
    conversation = Conversation(engine, SamplingParams(), system=None)
    conversation.ask("Why?")
    conversation.ask("And then?")
    assert [message["content"] for message in asked[1]] == ["Why?", "Well, ", "And then?"]
    printed = capsys.readouterr()
    assert printed.out == "Well, \nWell, \n"
    assert "(stopped)" in printed.err


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--regex", "[0-9]{3,4} yen"], "[0-9]{3,4} yen"),
        (["--choice", "packed", "--choice", "shipped"], "packed|shipped"),
        (["--json-schema", "SCHEMA"], r'\{"copies":[1-9]\}'),
    ],
)
def test_output_has_the_structure_that_was_asked_for(
    arguments: list[str], pattern: str, tmp_path: Path
) -> None:
    schema = tmp_path / "order.json"
    number = {"type": "integer", "minimum": 1, "maximum": 9}
    schema.write_text(
        json.dumps({"type": "object", "properties": {"copies": number}, "required": ["copies"]})
    )
    arguments = [str(schema) if argument == "SCHEMA" else argument for argument in arguments]
    (output,) = generated(
        "-p", "The price is ", *arguments, "--structured-outputs-config", '{"backend": "dfa"}'
    )
    assert re.fullmatch(pattern, output["outputs"][0]["text"])


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--regex", "a", "--choice", "b"], 2, "exclude each other"),
        (["--json-schema", "nowhere.json"], 2, "cannot read nowhere.json: it does not exist"),
        (["--json-schema", "broken.json"], 2, "--json-schema broken.json is not valid JSON: Expecting"),
        (["--json-schema", "latin1.json"], 2, "cannot read latin1.json: it is not text in UTF-8 (byte 11"),
        (["--regex", "(a"], 2, "never closed"),
    ],
)
def test_a_structure_that_cannot_be_is_an_error_with_its_cause(
    arguments: list[str], code: int, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"type": ')
    Path("latin1.json").write_bytes(b'{"title": "\xe9"}')
    result = prep("generate", "shop", "-p", "x", *arguments, *SMALL)
    assert result.exit_code == code and complaint in result.output + str(result.exception)
