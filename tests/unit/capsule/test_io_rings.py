"""Processes that no image can be taken of, because they have an io_uring."""

from __future__ import annotations

import ctypes
import os

import pytest
from singularity_proxy.capsule.images.io_rings import with_io_ring

IO_URING_SETUP = 425
PARAMETERS_BYTES = 120
NOBODY = 1 << 30


def test_a_process_with_an_io_uring_is_found() -> None:
    mine = os.getpid()
    assert with_io_ring([NOBODY, mine]) is None
    fd = ctypes.CDLL(None, use_errno=True).syscall(
        IO_URING_SETUP, 1, ctypes.create_string_buffer(PARAMETERS_BYTES)
    )
    if fd < 0:
        pytest.skip(f"no io_uring here: {os.strerror(ctypes.get_errno())}")
    try:
        assert with_io_ring([NOBODY, mine]) == mine
    finally:
        os.close(fd)
    assert with_io_ring([NOBODY, mine]) is None
