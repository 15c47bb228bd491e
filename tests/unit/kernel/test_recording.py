"""`record`: what it takes, where it goes outside of a kernel, and the file that scripts write."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import singularity_kernel
from singularity_kernel.batch.running.collecting import Collector
from singularity_kernel.kernel.recording import RECORDED, line_of, record, recorded_in
from singularity_proxy.errors import BadRequest
from singularity_proxy.wire.rpc import serve


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("loss=0.5\n", ("loss", 0.5)),
        (" loss = 1e-3 ", ("loss", 0.001)),
        ("name=adam", ("name", "adam")),
        ('name="1"', ("name", "1")),
        ("ok=true", ("ok", True)),
        ("ok=True", ("ok", True)),
        ("none=None", ("none", None)),
        ("x=.5", ("x", 0.5)),
        ("x=nan", ("x", "NaN")),
        ("x=[1, 2]", ("x", [1, 2])),
        ("x=a=b", ("x", "a=b")),
        ("x=", ("x", "")),
        ("no value", None),
        ("=1", None),
        ("", None),
    ],
)
def test_lines_of_the_file(line: str, found: tuple[str, Any] | None) -> None:
    assert line_of(line) == found


def test_values_in_outputs() -> None:
    form = "application/scrapbook.scrap.{}+json"
    scrap = {"name": "loss", "data": 0.5, "encoder": "json", "version": 1}
    assert recorded_in({form.format("json"): scrap}) == {"loss": 0.5}
    text = {"name": "word", "data": "7", "encoder": "text", "version": 1}
    assert recorded_in({form.format("text"): text}) == {"word": "7"}
    assert recorded_in({form.format("pandas"): {"name": "frame", "data": "UEFS"}}) == {}
    assert recorded_in({"text/plain": "loss", form.format("json"): "odd"}) == {}
    assert recorded_in({form.format("json"): {"data": 1}}) == {}


def test_outside_of_a_kernel_a_line_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RECORDED, raising=False)
    record("loss", 0.5)  # nobody is told, and that is no error
    monkeypatch.setenv(RECORDED, str(tmp_path / "recorded"))

    class Scalar:
        def item(self) -> float:
            return 0.25

    class Many:
        def item(self) -> float:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    singularity_kernel.record("loss", Scalar())
    record("name", "7")
    record("ratio", float("nan"))
    text = (tmp_path / "recorded").read_text()
    assert [line_of(line) for line in text.splitlines()] == [
        ("loss", 0.25),
        ("name", "7"),
        ("ratio", "NaN"),
    ]
    for name, value, said in (
        ("x", Many(), "no single value"),
        ("x", "y" * 2000, "at most 1024"),
        ("x\ny", 1, "cannot be the name"),
        ("x", {1, 2}, "JSON has no such value"),
    ):
        with pytest.raises(BadRequest, match=said):
            record(name, value)
    assert (tmp_path / "recorded").read_text() == text


def test_the_package_stays_light() -> None:
    code = "import sys, singularity_kernel as k; k.record('a', 1); print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.asyncio
async def test_what_waits_for_an_agent_is_its_newest(short_dir: Path) -> None:
    told: list[dict[str, Any]] = []
    said: list[str] = []

    async def take(_: Any, params: dict[str, Any]) -> dict[str, Any]:
        told.append(params["values"])
        return {"refused": ["too long"]}

    collector = Collector(str(short_dir / "agent.sock"), said.append)
    collector.put("loss", 1.0)
    collector.put("acc", 0.1)
    assert not await asyncio.to_thread(collector._send)
    collector.put("loss", 0.5)
    (short_dir / "recorded").write_text("lines=1\nlin")
    server = await serve(
        str(short_dir / "agent.sock"), {"record": take}, allowed_uids={os.getuid()}
    )
    try:
        assert await asyncio.to_thread(collector._send)
        with (short_dir / "recorded").open("a") as file:
            file.write("es=2")
        assert await asyncio.to_thread(collector._send)
        assert await asyncio.to_thread(collector._send, True)
    finally:
        server.close()
    assert told == [{"acc": 0.1, "loss": 0.5, "lines": 1}, {"lines": 2}]
    assert said == ["note: too long"]


def test_the_end_of_a_run_takes_all_of_a_long_file(tmp_path: Path) -> None:
    collector = Collector(str(tmp_path / "agent.sock"), print)
    lines = "".join(f"n={number:0100}\n" for number in range(1, 30_000))
    (tmp_path / "recorded").write_text(lines + "last=1")
    collector._read(last=False)
    assert 0 < collector._waiting["n"] < 29_999
    collector._read(last=True)
    assert collector._waiting == {"n": 29_999, "last": 1}


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    collector = Collector(str(tmp_path / "agent.sock"), print)
    with (tmp_path / "recorded").open("wb") as file:
        for _ in range(4):
            file.write(b"x" * (1 << 20))
            file.flush()
            collector._read(last=False)
        file.write(b"\nn=1\n")
    assert len(collector._rest) <= 1 << 20
    collector._read(last=True)
    assert collector._waiting == {"n": 1}
