"""The engines at the addresses of a name."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from enginewire.backend.engines.discovery import dns_name
from enginewire.backend.engines.discovery.address import Address, InvalidTargets
from enginewire.backend.engines.discovery.dns_name import DnsName, all_records


class Records:
    """A resolver that says what a test wants."""

    def __init__(self, *answers: Sequence[str] | OSError) -> None:
        self.asked: list[tuple[str, int]] = []
        self._answers = list(answers)

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append((name, port))
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.mark.parametrize("target", ["dns:///engine:50051", "dns:engine:50051"])
async def test_every_address_is_an_engine_with_the_name_in_its_certificate(target: str) -> None:
    records = Records(["ipv4:10.0.0.2:50051", "ipv4:10.0.0.1:50051", "ipv4:10.0.0.2:50051"])
    assert await DnsName(target, records).look() == (
        Address("ipv4:10.0.0.1:50051", "engine"),
        Address("ipv4:10.0.0.2:50051", "engine"),
    )
    assert records.asked == [("engine", 50051)]


async def test_a_name_that_cannot_be_found_now_says_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    name = DnsName("dns:///engine:1", Records(fault, fault, ["ipv4:10.0.0.1:1"], fault))
    looks = [await name.look() for _ in range(4)]
    assert [look is None for look in looks] == [True, True, False, True]
    assert caplog.text.count("dns:///engine:1: Name or service not known") == 2


async def test_more_addresses_than_a_backend_can_have_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_name, "MAX_ENGINES", 1)
    assert await DnsName("dns:///engine:1", Records(["ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"])).look() is None


async def test_the_resolver_of_the_system_is_asked() -> None:
    assert await all_records("127.0.0.3", 7) == ["ipv4:127.0.0.3:7"]
    assert await all_records("::1", 7) == ["ipv6:[::1]:7"]
    assert set(await all_records("localhost", 7)) <= {"ipv4:127.0.0.1:7", "ipv6:[::1]:7"}


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("dns://10.0.0.2/engine:1", "write dns:///name:port"),
        ("dns:///engine", "'engine' is not host:port"),
        ("dns:///engine:0", "a port of 1 to 65535"),
        ("dns:///", "'' is not host:port"),
    ],
)
def test_a_name_that_is_written_wrong_is_refused(target: str, fault: str) -> None:
    with pytest.raises(InvalidTargets) as caught:
        DnsName(target)
    assert str(caught.value).startswith(f"{target}: ")
    assert fault in str(caught.value)
