"""The manifests hold what docs/operating.md promises: nothing runs as root, and time-outs fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from enginewire.backend.commands.serve import MARGIN_SECONDS
from enginewire.backend.config import load_serve
from enginewire.server.config.given import load_options
from enginewire.server.lifecycle import CANCEL_GRACE_SECONDS, CLEANUP_SECONDS
from tests.deploy.programs import DEPLOY, containers, documents

KUBERNETES = DEPLOY / "kubernetes"
PODS = [
    (file, document["spec"]["template"]["spec"])
    for file in sorted(KUBERNETES.glob("*/*.yaml"))
    for document in documents(file)
    if document["kind"] in ("Deployment", "StatefulSet")
]
WHOLE = [(file, pod) for file, pod in PODS if "terminationGracePeriodSeconds" in pod]


def named(given: list[tuple[Path, dict]]) -> list[object]:
    return [pytest.param(pod, id=file.relative_to(KUBERNETES).as_posix()) for file, pod in given]


def flag(container: dict, name: str) -> float:
    """The number behind a flag."""
    (found,) = [word.partition("=")[2] for word in container["args"] if word.startswith(f"{name}=")]
    return float(found)


@pytest.mark.parametrize("pod", named(WHOLE))
def test_nothing_runs_as_root_or_writes_to_its_image(pod: dict) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("pod", named(WHOLE))
def test_the_kubelet_waits_as_long_as_the_ends_may_take(pod: dict) -> None:
    seconds = 0.0
    by_name = {container["name"]: container for container in containers(pod)}
    if "backend" in by_name:
        backend = by_name["backend"]
        seconds += backend["lifecycle"]["preStop"]["sleep"]["seconds"]
        seconds += flag(backend, "--shutdown-timeout") + MARGIN_SECONDS
    if "engine" in by_name:
        # Behind a backend that has ended nothing runs any more.
        drain = 0.0 if "backend" in by_name else flag(by_name["engine"], "--shutdown-timeout")
        seconds += drain + CANCEL_GRACE_SECONDS + CLEANUP_SECONDS
    assert seconds + 5 <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("pod", named(WHOLE))
def test_probes_ask_the_port_that_serves_health(pod: dict) -> None:
    ports = []
    for container in containers(pod):
        port = int(flag(container, "--health-port"))
        probes = [container[name]["grpc"] for name in container if name.endswith("Probe")]
        assert len(probes) >= 2
        assert {probe["port"] for probe in probes} == {port}
        assert "service" not in container["livenessProbe"]["grpc"]
        ports.append(port)
    # The containers of a pod share its address.
    assert len(set(ports)) == len(ports)


def test_the_socket_is_in_a_folder_that_the_programs_trust() -> None:
    (pod,) = [pod for file, pod in WHOLE if file.parent.name == "sidecar"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "sockets"]
    # A tmpfs is sticky.
    assert volume["emptyDir"]["medium"] == "Memory"
    mounts = {
        mount["mountPath"]
        for container in containers(pod)
        for mount in container["volumeMounts"]
        if mount["name"] == "sockets"
    }
    (engine,) = pod["initContainers"]
    (backend,) = pod["containers"]
    socket = load_options(engine["args"]).uds
    assert {str(socket.parent)} == mounts
    assert load_serve(backend["args"]).target == (f"unix:{socket}",)
    assert engine["restartPolicy"] == "Always"


def test_backends_find_every_engine_of_the_stateful_set_also_those_that_load() -> None:
    engines, service, _ = documents(KUBERNETES / "separate" / "engine.yaml")
    backend = documents(KUBERNETES / "separate" / "backend.yaml")[0]
    (container,) = containers(backend)
    named = [word.partition("=")[2] for word in container["args"] if word.startswith("--target=")]
    name, spec = service["metadata"]["name"], service["spec"]
    assert named == [f"dns:///{name}:{spec['ports'][0]['port']}"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert engines["spec"]["serviceName"] == name
    assert spec["selector"].items() <= engines["spec"]["template"]["metadata"]["labels"].items()


def test_keda_scales_as_the_hpa_does() -> None:
    (hpa,), (keda,) = (documents(KUBERNETES / "autoscaling" / f"{name}.yaml") for name in ("hpa", "keda"))
    one, other = hpa["spec"], keda["spec"]
    assert one["scaleTargetRef"]["name"] == other["scaleTargetRef"]["name"]
    assert one["minReplicas"] == other["minReplicaCount"]
    assert one["maxReplicas"] == other["maxReplicaCount"]
    assert one["behavior"] == other["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    targets = [metric["pods"]["target"]["averageValue"] for metric in one["metrics"]]
    thresholds = [float(trigger["metadata"]["threshold"]) for trigger in other["triggers"]]
    assert thresholds == [float(targets[0]), float(targets[1].removesuffix("m")) / 1000]


@pytest.mark.parametrize("file", sorted(KUBERNETES.glob("*/kustomization.yaml")), ids=lambda f: f.parent.name)
def test_a_kustomization_names_what_is_there(file: Path) -> None:
    said = yaml.safe_load(file.read_text())
    paths = [*said["resources"], *(patch["path"] for patch in said.get("patches", ()))]
    assert all((file.parent / path).exists() for path in paths)
