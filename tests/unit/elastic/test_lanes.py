"""Messages between the rendezvous of two parts, over a way that loses, doubles and mixes them."""

from __future__ import annotations

import copy
import random

import pytest
from singularity_proxy.elastic.bridge.lanes import WINDOW, Lane
from singularity_proxy.errors import BadRequest
from support import matrix


def deliver(frames: list[bytes], to: Lane) -> list[bytes]:
    return [message for frame in frames if (message := to.came(frame)) is not None]


def test_messages_go_over_and_are_confirmed() -> None:
    one, other = Lane(), Lane()
    one.put(b"a")
    one.put(b"")
    assert one.waits
    assert deliver(one.take(), other) == [b"a", b""]
    assert deliver(other.take(), one) == []
    assert not one.waits
    assert one.take() == other.take() == []


def test_what_was_lost_is_sent_again_after_a_second() -> None:
    one, other = Lane(), Lane()
    one.put(b"a")
    one.take()  # lost
    one.tick()
    assert one.take()  # lost as well: it was not confirmed at the tick before either
    assert one.take() == []
    one.tick()
    assert deliver(one.take(), other) == [b"a"]
    other.take()  # the confirmation is lost
    one.tick()
    assert deliver(one.take(), other) == []
    deliver(other.take(), one)
    assert not one.waits


def test_no_more_than_a_window_is_on_its_way() -> None:
    one, other = Lane(), Lane()
    for number in range(2 * WINDOW):
        one.put(b"%d" % number)
    first = one.take()
    assert len(first) == WINDOW
    assert one.take() == []
    deliver(first, other)
    deliver(other.take(), one)
    assert len(one.take()) == WINDOW


@pytest.mark.parametrize("seed", matrix.some_of(range(40), 8))
def test_each_message_comes_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    lanes, came = (Lane(), Lane()), ([], [])
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    for turn in range(3000):
        end = chance.randrange(2)
        if turn < 2000 and chance.random() < 0.3:
            message = bytes([end, turn % 256, turn // 256])
            sent[end].append(message)
            lanes[end].put(message)
        lossy = turn < 2500
        frames = [f for f in lanes[end].take() if not lossy or chance.random() < 0.8]
        if lossy and frames and chance.random() < 0.2:
            frames.append(chance.choice(frames))  # of an old connection
        came[1 - end].extend(deliver(frames, lanes[1 - end]))
        if chance.random() < 0.1:
            lanes[end].tick()
        if chance.random() < 0.02:
            lanes[end].rewind()
    assert (came[1], came[0]) == sent
    assert lanes[0].era == lanes[1].era == 0
    assert not lanes[0].waits
    assert not lanes[1].waits


def speak(one: Lane, other: Lane) -> list[bytes]:
    """Over a way that loses nothing, until nobody has anything to say; -> what `other` got."""
    got = []
    for _ in range(20):
        got += deliver(one.take(), other)
        deliver(other.take(), one)
        one.tick()
        other.tick()
    return got


@pytest.mark.parametrize("more", ["sent", "received", "other"])
def test_images_that_do_not_fit_begin_a_new_era(more: str) -> None:
    """A side comes back as it was before it had sent, or received, what the other one knows."""
    one, other = Lane(), Lane()
    one.put(b"first")
    assert speak(one, other) == [b"first"]
    image = copy.deepcopy(one if more != "received" else other)
    one.put(b"second")
    assert speak(one, other) == [b"second"]
    if more == "received":
        other = image
        for lane in (one, other):
            lane.rewind()
    else:
        one = image
        if more == "other":
            one.put(b"what it says instead")
        for lane in (one, other):
            lane.rewind()
    for _ in range(3):
        speak(one, other)
        for lane in (one, other):
            lane.rewind()
    assert one.era == other.era == 1
    one.put(b"new")
    assert speak(one, other) == [b"new"]
    assert not one.waits


def test_images_that_fit_go_on() -> None:
    """What one had sent and the other not received, or not confirmed, is no loss."""
    one, other = Lane(), Lane()
    for message in (b"first", b"second"):
        one.put(message)
    assert deliver(one.take(), other) == [b"first", b"second"]
    one.put(b"third")
    one.take()  # lost
    one, other = copy.deepcopy(one), copy.deepcopy(other)
    one.rewind()
    other.rewind()
    assert speak(one, other) == [b"third"]
    assert one.era == other.era == 0


@pytest.mark.parametrize("frame", [b"", b"short", bytes(29), b"\x07" + bytes(28)])
def test_what_is_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(BadRequest, match="is no message"):
        Lane().came(frame)
