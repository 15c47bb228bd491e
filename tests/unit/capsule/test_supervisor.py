"""What is kept running is started again, after pauses, and given up when it dies too often."""

from __future__ import annotations

import asyncio

import pytest
from singularity_proxy.capsule.supervisor import GaveUp, RestartPolicy, Restarts, keep_running
from singularity_proxy.errors import Unavailable

AT_ONCE = RestartPolicy(first_pause_s=0.0)


def pauses(policy, times, answered=True):
    """What `Restarts` says to parts that end at these times."""
    now = [0.0]
    restarts = Restarts(policy, lambda: now[0])
    found = []
    for at in times:
        now[0] = at
        found.append(restarts.next_pause(answered))
    return found


def test_pauses_double_up_to_the_longest():
    policy = RestartPolicy(first_pause_s=0.1, longest_pause_s=0.5)
    assert pauses(policy, [9, 10, 11, 12, 13]) == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_a_part_that_went_on_for_a_while_is_started_at_once_however_often():
    policy = RestartPolicy(first_pause_s=0.1, steady_s=3.0)
    assert pauses(policy, [9, 13, 17, 21, 22, 26]) == [0.1, 0.1, 0.1, 0.1, 0.2, 0.1]


def test_the_limit_is_of_a_moving_window():
    policy = RestartPolicy(limit=2, within_s=10.0, longest_pause_s=0.1, steady_s=100.0)
    assert pauses(policy, [0, 5, 9, 11, 12, 20]) == [0.1, 0.1, None, 0.1, None, 0.1]


def test_one_that_was_well_each_time_is_never_given_up():
    policy = RestartPolicy(limit=2, within_s=60.0, first_pause_s=0.1, steady_s=3.0)
    assert pauses(policy, [4, 8, 12, 16]) == [0.1] * 4


@pytest.mark.parametrize("answered", [True, False])
def test_without_a_limit_it_is_never_given_up(answered):
    assert None not in pauses(RestartPolicy(), range(10_000), answered)


def test_starts_that_take_longer_than_the_window_are_given_up_too():
    policy = RestartPolicy(limit=2, within_s=10.0, first_pause_s=0.1)
    assert pauses(policy, [50, 100, 150], answered=False) == [0.2, 0.4, None]
    assert None not in pauses(policy, range(50, 5000, 50))


class Thing:
    """Ends as often as it is started; the starts named in `fails` do not succeed."""

    name = "the thing"

    def __init__(self, ends, fails=(), answered=True):
        self.answered = answered
        self.left = ends
        self.starts = 0
        self.fails = dict(fails)

    async def start(self):
        self.starts += 1
        if self.starts in self.fails:
            raise self.fails[self.starts]

    async def ended(self):
        if not self.left:
            await asyncio.Event().wait()
        self.left -= 1
        return "was killed (SIGKILL)"


async def kept(thing, policy=AT_ONCE):
    """Keep it running until it goes on, or raises; what was told."""
    told = []
    keeper = asyncio.ensure_future(keep_running(thing, policy, lambda *line: told.append(line)))
    for _ in range(100):
        await asyncio.sleep(0)
    keeper.cancel()
    try:
        await keeper
    except asyncio.CancelledError:
        pass
    except Unavailable as error:
        told.append(error)
    return told


@pytest.mark.asyncio
async def test_it_is_started_again_each_time_and_told_each_time():
    thing = Thing(ends=3)
    assert await kept(thing) == [("was killed (SIGKILL)", True)] * 3
    assert thing.starts == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [Unavailable("it did not answer"), OSError("No space left")])
async def test_a_start_that_fails_is_tried_again(error):
    thing = Thing(ends=1, fails={1: error})
    assert await kept(thing) == [
        ("was killed (SIGKILL)", True),
        (f"could not be started ({error})", True),
    ]
    assert thing.starts == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answered", "said"), [(True, "within 60 s"), (False, "and did not answer once")]
)
async def test_one_that_ends_too_often_is_given_up_in_one_sentence(answered, said):
    policy = RestartPolicy(limit=2, within_s=60.0, first_pause_s=0.0)
    thing = Thing(ends=100, answered=answered)
    *told, error = await kept(thing, policy)
    assert [again for _, again in told] == [True, True, False]
    assert isinstance(error, GaveUp)
    assert error.message == (
        f"the thing was killed (SIGKILL), after it was started again 2 times {said}"
    )
    assert error.fields["part"] == "the thing"
