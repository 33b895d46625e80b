"""The programs that the files in deploy/ start: which, with what arguments and environment."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.repository import ROOT

DEPLOY = ROOT / "deploy"
OF_IMAGES = {"enginewire-engine": "enginewire-server", "enginewire-backend": "enginewire-backend serve"}
"""What the images have as their entry points."""
OF_CONTAINERS = {"engine": "enginewire-server", "backend": "enginewire-backend serve"}
"""Patches of Kustomize name the container alone."""


@dataclass(frozen=True, slots=True)
class Program:
    """One start of one program."""

    file: Path
    name: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.file.relative_to(DEPLOY)} {self.name}"


def programs() -> Iterator[Program]:
    """All of them."""
    for file in sorted(DEPLOY.glob("docker/*.Dockerfile")):
        yield of_dockerfile(file)
    yield from of_compose(DEPLOY / "compose.yaml")
    for file in (*sorted(DEPLOY.glob("kubernetes/**/*.yaml")), DEPLOY / "ray" / "engine.yaml"):
        yield from of_manifests(file)
    for file in sorted(DEPLOY.glob("systemd/*.service")):
        yield of_unit(file)


def of_dockerfile(file: Path) -> Program:
    """ENTRYPOINT, CMD and ENV of the last stage."""
    text = re.sub(r"\\\n", " ", file.read_text())
    stage = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    words = [
        word
        for instruction in ("ENTRYPOINT", "CMD")
        for found in re.findall(rf"^{instruction} (\[.*\])$", stage, re.MULTILINE)
        for word in json.loads(found)
    ]
    count = 2 if words[1:2] == ["serve"] else 1
    variables = re.findall(r"\b(ENGINEWIRE_\w+)=(\S+)", stage)
    return Program(file, " ".join(words[:count]), words[count:], dict(variables))


def of_compose(file: Path) -> Iterator[Program]:
    """The command of each service, behind the entry point of its image."""
    for service in yaml.safe_load(file.read_text())["services"].values():
        yield Program(file, OF_IMAGES[service["image"].partition(":")[0]], service["command"])


def documents(file: Path) -> list[dict[str, object]]:
    """The YAML documents of a file."""
    # Read when tests are collected, by every worker: what is written in C takes a tenth of the time.
    return [document for document in yaml.load_all(file.read_text(), yaml.CSafeLoader) if document]


def containers(document: object) -> Iterator[dict[str, object]]:
    """The containers of a pod, wherever in a document it is."""
    if isinstance(document, list):
        for each in document:
            yield from containers(each)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key in ("containers", "initContainers"):
                yield from value
            else:
                yield from containers(value)


def of_manifests(file: Path) -> Iterator[Program]:
    """The arguments of each container that gives some."""
    for document in documents(file):
        for container in containers(document):
            if "args" in container:
                variables = {each["name"]: each.get("value", "") for each in container.get("env", ())}
                yield Program(file, OF_CONTAINERS[container["name"]], container["args"], variables)


def of_unit(file: Path) -> Program:
    """ExecStart and Environment of a systemd unit."""
    text = re.sub(r"\\\n", " ", file.read_text())
    words = shlex.split(re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0])
    name = Path(words[0]).name
    count = 2 if words[1:2] == ["serve"] else 1
    variables = dict(re.findall(r"^Environment=(\w+)=(\S*)$", text, re.MULTILINE))
    return Program(file, " ".join([name, *words[1:count]]), words[count:], variables)
