"""Where servers listen."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewire.grpc_server import bare_server
from enginewire.listening.binding import listen
from enginewire.listening.sockets import AddressError


async def test_a_folder_in_which_everybody_may_replace_the_socket_is_refused(socket_folder: Path) -> None:
    place = socket_folder / "open"
    place.mkdir()
    uds = place / "backend.sock"
    place.chmod(0o777)
    refused = pytest.raises(AddressError, match=f"^{place}: everybody may replace files in it$")
    with refused, listen(bare_server(), uds, "", None):
        pass
    place.chmod(0o1777)
    with listen(bare_server(), uds, "", None) as target:
        assert target == f"unix:{uds}"
    assert not uds.exists()
