"""Settings of a fleet: wrong ones name file and line; a fleet that is too large says what fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.fleet.config import FleetSettings, check_fits, memory_of_replica, read_settings, serve_words
from engine.zoo.registry import resolve

EXAMPLE = Path(__file__).resolve().parents[2] / "engine/fleet/example.yaml"
GB = 1 << 30


def test_the_example_is_read_and_becomes_words_of_prep_serve() -> None:
    settings = read_settings(EXAMPLE)
    assert (settings.replicas, settings.policy, settings.most) == (2, "prefix-affinity", 2)
    words = serve_words(settings)
    assert words[:2] == ["serve", "shop"] and words[-4:] == ["--max-num-seqs", "16", "--max-model-len", "512"]
    flags = FleetSettings(engine={"enable_prefix_caching": False, "enforce_eager": True})
    assert serve_words(flags)[-2:] == ["--no-enable-prefix-caching", "--enforce-eager"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("replicas: 0", 1, "at least 1 without autoscale"),
        ("replicas: many", 1, "must be a whole number, got 'many'"),
        ("model: shop\nreplica: 2", 2, "unknown setting; did you mean 'replicas'"),
        ("engine:\n  max_seqs: 4", 1, "unknown engine argument 'max_seqs'"),
        (
            "replicas: 1\nautoscale: {signal: cpu, out_above: 2, in_below: 1}",
            2,
            "signal: must be 'queue', .*, got 'cpu'",
        ),
        ("replicas: 1\nautoscale: {signal: load, out_above: 2}", 2, "in_below"),
        ("replicas: 1\nautoscale: {signal: load, out_above: 2, in_below: 3}", 2, "must be less than"),
        ("replicas: 9\nautoscale: {signal: load, out_above: 2, in_below: 1}", 1, "from 1 to 8"),
        (
            "replicas: 1\nautoscale: {signal: load, out_above: 2, in_below: 1, cold_start: 9}",
            2,
            "simulations",
        ),
        ("name: ../up", 1, "must be 1 to 40 letters, .*, got '../up'"),
        ("policy: random", 1, "round-robin"),
        ("replicas: 1\nmodel: shopp", 2, "no model 'shopp'; did you mean 'shop'"),
        ("model: shop-lora-ja", 1, "has no config.json"),
        ("model: ./nowhere", 1, "no folder nowhere"),
        ("tenants: [a]", 1, r"tenants\[0\]: must be a mapping with name, api_key, got 'a'"),
        ("port: 0\nengine: {model: shop}", 2, "model is a setting of the fleet, beside engine"),
        ("port: 0\nmodel: $PREP_NOT_SET", 2, "model: the environment variable PREP_NOT_SET is not set"),
        ("events: 3", 1, "must be the name of a file, got 3"),
        ("drain_timeout_s: .inf", 1, "must be a finite number, got inf"),
        ("hold: {timeout_s: 1.0e+300}", 1, "must be at most 86,400, got 1e\\+300"),
        ("autoscale: {signal: load, out_above: 2, in_below: 1, min: 0}", 1, "did you mean 'min_replicas'"),
        ("", 1, "the file is empty; expected settings such as"),
        ("a: &x [*x]", 1, "contains it"),
        ("- a", 1, "expected settings"),
        ("a: [", 1, "not valid YAML"),
    ],
)
def test_a_wrong_setting_is_an_error_with_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"fleet\.yaml:{line}: .*{message}"):
        read_settings(file)


def test_a_fleet_larger_than_the_machine_is_refused_and_says_what_fits() -> None:
    settings = FleetSettings(replicas=8, oversubscribe=True, engine={"kv_cache_memory_bytes": GB})
    assert memory_of_replica(settings) > GB
    check_fits(settings, free=64 * GB, processors=1)
    with pytest.raises(
        ConfigError, match=r"8 replicas of shop take about .* 4\.0 GiB of memory are free: 2 fit"
    ):
        check_fits(settings, free=4 * GB, processors=64)
    with pytest.raises(ConfigError, match=r"need 6 processors, and this machine has 4: 2 fit"):
        check_fits(FleetSettings(replicas=3, threads=2), free=64 * GB, processors=4)


def test_the_warm_pool_and_the_largest_autoscaled_fleet_must_fit() -> None:
    scale = {"signal": "load", "out_above": 2, "in_below": 1, "max_replicas": 3}
    settings = FleetSettings.model_validate({"autoscale": scale, "warm_pool": 1})
    check_fits(settings, free=64 * GB, processors=4)
    with pytest.raises(ConfigError, match=r"4 replicas .* 3 fit"):
        check_fits(settings, free=64 * GB, processors=3)


def test_a_model_without_weights_needs_the_load_format_dummy(tmp_path: Path) -> None:
    shape = json.loads((resolve("shop") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(shape))
    file = tmp_path / "fleet.yaml"
    file.write_text(f"replicas: 1\nmodel: {tmp_path}\nengine: {{load_format: dummy}}\n")
    assert read_settings(file).engine == {"load_format": "dummy"}
    file.write_text(f"replicas: 1\nmodel: {tmp_path}\n")
    with pytest.raises(ConfigError, match=r"fleet\.yaml:2: model: .* holds no weights"):
        read_settings(file)
