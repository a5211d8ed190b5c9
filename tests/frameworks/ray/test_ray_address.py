"""An address without a cluster is an error at once, where Ray would wait for minutes."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from align.core.errors import RunError
from align.layers.spread import on_ray


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_at_which_nothing_listens_is_named(form: str) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        address = form.format(taken.getsockname()[1])
        with pytest.raises(RunError, match="is no Ray cluster"), on_ray(address):
            pass


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(RunError, match="is no Ray cluster"), on_ray("no-such-host.invalid:6379"):
        pass
