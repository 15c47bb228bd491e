"""What an image needs of the machine that restores it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from singularity_proxy.capsule.images.machine import Machine, here, instructions, why_not

BASE = Machine("x86_64", frozenset({"sse2", "avx2", "fma"}), "6.1.0-18-amd64", "4.2.1")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (BASE, ""),
        (replace(BASE, cpu=BASE.cpu | {"avx512f"}, kernel="6.12.3", criu="4.10"), ""),
        (replace(BASE, kernel="6.1.200", criu="4.2"), ""),
        (None, ""),
        (replace(BASE, arch="aarch64"), "has another processor (aarch64 and not x86_64)"),
        (
            replace(BASE, cpu=frozenset({"sse2"})),
            "has a processor without avx2, fma, which the session may use",
        ),
        (replace(BASE, kernel="5.15.0"), "has Linux 5.15.0, older than the 6.1.0-18-amd64"),
        (replace(BASE, criu="4.1"), "has CRIU 4.1, older than the 4.2.1"),
        (replace(BASE, criu=""), "has CRIU none, older"),
    ],
)
def test_what_differs_is_named(node: Machine | None, words: str) -> None:
    why = why_not(BASE, node)
    assert why.startswith(words)
    assert bool(why) is bool(words)


def test_many_missing_instructions_are_counted() -> None:
    many = replace(BASE, cpu=frozenset(f"avx512_{n}" for n in range(9)) | BASE.cpu)
    assert "avx512_3 and 5 more, which" in why_not(many, BASE)


def test_what_older_agents_wrote_refuses_nothing() -> None:
    assert Machine.from_json(None) is None
    assert Machine.from_json({}) is None
    assert why_not(None, BASE) == ""


def test_it_survives_json_and_this_machine_can_take_its_own() -> None:
    this = here("4.2.1")
    assert this.cpu
    assert Machine.from_json(this.to_json()) == this
    assert why_not(this, this) == ""


def test_only_what_every_processor_has_and_programs_use_counts() -> None:
    text = (
        "processor : 0\nflags : fpu vme sse2 avx2 hypervisor xsaveerptr constant_tsc\n"
        "processor : 1\nflags : fpu sse2 nopl\n"
    )
    assert instructions(text) == {"sse2"}
    assert instructions("Features : fp asimd sve\n") == {"fp", "asimd", "sve"}
    assert instructions("") == frozenset()
