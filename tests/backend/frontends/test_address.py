"""Where the backend's own socket may be."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.address import AddressError, listen


async def test_a_folder_in_which_everybody_may_replace_the_socket_is_refused(socket_folder: Path) -> None:
    place = socket_folder / "open"
    place.mkdir()
    options = ServeOptions(uds=place / "backend.sock")
    place.chmod(0o777)
    refused = pytest.raises(AddressError, match=f"^{place}: everybody may replace files in it$")
    with refused, listen(grpc.aio.server(), options):
        pass
    place.chmod(0o1777)
    with listen(grpc.aio.server(), options) as target:
        assert target == f"unix:{options.uds}"
    assert not options.uds.exists()
