"""The chart: its files and, if Helm is installed, its rendered objects."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gateway.commands import _parser
from gateway.config.load import parse_config
from gateway.config.model import WeirConfig
from gateway.quotas.kinds import ROW_KINDS
from gateway.quotas.kinds.request_rate import KIND as REQUEST_RATE
from gateway.workers.supervisor import GRACE_SECONDS
from helm import dashboards
from tests.last_release import LAST_RELEASE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "weir"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
NAMES = [path.stem.removesuffix("-values") for path in VALUES]

KUBERNETES = ("1.27", "1.35")
"""The oldest and the newest Kubernetes whose schemas the objects must satisfy. kubernetes-validate contains both."""

CUSTOM = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "SparkApplication", "ScheduledSparkApplication"}
"""Kinds without a schema in Kubernetes itself."""

HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(
    HELM is None,
    reason="no helm on the PATH: `make charttools` builds it where there is Go",
)


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def merged(values: Any, over: Any) -> Any:
    """Merge values as Helm does: objects key by key, everything else as a whole."""
    if not (isinstance(values, dict) and isinstance(over, dict)):
        return over
    return {
        key: merged(values[key], over[key]) if key in values and key in over else {**values, **over}[key]
        for key in values | over
    }


def all_values(path: Path) -> Any:
    return merged(loaded(CHART / "values.yaml"), loaded(path))


def added(values: Any, before: Any, prefix: str = "") -> list[str]:
    """The keys that `before` lacks, such as `report.deployment`."""
    found: list[str] = []
    for key, value in values.items():
        if key not in before:
            found.append(f"{prefix}{key}")
        elif isinstance(value, dict) and isinstance(before[key], dict):
            found += added(value, before[key], f"{prefix}{key}.")
    return found


@pytest.fixture(scope="module")
def values_of_the_last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("last-release")
    LAST_RELEASE.unpack(folder, "helm/weir/values.yaml")
    return folder / "helm" / "weir" / "values.yaml"


def config_as_it_stands(path: Path) -> WeirConfig:
    """Return the config of the values, with the names that the chart gives to unnamed listeners."""
    config = all_values(path)["config"]
    listeners = [{"advertised_host": "weir.example.com", **listener} for listener in config["listeners"]]
    return parse_config(yaml.safe_dump({**config, "listeners": listeners}), source=path.name)


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads((CHART / "values.schema.json").read_text())


class TestByItself:
    """Tests without Helm."""

    @pytest.mark.process
    @pytest.mark.parametrize("written_by", ["values_schema.py", "dashboards.py"])
    def test_written_files_are_current(self, written_by: str) -> None:
        script = [sys.executable, ROOT / "helm" / written_by, "--check"]
        done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr

    @pytest.mark.process
    def test_chart_checks_each_value_since_the_last_release(self, values_of_the_last_release: Path) -> None:
        text = (
            (CHART / "templates" / "_checks.tpl")
            .read_text()
            .partition('define "weir.checkNewValues"')[2]
            .partition("range $name")[0]
        )
        assert re.findall(r'"([\w.]+)"', text) == added(loaded(CHART / "values.yaml"), loaded(values_of_the_last_release))

    def test_dashboard_finds_kinds_of_apis_behind_another_kind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = replace(REQUEST_RATE, name="join_rate", config_key="join_rate", order=0)
        monkeypatch.setattr(dashboards, "ROW_KINDS", (first, *ROW_KINDS))
        assert r"kind=~\"join_rate|request_rate|request_rate[.].*\"" in json.dumps(dashboards.entity_dashboard())

    def test_schema_is_a_valid_json_schema(self, schema: Any) -> None:
        jsonschema.Draft7Validator.check_schema(schema)

    @pytest.mark.parametrize("path", VALUES, ids=NAMES)
    def test_values_satisfy_the_schema(self, schema: Any, path: Path) -> None:
        jsonschema.Draft7Validator(schema).validate(all_values(path))

    @pytest.mark.parametrize("path", VALUES, ids=NAMES)
    def test_weir_accepts_the_config(self, path: Path) -> None:
        assert config_as_it_stands(path).listeners

    @pytest.mark.parametrize(
        ("wrong", "where"),
        [
            ({"replica": 2}, []),
            ({"kind": "DaemonSet"}, ["kind"]),
            ({"config": {"lissteners": []}}, ["config"]),
            ({"config": {"listeners": []}}, ["config", "listeners"]),
            ({"config": {"listeners": [{"name": "clients"}]}}, ["config", "listeners", 0]),
            ({"config": {"listeners": [{"name": "a", "bootstrap_port": "1"}]}}, ["config", "listeners", 0, "bootstrap_port"]),
            ({"config": {"quotas": {"entities": [{"user": "a", "producer_rate": 1}]}}}, ["config", "quotas", "entities", 0]),
            ({"config": {"connections": {"max_per_ip_overrides": {"10.0.0.1": "5"}}}},
             ["config", "connections", "max_per_ip_overrides", "10.0.0.1"]),
            ({"secrets": {"tls": {}}}, ["secrets", "tls"]),
            ({"prometheusRule": {"runbookBaseUrl": "docs example"}}, ["prometheusRule", "runbookBaseUrl"]),
            ({"services": {"clients": {"type": "ExternalName"}}}, ["services", "clients", "type"]),
        ],
        ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
    )  # fmt: skip
    def test_mistakes_are_found(self, schema: Any, wrong: dict[str, Any], where: list[str | int]) -> None:
        found = list(jsonschema.Draft7Validator(schema).iter_errors(merged(loaded(CHART / "values.yaml"), wrong)))
        assert [list(error.absolute_path) for error in found] == [where]

    def test_schema_requires_no_more_of_a_listener_than_weir(self, schema: Any) -> None:
        """The schema does not require keys that validators fill in."""
        listeners = [{"name": "a", "bootstrap_port": 1}, {"name": "b", "bootstrap_port": 300, "tls": {"cert": "c", "key": "k"}}]
        config = {"upstream": {"bootstrap_servers": ["kafka:9092"]}, "listeners": listeners}
        jsonschema.Draft7Validator(schema).validate({**loaded(CHART / "values.yaml"), "config": config})
        assert isinstance(parse_config(yaml.safe_dump(config), source="test"), WeirConfig)

    def test_sidecar_runs_an_existing_command(self) -> None:
        pod = loaded(CHART / "files" / "volume-agent-sidecar.yaml")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"] == ["sh", "-euc"]
        words = container["args"][0].replace('"${HOSTNAME##*-}"', "3").split()
        options = _parser().parse_args(words[words.index("weir") + 1 :])
        assert (options.broker_id, options.path) == (3, [container["volumeMounts"][0]["mountPath"]])

    def test_chart_and_images_have_the_version_of_the_project(self) -> None:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        semantic = re.sub(r"\.dev(\d+)$", r"-dev.\1", version)
        assert loaded(CHART / "Chart.yaml").items() >= {"version": semantic, "appVersion": version}.items()
        texts = [*(ROOT / "helm").rglob("*ockerfile"), *(CHART / "files").glob("*.yaml"), *(ROOT / "docs").rglob("*.md")]
        tags = [
            tag for text in texts for tag in re.findall(r"\bweir(?:-report)?:(\d+\.\d+\.\d+(?:\.dev\d+)?)", text.read_text())
        ]
        assert len(tags) >= 4
        assert set(tags) == {version}

    def test_image_installs_a_compiled_wheel(self) -> None:
        folder = ROOT / "helm" / "docker"
        assert "RUN WEIR_COMPILE=1 pip wheel --wheel-dir /wheels ." in (folder / "Dockerfile").read_text()
        for ignored in folder.glob("*.dockerignore"):
            assert "!.ci/build_backend.py\n" in ignored.read_text()


def helm_run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def helm(*arguments: str | Path) -> str:
    done = helm_run(*arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@cache
def render(*arguments: str | Path) -> list[dict[str, Any]]:
    # Without a version, the objects depend on the default of the Helm that is installed.
    text = helm("template", "weir", CHART, "--namespace", "kafka", "--kube-version", f"{KUBERNETES[0]}.0", *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def refusal(*arguments: str | Path) -> str:
    """Return the error of values that the chart refuses."""
    done = helm_run("template", "weir", CHART, "--kube-version", f"{KUBERNETES[0]}.0", *arguments)
    assert done.returncode != 0
    return done.stderr


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (found for found in objects if found["kind"] == kind and found["metadata"]["name"] == name)
    return found


def config_of(objects: list[dict[str, Any]]) -> WeirConfig:
    return parse_config(one(objects, "ConfigMap", "weir")["data"]["weir.yaml"], source="the ConfigMap")


@pytest.mark.process
@needs_helm
class TestRendered:
    """Tests of rendered objects."""

    @pytest.mark.parametrize("path", VALUES, ids=NAMES)
    def test_helm_lint_accepts_the_chart(self, path: Path) -> None:
        helm("lint", "--strict", "--kube-version", f"{KUBERNETES[0]}.0", "--values", path, CHART)

    @pytest.mark.parametrize("path", VALUES, ids=NAMES)
    def test_objects_are_valid_kubernetes_objects(self, path: Path) -> None:
        objects = render("--values", path)
        names = [(found["kind"], found["metadata"]["name"]) for found in objects]
        assert len(set(names)) == len(names)
        for found in objects:
            if found["kind"] not in CUSTOM:
                for version in KUBERNETES:
                    kubernetes_validate.validate(found, version, strict=True)

    @pytest.mark.parametrize("path", VALUES, ids=NAMES)
    def test_config_map_holds_the_config_of_the_values(self, path: Path) -> None:
        config = config_of(render("--values", path))
        as_it_stands = config_as_it_stands(path)
        filled_in = {"host", "advertised_host"}
        apart: Any = {"listeners": True, "ledger": {"max_bytes"}, "admin": {"allowed_hosts"}}
        assert config.model_dump(exclude=apart) == as_it_stands.model_dump(exclude=apart)
        for rendered, other in zip(config.listeners, as_it_stands.listeners, strict=True):
            assert rendered.model_dump(exclude=filled_in) == other.model_dump(exclude=filled_in)
            assert rendered.host == "0.0.0.0"

    @pytest.mark.parametrize("path", VALUES, ids=NAMES)
    def test_each_pod_is_restricted(self, path: Path) -> None:
        for found in render("--values", path):
            if found["kind"] in {"StatefulSet", "Deployment", "DaemonSet", "CronJob"}:
                template = found["spec"].get("jobTemplate", found)["spec"]["template"]["spec"]
                assert template["securityContext"]["runAsNonRoot"]
                assert template["automountServiceAccountToken"] is False
                for container in template["containers"]:
                    context = container["securityContext"]
                    assert context["readOnlyRootFilesystem"]
                    assert not context["allowPrivilegeEscalation"]
                    assert context["capabilities"] == {"drop": ["ALL"]}

    def test_broker_ports_are_exposed_by_services(self) -> None:
        objects = render("--values", CHART / "ci" / "ports-values.yaml")
        inside, outside = one(objects, "Service", "weir-inside")["spec"], one(objects, "Service", "weir-outside-world")["spec"]
        listeners = config_of(objects).listeners
        assert listeners[0].advertised_host == "weir-inside.kafka.svc.cluster.local"
        for listener, service in zip(listeners, (inside, outside), strict=True):
            assert listener.broker_ports is not None
            ports = {port["name"]: port["port"] for port in service["ports"]}
            brokers = {f"broker-{index}": port for index, port in enumerate(listener.broker_ports.ports)}
            assert ports == {"bootstrap": listener.bootstrap_port, **brokers}
        assert all(port["port"] == port["targetPort"] == port["nodePort"] for port in outside["ports"])
        assert outside["externalTrafficPolicy"] == "Local"
        assert not any("nodePort" in port for port in inside["ports"])

    def test_sni_exposes_all_brokers_behind_one_port(self) -> None:
        objects = render("--values", CHART / "ci" / "sni-values.yaml")
        ports = one(objects, "Service", "weir-clients")["spec"]["ports"]
        assert [(port["port"], port["targetPort"]) for port in ports] == [(9094, 9094), (443, 9094)]
        ports = one(objects, "Service", "weir-inside")["spec"]["ports"]
        assert [(port["port"], port["targetPort"]) for port in ports] == [(9095, 9095)]

    def test_files_named_in_the_config_are_mounted(self) -> None:
        objects = render("--values", CHART / "ci" / "sni-values.yaml")
        (container,) = one(objects, "StatefulSet", "weir")["spec"]["template"]["spec"]["containers"]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        config = config_of(objects)
        tls, upstream = config.listeners[0].tls, config.upstream
        assert tls is not None
        assert upstream.tls is not None
        assert upstream.sasl is not None
        for file in (tls.cert, tls.key, tls.client_ca, upstream.tls.ca, upstream.sasl.password_file):
            assert str(Path(str(file)).parent) in mounts
        assert str(Path(str(config.state.path)).parent) in mounts
        assert not any("subPath" in mount for mount in mounts.values())

    def test_quota_change_rolls_no_pod(self) -> None:
        """Pods roll for keys that need a restart, if rollOnRestartKeys is true."""
        values = ["--values", CHART / "ci" / "ports-values.yaml"]

        def pods(*more: str) -> Any:
            return one(render(*values, *more), "Deployment", "weir")["spec"]["template"]

        before = pods()
        assert pods("--set", "config.quotas.enforce=false") == before
        assert pods("--set", "config.listeners[1].max_connections=5") == before
        assert pods("--set", "config.admin.allowed_hosts={weir.example.com}") == before
        sharing = pods("--set", "config.sharing.topic=a")
        assert sharing != before
        assert pods("--set", "config.sharing.topic=a,config.sharing.interval_ms=300") == sharing
        assert pods("--set", "config.sharing.topic=b") != sharing
        assert pods("--set", "config.ledger.path=/var/lib/weir/elsewhere") != before
        assert pods("--set", "config.listeners[1].bootstrap_port=30091") != before
        assert pods("--set", "config.upstream.bootstrap_servers={elsewhere:9092}") != before
        assert pods("--set", "config.upstream.bootstrap_servers={elsewhere:9092}", "--set", "rollOnRestartKeys=false") == pods(
            "--set", "rollOnRestartKeys=false"
        )

    @pytest.mark.parametrize(
        ("settings", "path", "most"),
        [
            ([], "/var/lib/weir/ledger", 0.8 * 2**30),
            (["persistence.enabled=false", "persistence.size=500M"], "/var/lib/weir", 0.8 * 500e6),
            (["ledgerVolume.enabled=true", "ledgerVolume.size=1.5Ti"], "/var/lib/weir-ledger", 0.8 * 1.5 * 2**40),
            (["ledgerVolume.enabled=true", "ledgerVolume.existingClaim=a"], "/var/lib/weir-ledger", 10 * 2**30),
            (
                ["extraVolumeMounts[0].name=a", "extraVolumeMounts[0].mountPath=/var/lib/weir/ledger"],
                "/var/lib/weir/ledger",
                10 * 2**30,
            ),
            (["persistence.size=1Pi"], "/var/lib/weir", 0.8 * 2**50),
            (["persistence.size=1e9"], "/var/lib/weir", 10 * 2**30),
            (["persistence.size=500M"], "ledger", 0.8 * 500e6),
            (["extraVolumeMounts[0].name=a", "extraVolumeMounts[0].mountPath=/elsewhere"], "/elsewhere", 10 * 2**30),
        ],
    )
    def test_ledger_leaves_room_on_its_volume(self, settings: list[str], path: str, most: float) -> None:
        objects = render("--set", ",".join([f"config.ledger.path={path}", *settings]))
        ledger = config_of(objects).ledger
        assert ledger is not None
        assert ledger.max_bytes == int(most)

    def test_size_without_a_unit_is_in_bytes(self) -> None:
        objects = render("--set", "config.ledger.path=/var/lib/weir", "--set-string", "persistence.size=2147483648")
        ledger = config_of(objects).ledger
        assert ledger is not None
        assert ledger.max_bytes == int(0.8 * 2**31)

    @pytest.mark.parametrize("most", [900_000_000, 90_000_000_000], ids=["less", "for a claim that was enlarged by hand"])
    def test_ledger_max_bytes_stays_as_set(self, most: int) -> None:
        objects = render("--set", f"config.ledger.path=/var/lib/weir,config.ledger.max_bytes={most}")
        ledger = config_of(objects).ledger
        assert ledger is not None
        assert ledger.max_bytes == most

    def test_admin_allows_its_service_names(self) -> None:
        allowed = config_of(render("--set", "config.admin.allowed_hosts={weir.example.com}")).admin.allowed_hosts
        service = ".weir-admin.kafka"
        assert allowed == ("weir.example.com", service, f"{service}.svc", f"{service}.svc.cluster.local")

    def test_admin_port_is_closed_by_default(self) -> None:
        objects = render()
        policy, port = one(objects, "NetworkPolicy", "weir")["spec"], config_of(objects).admin.port
        admin, clients = sorted(policy["ingress"], key=lambda rule: {"protocol": "TCP", "port": port} not in rule["ports"])
        assert admin["from"] == [
            {"podSelector": {}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}},
        ]
        assert "from" not in clients
        assert policy["policyTypes"] == ["Ingress"]
        assert "egress" not in policy

    @pytest.mark.parametrize("setting", ["restrictEgress=true", "brokerPorts={9093}"])
    def test_policy_restricts_egress_on_request(self, setting: str) -> None:
        policy = one(render("--set", f"networkPolicy.{setting}"), "NetworkPolicy", "weir")["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert {"protocol": "TCP", "port": 9092} in policy["egress"][1]["ports"]

    def test_agent_and_report_have_policies_too(self) -> None:
        switches = "report.kafka.bootstrapServers=a:9095\\,b:9096,config.quotas.volumes.agent.admin_port=9700"
        objects = render("--values", CHART / "ci" / "everything-values.yaml", "--set", switches)
        agent, report = (one(objects, "NetworkPolicy", f"weir-{name}")["spec"] for name in ("volume-agent", "report"))
        gateway = one(objects, "NetworkPolicy", "weir")["spec"]
        assert [rule["ports"] for rule in agent["ingress"]] == [[{"protocol": "TCP", "port": 9700}]]
        assert agent["ingress"][0]["from"] == gateway["ingress"][1]["from"]
        assert "ingress" not in report
        assert agent["egress"] == gateway["egress"]
        assert [port["port"] for port in report["egress"][1]["ports"]] == [9095, 9096, 9092, 9093]
        for policy, pod in (
            (agent, one(objects, "DaemonSet", "weir-volume-agent")["spec"]["template"]),
            (report, one(objects, "CronJob", "weir-report")["spec"]["jobTemplate"]["spec"]["template"]),
        ):
            assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()

    def test_policy_of_report_leaves_out_spark_applications(self) -> None:
        """Their executors connect to the driver. Spark gives both the label spark-role."""
        objects = render("--values", CHART / "ci" / "everything-values.yaml")
        (unless,) = one(objects, "NetworkPolicy", "weir-report")["spec"]["podSelector"]["matchExpressions"]
        assert unless == {"key": "spark-role", "operator": "DoesNotExist"}

    def test_report_from_files_may_reach_no_broker(self) -> None:
        switches = "networkPolicy.restrictEgress=true,ledgerVolume.enabled=true,report.deployment.enabled=true"
        policy = one(render("--set", switches), "NetworkPolicy", "weir-report")["spec"]
        assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [[53, 53]]

    def test_no_policy_without_network_policy(self) -> None:
        objects = render("--values", CHART / "ci" / "everything-values.yaml", "--set", "networkPolicy.enabled=false")
        assert "NetworkPolicy" not in {found["kind"] for found in objects}

    def test_live_ledger_keys_roll_no_pod(self) -> None:
        def pods(ledger: str) -> Any:
            return one(render("--set", f"rollOnRestartKeys=true,config.ledger.path={ledger}"), "StatefulSet", "weir")["spec"]

        before = pods("/var/lib/weir/a")
        assert pods("/var/lib/weir/a,config.ledger.retention_days=3,config.ledger.flush_seconds=5") == before
        assert pods("/var/lib/weir/b") != before

    @pytest.mark.parametrize(
        ("connections", "seconds"), [("{}", 5 + 10), ('{"drain_seconds": 60.5}', 66), ('{"drain_delay_seconds": 0}', 10)]
    )
    @pytest.mark.parametrize(("workers", "supervisor"), [(1, 0.0), (2, GRACE_SECONDS)])
    def test_grace_period_covers_the_drain(self, connections: str, seconds: int, workers: int, supervisor: float) -> None:
        objects = render("--set-json", f"config.connections={connections}", "--set", f"config.workers={workers}")
        pod = one(objects, "StatefulSet", "weir")["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == seconds + 10 + supervisor
        assert "lifecycle" not in pod["containers"][0]

    def test_readiness_fails_before_a_pod_stops_accepting(self) -> None:
        objects = render()
        probe = one(objects, "StatefulSet", "weir")["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
        assert probe["httpGet"]["path"] == "/readyz"
        delay = config_of(objects).connections.drain_delay_seconds
        assert probe["periodSeconds"] * probe["failureThreshold"] < delay

    def test_deployment_keeps_all_pods_until_new_ones_are_ready(self) -> None:
        deployment = one(render("--set", "kind=Deployment"), "Deployment", "weir")
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0

    def test_agent_and_report_run_existing_commands(self) -> None:
        state = (ROOT / "gateway" / "reports" / "job" / "state.py").read_text()
        (layout,) = re.findall(r'(?m)^LAYOUT = "(\d+)"$', state)
        for name in ("everything", "report-from-kafka"):
            objects = render("--values", CHART / "ci" / f"{name}-values.yaml")
            pod = one(objects, "CronJob", "weir-report")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            arguments = pod["containers"][0]["args"]
            assert arguments[:2] == ["weir", "report"]
            assert f"--out=/var/lib/weir-report/report-{layout}" in arguments, (
                "an upgrade begins a new folder, a rollback returns"
            )
            options = _parser().parse_args(arguments[1:])
            mounts = tuple(mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"])
            assert options.events.startswith(mounts)
            assert options.out.startswith(mounts)

    def test_report_that_stays_is_a_deployment_of_one_pod(self) -> None:
        switches = "report.cronJob.enabled=false,report.deployment.enabled=true,report.deployment.every=15m"
        objects = render("--values", CHART / "ci" / "report-from-kafka-values.yaml", "--set", switches)
        assert "CronJob" not in {found["kind"] for found in objects}
        deployment = one(objects, "Deployment", "weir-report")["spec"]
        assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
        template = deployment["template"]
        assert deployment["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["restartPolicy"] == "Always"
        options = _parser().parse_args(template["spec"]["containers"][0]["args"][1:])
        assert options.every == 900
        claim = template["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        one(objects, "PersistentVolumeClaim", claim)

    def test_agent_finds_broker_id_and_volumes(self, tmp_path: Path) -> None:
        """Run the agent's script with a `weir` that prints its arguments."""
        pod = one(render("--values", CHART / "ci" / "everything-values.yaml"), "DaemonSet", "weir-volume-agent")["spec"]
        command = pod["template"]["spec"]["containers"][0]["command"]
        (tmp_path / "weir").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / "weir").chmod(0o755)
        volumes = [tmp_path / "one volume", tmp_path / "two"]
        for volume in volumes:
            volume.mkdir()
            (volume / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=7\n")
        script = [*command[: -len(volumes)], *volumes]
        done = subprocess.run(script, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True)
        options = _parser().parse_args(done.stdout.splitlines())
        assert (options.broker_id, options.path) == (7, [str(volume) for volume in volumes])

    @pytest.mark.parametrize("ca", ["/etc/weir/secrets/brokers-ca/ca.crt", "../secrets/brokers-ca/ca.crt"])
    def test_agent_has_only_the_secrets_of_upstream(self, ca: str) -> None:
        switches = f"volumeAgent.enabled=true,config.quotas.volumes.source=topic,config.upstream.tls.ca={ca}"
        objects = render("--values", CHART / "ci" / "sni-values.yaml", "--set", switches)
        for kind, name, secrets in (
            ("DaemonSet", "weir-volume-agent", ["brokers-ca", "upstream"]),
            ("StatefulSet", "weir", ["brokers-ca", "clients-tls", "upstream"]),
        ):
            pod = one(objects, kind, name)["spec"]["template"]["spec"]
            mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
            assert [path for path in mounts if "secrets" in path] == [f"/etc/weir/secrets/{secret}" for secret in secrets]
            assert [volume["name"] for volume in pod["volumes"] if "secret" in volume] == [f"secret-{each}" for each in secrets]

    @pytest.mark.parametrize(("settings", "port"), [([], 9645), (["config.quotas.volumes.agent.admin_port=9700"], 9700)])
    def test_agent_is_probed_and_scraped_on_its_port(self, settings: list[str], port: int) -> None:
        values = [argument for setting in settings for argument in ("--set", setting)]
        objects = render("--values", CHART / "ci" / "everything-values.yaml", *values)
        (container,) = one(objects, "DaemonSet", "weir-volume-agent")["spec"]["template"]["spec"]["containers"]
        assert container["ports"] == [{"name": "admin", "containerPort": port}]
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {name: get["path"] for name, get in probes.items()} == {
            "startup": "/livez", "liveness": "/livez", "readiness": "/readyz"
        }  # fmt: skip
        assert {get["port"] for get in probes.values()} == {"admin"}
        monitor = one(objects, "PodMonitor", "weir-volume-agent")["spec"]
        assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["admin"]
        labels = one(objects, "DaemonSet", "weir-volume-agent")["spec"]["template"]["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()

    def test_alerts_and_dashboards_match_their_files(self) -> None:
        objects = render("--values", CHART / "ci" / "everything-values.yaml")
        dashboards = sorted((CHART / "files" / "dashboards").glob("*.json"))
        held = [found["data"] for found in objects if "-dashboard-" in found["metadata"]["name"]]
        assert [{key: json.loads(text) for key, text in data.items()} for data in held] == [
            {path.name: json.loads(path.read_text())} for path in dashboards
        ]
        alerts = CHART / "files" / "alerts.yaml"
        rules = [found["spec"] for found in objects if found["kind"] == "PrometheusRule"]
        assert rules == ([{"groups": loaded(alerts)["groups"]}] if alerts.exists() else [])

    @pytest.mark.parametrize("folder", ["https://docs.example.com/weir", "https://docs.example.com/weir/"])
    def test_alerts_link_to_the_given_runbooks(self, folder: str) -> None:
        values = {"prometheusRule.enabled": "true", "prometheusRule.runbookBaseUrl": folder}
        (found,) = (
            each
            for each in render("--set", ",".join(f"{key}={value}" for key, value in values.items()))
            if each["kind"] == "PrometheusRule"
        )
        alerts = [rule for group in found["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
        addresses = [rule["annotations"]["runbook_url"] for rule in alerts]
        assert addresses == [f"https://docs.example.com/weir/{rule['alert']}.html" for rule in alerts]

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("report.cronJob.enabled=true", "enable ledgerVolume, or give report.kafka.bootstrapServers"),
            ("report.deployment.enabled=true", "report.deployment needs a ledger: enable ledgerVolume"),
            ("report.deployment.enabled=true,report.cronJob.enabled=true", "write the same files: enable one of them"),
            ("report.deployment.enabled=true,report.deployment.every=1.5h", "every"),
            (
                "ledgerVolume.enabled=true,report.cronJob.enabled=true,report.extraArgs[0]=--every=1h",
                "report.extraArgs has --every: enable report.deployment",
            ),
            ("report.sparkApplication.enabled=true", "report.sparkApplication.events is missing"),
            ("config.listeners[0].name=Admin,config.listeners[0].bootstrap_port=9092", "can't be named admin"),
            ("config.listeners[0].name=a,config.listeners[0].bootstrap_port=0", "bootstrap_port"),
            ("config.listeners[0].name=__,config.listeners[0].bootstrap_port=9092", "listeners[0].name is __, and the name"),
            *((f"{key}=null", f"missing property '{key}'") for key in ("autoscaling", "image", "kind", "report", "services")),
            ("image.repository=null", "at '/image': missing property 'repository'"),
            ("service.type=null", "at '/service': missing property 'type'"),
            ("ledgerVolume.size=null", "at '/ledgerVolume': missing property 'size'"),
            ("report.out.accessModes=null", "at '/report/out': missing property 'accessModes'"),
            ("autoscaling.maxReplicas=null", "at '/autoscaling': missing property 'maxReplicas'"),
            ("podDisruptionBudget.maxUnavailable=null", "at '/podDisruptionBudget': missing property 'maxUnavailable'"),
            ("persistence.existingClaim=a", "at '/persistence': additional properties 'existingClaim' not allowed"),
            ("report.out.enabled=false", "at '/report/out': additional properties 'enabled' not allowed"),
            ("config.admin.port=null", "config.admin.port is empty: write a port, such as 9644, or remove the key"),
            ("config.admin=null", "config.admin is empty: write {} for its defaults, or remove the key"),
            *(
                (f"config.admin.host={host}", f"config.admin.host is {host}: kubelet's probes reach only the pod's IP")
                for host in ("127.0.0.1", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1", "localhost", "LocalHost.")
            ),
            ("config.admin.host=null", "config.admin.host is missing, and Weir's default is 127.0.0.1: kubelet's probes"),
            ("config.admin.host=127.0.0.1", "write 0.0.0.0, as in the chart's values; networkPolicy.admin restricts access"),
            (
                "kind=Deployment,config.ledger.path=/var/lib/weir,config.ledger.max_bytes=2000000000",
                "more than the size of the volume of /var/lib/weir:",
            ),
            (
                "services.outsde.type=LoadBalancer",
                "services.outsde: no listener is named outsde; config.listeners has clients: rename the key",
            ),
            (
                "config.ledger.path=/data",
                "ledger.path is /data, but the gateways cannot write to /data, because the root file system is read-only:",
            ),
            (
                "config.ledger.path=/data",
                "read-only: give a path below /tmp or /var/lib/weir, or mount a volume there with extraVolumes",
            ),
            ("config.ledger.path=/var/lib/weir/../a", "cannot write to /var/lib/a,"),
            ("config.ledger.path=/var/lib/weir-ledger", "read-only: set ledgerVolume.enabled to true, or give a path below"),
            (
                "config.ledger.path=/more/a,extraVolumeMounts[0].mountPath=/more,extraVolumeMounts[0].readOnly=true",
                "because /more is read-only",
            ),
            ("config.state.path=/data/state.json", "config.state.path is /data/state.json, but the gateways cannot write"),
            (
                "config.state.path=state.json",
                "cannot write to /etc/weir/config/state.json, because /etc/weir/config is read-only",
            ),
            ("config.state.path=null", "config.state.path is missing, but the gateways cannot write to /etc/weir/config/"),
            ("config.state.usage_path=/data/usage", "config.state.usage_path is /data/usage, but the gateways cannot write"),
            (
                "config.upstream.tls.ca=/etc/weir/secrets/upstream/ca.pem",
                "config has the path /etc/weir/secrets/upstream/ca.pem, but nothing is mounted there: add secrets.upstream, or",
            ),
            (
                "config.upstream.tls.ca=/etc/weir/secrets/ab/ca.pem,secrets.a.secretName=a",
                "config has the path /etc/weir/secrets/ab/ca.pem, but nothing is mounted there: add secrets.ab, or",
            ),
            ("config.admin.port=9092", "config.admin.port is 9092, and config.listeners[0].bootstrap_port is too: give each"),
            ("config.admin.port=9102", "config.admin.port is 9102, one of config.listeners[0].broker_ports (9093-9102): give"),
            (
                "volumeAgent.enabled=true",
                "volumes is missing, so no gateway reads the agents' usage: set config.quotas.volumes.source to topic, or",
            ),
            (
                "volumeAgent.enabled=true,config.quotas.volumes.soft.level=20,config.quotas.volumes.soft.type=MinFreePercentage",
                "config.quotas.volumes.source is log_dirs, so no gateway reads",
            ),
        ],
    )
    def test_impossible_settings_are_refused_with_words(self, setting: str, message: str) -> None:
        assert message in refusal("--set", setting)

    def test_probe_can_be_removed(self) -> None:
        (container,) = one(render("--set", "probes.startup=null"), "StatefulSet", "weir")["spec"]["template"]["spec"][
            "containers"
        ]
        assert "startupProbe" not in container
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"

    @pytest.mark.parametrize(
        ("setting", "expected"),
        [
            ("podSecurityContext=null", {"runAsUser": 10001}),
            ("volumeAgent.runAsUser=null", {"runAsNonRoot": True, "runAsGroup": 10001, "fsGroup": 10001}),
        ],
    )
    def test_agent_has_the_security_context_that_is_left(self, setting: str, expected: dict[str, Any]) -> None:
        settings = f"volumeAgent.enabled=true,config.quotas.volumes.source=topic,probes.liveness=null,{setting}"
        pod = one(render("--set", settings), "DaemonSet", "weir-volume-agent")["spec"]["template"]["spec"]
        assert "livenessProbe" not in pod["containers"][0]
        assert {key: value for key, value in pod["securityContext"].items() if key != "seccompProfile"} == expected

    def test_image_may_have_a_digest(self) -> None:
        digest = f"sha256:{'a' * 64}"
        pod = one(render("--set", f"image.tag={digest}"), "StatefulSet", "weir")["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == f"weir@{digest}"

    def test_gateway_that_is_not_ready_stops_no_drain_of_a_node(self) -> None:
        assert one(render(), "PodDisruptionBudget", "weir")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

    def test_values_kept_from_the_last_release_are_refused(self, values_of_the_last_release: Path, tmp_path: Path) -> None:
        """`helm upgrade --reuse-values` gives the templates the old defaults."""
        chart = shutil.copytree(CHART, tmp_path / "weir")
        shutil.copyfile(values_of_the_last_release, chart / "values.yaml")
        settings = "prometheusRule.enabled=true,ledgerVolume.enabled=true,report.cronJob.enabled=true"
        done = helm_run("template", "weir", chart, "--kube-version", f"{KUBERNETES[0]}.0", "--set", settings)
        assert "is missing, which this version of the chart added" in done.stderr
        assert "use --reset-then-reuse-values (Helm 3.14), or -f with your values" in done.stderr

    def test_two_listeners_with_one_service_name_are_refused(self) -> None:
        names = ["the-clients-outside-1", "the-clients-outside-2"]
        listeners = [{"name": name, "bootstrap_port": 9092 + 200 * index} for index, name in enumerate(names)]
        error = refusal("--set-json", f"config.listeners={json.dumps(listeners)}")
        assert f"config.listeners[1].name is {names[1]}, and its Service would have the name of {names[0]}: rename one" in error

    def test_refusal_of_a_service_names_all_listeners(self) -> None:
        error = refusal("--values", CHART / "ci" / "ports-values.yaml", "--set", "services.outside-world.type=LoadBalancer")
        assert "no listener is named outside-world; config.listeners has inside, Outside_World:" in error

    @pytest.mark.parametrize(
        "settings",
        [
            "config.ledger.path=/tmp/ledger",
            "config.ledger.path=ledger",
            "config.ledger.path=/var/lib/weir-ledger/a,ledgerVolume.enabled=true",
            "config.ledger.path=/more/a,extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/more/",
            "config.state.path=/etc/weir/config/a/b,extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/etc/weir/config/a",
            "config.state.path=/data/state.json,securityContext.readOnlyRootFilesystem=false",
            "volumeAgent.enabled=true,config.quotas.volumes.source=topic",
            "config.upstream.tls.ca=/etc/weir/secrets/a/ca.pem,secrets.a.secretName=a",
            "config.upstream.tls.ca=/etc/weir/secrets/a/ca.pem,extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/etc/weir/secrets/a/",
            "config.admin.port=9103",
            "config.admin.host=::",
            "config.admin.host=10.1.27.1",
            "config.admin.host=fd00::1",
        ],
    )
    def test_possible_settings_are_accepted(self, settings: str) -> None:
        assert render("--set", settings)

    @pytest.fixture
    def notes(self, tmp_path: Path) -> Callable[..., str]:
        """The notes for values such as `replicas=2`. Helm prints them only beside a cluster: a template of a copy has them."""
        chart = shutil.copytree(CHART, tmp_path / "weir")
        shutil.copy(chart / "templates" / "NOTES.txt", chart / "files")
        (chart / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "files/NOTES.txt") . | toJson }}')

        def notes(*values: str) -> str:
            only = ["--kube-version", f"{KUBERNETES[0]}.0", "--show-only", "templates/notes.yaml"]
            text = helm("template", "weir", chart, *only, *(part for value in values for part in ("--set-json", value)))
            return str(yaml.safe_load(text)["notes"])

        return notes

    def test_notes_warn_of_webhooks_in_the_config_map(self, notes: Callable[..., str]) -> None:
        targets = [{"name": "chat", "url": "https://hooks.example.com/secret"}, {"name": "file", "url_file": "/tmp/hook"}]
        assert "shows the addresses of webhooks, because these of config.notify.targets have `url`: chat." in notes(
            f"config.notify={json.dumps({'targets': targets})}"
        )
        others = f"config.notify={json.dumps({'targets': targets[1:]})}", "config.notify=null"
        assert not [values for values in others if "webhooks" in notes(values)]

    @pytest.mark.parametrize(
        ("quotas", "said"),
        [
            ("null", True),
            ('{"entities": []}', True),
            ('{"entities": [{"user": "a", "producer_byte_rate": 1}]}', False),
            ('{"groups": [{"name": "jobs", "match": [{"user": "a"}], "producer_byte_rate": 1}]}', False),
        ],
    )
    def test_notes_say_if_no_client_has_a_rate(self, quotas: str, said: bool, notes: Callable[..., str]) -> None:
        assert ("No client has a rate" in notes(f"config.quotas={quotas}")) == said

    def test_default_kubernetes_version_satisfies_the_chart(self) -> None:
        done = helm_run("template", "weir", CHART)
        remedy = "if an old checkout built this Helm: rm .cache/stamps/helm .cache/tools/bin/helm; make charttools"
        assert done.returncode == 0, f"{done.stderr}\n{remedy}"
