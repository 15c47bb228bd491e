"""When the scheduler is told that calls stopped to reach a session's devices."""

from __future__ import annotations

from singularity_scheduler.agent.sessions.use import QUIET_S, UseWatch


def test_calls_are_told_once_and_quiet_once():
    use = UseWatch()
    assert use.look(100.0, 10, False) is None
    assert use.quiet_s(100.0) is None
    assert use.look(100.2, 20, False) == 0.0
    assert use.look(100.4, 30, False) is None
    assert use.quiet_s(100.4) == 0.0
    assert use.look(100.4 + QUIET_S - 0.1, 30, False) is None
    told = use.look(100.4 + QUIET_S, 30, False)
    assert told is not None
    assert abs(told - QUIET_S) < 1e-6
    assert use.look(200.0, 30, False) is None
    assert use.quiet_s(200.4) == 100.0
    assert use.look(201.0, 31, False) == 0.0


def test_one_long_operation_is_no_quiet():
    use = UseWatch()
    use.look(0.0, 10, False)
    for second in range(1, 60):
        assert use.look(float(second), 10, True) == (0.0 if second == 1 else None)
    assert use.look(60.0, 10, False) is None
    assert use.look(59.0 + QUIET_S, 10, False) == QUIET_S
