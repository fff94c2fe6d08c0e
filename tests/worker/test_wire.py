"""Broadcasts over TCP: in order, to all, to no stranger; a peer that is gone is an error, not a hang."""

import socket
import threading

import numpy as np
import pytest

from lbbsp.worker.wire import RANK_BYTES, TOKEN_BYTES, Hub, Spoke

ENTRIES = 7


@pytest.fixture
def ends():
    """A hub and three spokes."""
    hub = Hub("127.0.0.1")
    meeting = threading.Thread(target=hub.meet, args=(4,))
    meeting.start()
    strangers = [
        b"x" * (TOKEN_BYTES + RANK_BYTES),
        hub.token + (9).to_bytes(RANK_BYTES),
        hub.token + (0).to_bytes(RANK_BYTES),
        b"GET /",
    ]
    for shown in strangers:
        with socket.create_connection(("127.0.0.1", hub.port)) as line:
            line.sendall(shown)
    spokes = [Spoke("127.0.0.1", hub.port, hub.token, rank) for rank in (3, 1, 2)]
    meeting.join(10)
    assert not meeting.is_alive()
    yield hub, spokes
    for end in (hub, *spokes):
        end.close()


def test_all_get_all_in_order_whenever_they_ask(ends):
    hub, spokes = ends
    payloads = [np.arange(ENTRIES) + 100 * number for number in range(50)]
    early = [spoke.receive(ENTRIES) for spoke in spokes]
    for payload in payloads:
        hub.send(payload)
    for spoke, first in zip(spokes, early, strict=True):
        got = [first(), *(spoke.receive(ENTRIES)() for _ in payloads[1:])]
        np.testing.assert_array_equal(got, payloads)


def test_a_gone_hub_is_an_error_after_what_it_sent(ends):
    hub, spokes = ends
    hub.send(np.arange(ENTRIES))
    hub.close()
    for spoke in spokes:
        np.testing.assert_array_equal(spoke.receive(ENTRIES)(), np.arange(ENTRIES))
        with pytest.raises(OSError):
            spoke.receive(ENTRIES)()


def send_often(hub):
    for _ in range(1000):
        hub.send(np.zeros(1000, dtype=np.int64))


def test_a_gone_spoke_is_an_error(ends):
    hub, spokes = ends
    spokes[0].close()
    with pytest.raises(OSError):
        send_often(hub)


def test_a_rank_that_does_not_come():
    with pytest.raises(TimeoutError):
        Hub("127.0.0.1").meet(2, timeout_s=0.05)
