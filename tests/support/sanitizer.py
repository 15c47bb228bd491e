"""Device proxies and holders of capsules whose native code is built with the address and
undefined-behaviour sanitizers."""

from __future__ import annotations

import ctypes.util
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from singularity_proxy import build
from singularity_proxy.errors import Unsupported

BUILD_SECONDS = 900


@functools.cache
def environment() -> dict[str, str]:
    """What a process needs besides its own environment; builds the library first, which is kept in
    the checkout between runs. Skips the test where the sanitizer's runtime is not installed."""
    try:
        runtime = build.sanitizer_runtime()
    except Unsupported as error:
        pytest.skip(error.message)
    if runtime is None:
        pytest.skip("the address sanitizer's runtime library is not installed")
    wanted = {build.SANITIZE: "address"}
    done = subprocess.run(
        [sys.executable, "-m", "singularity_proxy.build", "--quiet"],
        env={**os.environ, **wanted},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return wanted | {
        # The runtime looks for the C++ library's functions when it starts, before torch brings it.
        "LD_PRELOAD": f"{runtime}:{_library('stdc++')}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1:"
        "handle_sigbus=0:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def build_holder(folder: Path) -> Path:
    """Build the holder of capsules with the sanitizers, which end it at its first mistake."""
    program = folder / "holder"
    flags = ["-std=c++20", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = build.PACKAGE / "capsule/holder.cpp"
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    return program


def _library(name: str) -> str:
    found = subprocess.run(
        ["gcc", f"-print-file-name=lib{name}.so.6"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return str(Path(found).resolve()) if "/" in found else str(ctypes.util.find_library(name))
