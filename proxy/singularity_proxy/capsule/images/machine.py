"""What of a machine a process image depends on: its processor, its kernel, its CRIU.

A program looks at the processor once, when it starts, and goes on to use what it found: libc and
the linear algebra of torch choose their code so. The same holds for the kernel's calls. So an image
can be restored where everything is there that was there when it was taken, also on a newer or
larger machine. CRIU reads images of older versions of itself.

`here` is asked once at the agent's start; a checkpoint's record and the agent's `hello` carry it.
`why_not` is pure, and the scheduler uses it too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_X86 = re.compile(
    r"3dnow\w*|abm|adx|aes|amx_\w+|avx\w*|bmi[12]|cldemote|clflush\w*|clwb|clzero|cmov|cmpccxadd"
    r"|cx8|cx16|enqcmd|f16c|fma4?|fsgsbase|fsrm|fxsr|gfni|hle|kl|lahf_lm|lwp|lzcnt|mmx\w*|monitorx"
    r"|movbe|movdir\w+|ospke|pclmulqdq|pni|popcnt|prefetch\w+|ptwrite|raoint|rdpid|rdrand|rdseed"
    r"|rdtscp|rtm|serialize|sha_ni|sha512|sm3|sm4|ss?se\w*|tbm|tsxldtrk|user_shstk|vaes|vpclmulqdq"
    r"|waitpkg|widekl|xgetbv1|xop|xsave|xsavec|xsaveopt|xsaves"
)
"""What of the flags in /proc/cpuinfo a program can use; the others are the system's own."""


@dataclass(frozen=True)
class Machine:
    """`cpu`: the instructions that programs can use, as /proc/cpuinfo calls them."""

    arch: str
    cpu: frozenset[str]
    kernel: str
    criu: str
    """"" where there is none."""

    def to_json(self) -> dict[str, Any]:
        """For records and `hello`."""
        return {
            "arch": self.arch,
            "cpu": sorted(self.cpu),
            "kernel": self.kernel,
            "criu": self.criu,
        }

    @classmethod
    def from_json(cls, data: object) -> Machine | None:
        """None for what says nothing: the records of older agents."""
        if not isinstance(data, Mapping) or not data.get("arch"):
            return None
        cpu = data.get("cpu")
        return cls(
            str(data["arch"]),
            frozenset(map(str, cpu if isinstance(cpu, list) else ())),
            str(data.get("kernel") or ""),
            str(data.get("criu") or ""),
        )


def here(criu: str | None) -> Machine:
    """This machine; `criu` is the version that `criu.probe` found."""
    uname = os.uname()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            cpu = instructions(file.read())
    except OSError:
        cpu = frozenset()
    return Machine(uname.machine, cpu, uname.release, criu or "")


def instructions(cpuinfo: str) -> frozenset[str]:
    """What every processor of the machine can do, from the text of /proc/cpuinfo. On ARM all of
    "Features" is for programs."""
    found: frozenset[str] | None = None
    for name, words in re.findall(r"^(flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE):
        these = frozenset(words.split())
        if name == "flags":
            these = frozenset(filter(_X86.fullmatch, these))
        found = these if found is None else found & these
    return found or frozenset()


def why_not(image: Machine | None, node: Machine | None) -> str:
    """Why an image that was taken on `image` cannot be restored on `node`, as the end of a sentence
    that begins with the node; "": it can, or nobody knows (None)."""
    if image is None or node is None:
        return ""
    if image.arch != node.arch:
        return f"has another processor ({node.arch} and not {image.arch})"
    missing = sorted(image.cpu - node.cpu)
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        return f"has a processor without {', '.join(missing[:4])}{more}, which the session may use"
    if _numbers(node.kernel) < _numbers(image.kernel):
        return f"has Linux {node.kernel}, older than the {image.kernel} the session was saved on"
    if _numbers(node.criu) < _numbers(image.criu):
        return f"has CRIU {node.criu or 'none'}, older than the {image.criu} that saved the session"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: what comes after is repaired, not added."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()
