from __future__ import annotations

import pytest

from enginewire.backend.frontends.dynamo.options import DynamoOptions
from enginewire.options import OptionError


def test_dynamos_own_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_NAMESPACE", raising=False)
    assert DynamoOptions().path == "dynamo.backend.generate"
    monkeypatch.setenv("DYN_NAMESPACE", "prod")
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "file")
    options = DynamoOptions(component="torch")
    assert (options.path, options.discovery_backend) == ("prod.torch.generate", "file")


def test_beyond_loopback_somebody_has_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="--host"):
        DynamoOptions(host="0.0.0.0")
    with pytest.raises(OptionError, match="--kv-routing"):
        DynamoOptions(kv_routing=True)
    DynamoOptions(host="0.0.0.0", kv_routing=True, allow_insecure=True)
    DynamoOptions(kv_routing=True, event_plane="nats")
    monkeypatch.setenv("DYN_TCP_TLS_CERT_PATH", "cert.pem")
    with pytest.raises(OptionError, match="DYN_TCP_TLS_CLIENT_CA_CERT_PATH"):
        DynamoOptions(host="0.0.0.0")
    monkeypatch.setenv("DYN_TCP_TLS_CLIENT_CA_CERT_PATH", "ca.pem")
    DynamoOptions(host="0.0.0.0")
