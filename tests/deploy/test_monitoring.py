"""Dashboard, alerts and KEDA ask for what the servers export; each alert is explained and rehearsed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from enginewire.backend.activity.activity import Activity
from enginewire.backend.frontends.http_api.metrics import BackendMetrics
from enginewire.backend.replay.retry import RetryBudget
from enginewire.tls.certificate import CertificateFiles, PemFiles
from tests.certificates import Authority
from tests.repository import ROOT
from tests.server.telemetry.metrics.test_page import Shown

PROMETHEUS, DASHBOARD = ROOT / "deploy/prometheus", ROOT / "deploy/grafana/enginewire.json"
METRIC = re.compile(r"\b(?:vllm|enginewire):[a-z0-9_]+|\bprocess_[a-z_]+")
PAGES = "".join((ROOT / "docs" / name).read_text() for name in ("metrics.md", "http.md", "operating.md"))
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRESSIONS += [rule["expr"] for rule in RULES]
KEDA = yaml.safe_load((ROOT / "deploy/kubernetes/autoscaling/keda.yaml").read_text())["spec"]
EXPRESSIONS += [trigger["metadata"]["query"] for trigger in KEDA["triggers"]]
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


def asked() -> set[str]:
    """Names as the documentation writes them."""
    found = {name for expr in EXPRESSIONS for name in METRIC.findall(expr)}
    return {re.sub("|".join(f"{end}$" for end in OF_HISTOGRAMS), "", name) for name in found}


def exported(page: bytes) -> set[str]:
    families = text_string_to_metric_families(page.decode())
    return {family.name + "_total" * (family.type == "counter") for family in families}


async def test_every_name_is_exported(tmp_path: Path) -> None:
    engine = Shown()
    await engine.start()
    mine = Authority(tmp_path).signed("mine")
    files = CertificateFiles(PemFiles(mine.certificate, mine.key), "server")
    backend = BackendMetrics(Activity(), [], RetryBudget(), files)
    there = exported(generate_latest(engine.exporter.context.registry)) | exported(backend.page("")[0])
    assert asked() - there == set()


def test_every_name_is_documented() -> None:
    ours = {name for name in asked() if not name.startswith("process_")}
    assert {name for name in ours if not re.search(rf"`{name}[`{{]", PAGES)} == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_explained_and_rehearsed(rule: dict[str, object]) -> None:
    assert f"\n## {rule['alert']}\n" in RUNBOOK
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    rehearsed = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    fired = [each for test in rehearsed for each in test["alert_rule_test"] if each.get("exp_alerts")]
    assert rule["alert"] in {each["alertname"] for each in fired}
    assert set(rule["labels"]) == {"severity"}
    assert rule["annotations"]["summary"]


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        assert panel["description"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
