"""The files of deploy/: each passes its field's linter, and their numbers fit together."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from engine.config import ConfigError, EngineArgs
from engine.server.ray_serve import AppArgs, build
from engine.server.run import ServerArgs
from engine.zoo.manifest import check_manifest
from engine.zoo.registry import resolve

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
YAML_RULES = (
    "{extends: default, rules: {line-length: {max: 120}, document-start: disable, "
    "comments: {min-spaces-from-content: 1}}}"
)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a linter; fail with its output if it finds something."""
    ended = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def linter(name: str) -> str:
    """Return the path of a linter from PyPI. The test extra has them all; hadolint only on Linux."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None and sys.platform != "linux":
        pytest.skip(f"{name} has no package for {sys.platform}")
    assert found is not None, f"{name} is missing: pip install -e '.[test]'"
    return found


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def container() -> dict[str, Any]:
    return dict(pod()["containers"][0])


def pod() -> dict[str, Any]:
    return dict(documents("kubernetes/prep.yaml")[0]["spec"]["template"]["spec"])


def test_hadolint_accepts_the_dockerfile() -> None:
    run(linter("hadolint"), "--failure-threshold", "style", DEPLOY / "Dockerfile")


def test_shellcheck_accepts_the_scripts() -> None:
    run(linter("shellcheck"), *sorted(DEPLOY.glob("*.sh")))


def test_yamllint_accepts_every_manifest() -> None:
    run(linter("yamllint"), "--strict", "-d", YAML_RULES, DEPLOY)


def test_the_compose_file_matches_the_specification() -> None:
    run(linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_manifests_match_kubernetes_schemas(tmp_path: Path) -> None:
    """KEDA passes the behavior in its object on to a HorizontalPodAutoscaler."""
    files = [DEPLOY / "kubernetes" / name for name in ("prep.yaml", "autoscale-hpa.yaml")]
    [scaled] = documents("kubernetes/autoscale-keda.yaml")
    [autoscaler] = documents("kubernetes/autoscale-hpa.yaml")
    autoscaler["spec"]["behavior"] = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    (tmp_path / "keda.yaml").write_text(yaml.safe_dump(autoscaler))
    said = run(linter("kubernetes-validate"), "--strict", *files, tmp_path / "keda.yaml")
    assert said.count(" passed for resource") == 5


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("pollingInterval: 15", "polingInterval: 15"),
        ("cooldownPeriod: 300", 'cooldownPeriod: "300"'),
        ('threshold: "4"', "threshold: 4"),
        ("failureThreshold: 3", ""),
        ("type: prometheus", "type: prometeus"),
        ("serverAddress:", "address:"),
    ],
)
def test_a_wrong_field_of_the_scaled_object_is_found(right: str, wrong: str) -> None:
    text = (DEPLOY / "kubernetes/autoscale-keda.yaml").read_text()
    validator = Draft202012Validator(
        json.loads(Path(__file__).with_name("scaled_object.schema.json").read_text())
    )
    assert right in text and validator.is_valid(yaml.safe_load(text))
    assert not validator.is_valid(yaml.safe_load(text.replace(right, wrong)))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus: apt-get install prometheus")
def test_promtool_accepts_configuration_and_query_of_the_scaler(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "prometheus.yaml", tmp_path)
    shutil.copy(ROOT / "engine/server/monitoring/rules.yaml", tmp_path)
    run("promtool", "check", "config", tmp_path / "prometheus.yaml")
    rule = {"record": "scaler", "expr": keda_trigger()["query"]}
    (tmp_path / "query.yaml").write_text(yaml.safe_dump({"groups": [{"name": "keda", "rules": [rule]}]}))
    run("promtool", "check", "rules", tmp_path / "query.yaml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_and_finds_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "prep.service"
    unit.write_text((DEPLOY / "prep.service").read_text().replace("/opt/deploy/", f"{DEPLOY}/"))
    assert run("systemd-analyze", "verify", unit) == ""
    # 0 to 10 in tenths; below 2 is systemd's best grade.
    run("systemd-analyze", "security", "--offline=yes", "--threshold=20", unit)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install -e '.[ray]'")
def test_ray_serve_accepts_its_configuration() -> None:
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(documents("ray-serve.yaml")[0])


def test_the_arguments_of_the_ray_application_are_settings_of_engine_and_server() -> None:
    [application] = documents("ray-serve.yaml")[0]["applications"]
    module, function = application["import_path"].split(":")
    assert hasattr(importlib.import_module(module), function)
    args = AppArgs.model_validate(application["args"])
    EngineArgs.create(model=args.model, **args.engine)
    ServerArgs(**args.server)


def test_wrong_arguments_of_the_ray_application_are_told_with_their_path() -> None:
    with pytest.raises(
        ConfigError, match="replicas: must be at least 1, got 0; modle: unknown setting; did you mean"
    ):
        build({"replicas": 0, "modle": "shop"})


def test_the_manifest_of_the_shipped_model_is_current() -> None:
    """After training: prep zoo manifest shop > deploy/shop.sha256"""
    check_manifest(resolve("shop"), (DEPLOY / "shop.sha256").read_text())


def test_every_place_gives_a_drain_the_time_it_may_take() -> None:
    def drain_of(text: str) -> int:
        found = re.search(r"--drain-timeout\W+(\d+)", text)
        assert found is not None, text
        return int(found[1])

    pre_stop = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    in_pod = drain_of(json.dumps(container()["args"])) + pre_stop
    assert pod()["terminationGracePeriodSeconds"] >= in_pod + 5
    unit = (DEPLOY / "prep.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop is not None and int(stop[1]) >= drain_of(unit) + 5
    grace = documents("compose.yaml")[0]["services"]["prep"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= drain_of((DEPLOY / "Dockerfile").read_text()) + 5


def test_selectors_probes_and_scalers_name_things_that_exist() -> None:
    deployment, service, budget = documents("kubernetes/prep.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]]
    selectors += [budget["spec"]["selector"]["matchLabels"]]
    selectors += [
        constraint["labelSelector"]["matchLabels"] for constraint in pod()["topologySpreadConstraints"]
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    ports = {port["name"] for port in container()["ports"]}
    probes = [container()[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} | {service["spec"]["ports"][0]["targetPort"]} <= ports
    scalers = documents("kubernetes/autoscale-hpa.yaml") + documents("kubernetes/autoscale-keda.yaml")
    assert {scaler["spec"]["scaleTargetRef"]["name"] for scaler in scalers} == {
        deployment["metadata"]["name"]
    }
    volumes = {volume["name"] for volume in pod()["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == volumes


def test_both_scalers_follow_the_waiting_requests_with_the_same_target() -> None:
    hpa = documents("kubernetes/autoscale-hpa.yaml")[0]["spec"]["metrics"][0]["pods"]
    assert hpa["metric"]["name"].replace("_", ":", 1) == "vllm:num_requests_waiting"
    assert "vllm:num_requests_waiting" in keda_trigger()["query"]
    assert hpa["target"]["averageValue"] == keda_trigger()["threshold"]
    assert all(isinstance(value, str) for value in keda_trigger().values()), "KEDA's metadata are strings"


def keda_trigger() -> dict[str, Any]:
    return dict(documents("kubernetes/autoscale-keda.yaml")[0]["spec"]["triggers"][0]["metadata"])


def test_images_are_pinned_and_run_without_root_or_secrets() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    images = re.findall(r"^FROM (\S+:\S+)", dockerfile, re.MULTILINE)
    images += [service["image"] for service in documents("compose.yaml")[0]["services"].values()]
    assert images and all(":" in image and not image.endswith(":latest") for image in images)
    user = re.search(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)
    assert user is not None and int(user[1]) == pod()["securityContext"]["runAsUser"] > 0
    assert not re.search(r"(?i)^(ARG|ENV).*(key|token|password|secret)", dockerfile, re.MULTILINE)
    assert container()["securityContext"]["readOnlyRootFilesystem"]
