"""`%singularity submit` in a real kernel: what is sent, and a card that goes on being updated."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking import BlockingKernelClient
from singularity_proxy.errors import Conflict
from support.kernel_agent import Agent, agent
from support.kernel_relay import Channels, client, ipykernel, relay

Json = dict[str, Any]

LIMIT_S = 60.0


class Run:
    """The service's side: one run that goes through what `become` says."""

    def __init__(self, running: Agent) -> None:
        self._changed = threading.Condition()
        self._number = time.monotonic_ns()  # no run before it was seen like this
        self.document: Json = {}
        self.agent = running
        running.answers |= {"submit": self.submit, "run": self.look}
        self.asked: list[Json] = []

    def submit(self, params: Json) -> Json:
        self.asked.append(params)
        run = params["spec"]["run"]
        self.document = {
            "id": "0123456789ab",
            "name": "<b>cell</b>",
            "state": "queued",
            "reason": "place 2 & waiting",
            "tier": params["spec"].get("tier"),
            "devices": [],
            "run": {"output": run["notebook"].removesuffix(".ipynb") + "-output.ipynb"},
        }
        return self._told()

    def look(self, params: Json) -> Json:
        with self._changed:
            self._changed.wait_for(lambda: str(self._number) != params["seen"], timeout=2.0)
            return self._told()

    def _told(self) -> Json:
        return {"run": dict(self.document), "seen": str(self._number)}

    def become(self, state: str, reason: str) -> None:
        with self._changed:
            self.document |= {"state": state, "reason": reason}
            self._number += 1
            self._changed.notify_all()


class Page:
    """What a page shows of the kernel: outputs of cells, and displays as they were updated last."""

    def __init__(self, found: BlockingKernelClient) -> None:
        self.client = found
        self.shown: dict[str, list[Json]] = {}
        """display id -> its data, oldest first"""

    def run(self, code: str) -> str:
        """Execute; the text of its errors and of what it printed."""
        texts: list[str] = []

        def output(message: Json) -> None:
            self._take(message)
            content = message["content"]
            if message["msg_type"] in ("stream", "error"):
                texts.append(content.get("text") or content.get("evalue", ""))

        self.client.execute_interactive(code, output_hook=output, timeout=LIMIT_S)
        return "".join(texts)

    def _take(self, message: Json) -> None:
        if message["msg_type"] in ("display_data", "update_display_data"):
            content = message["content"]
            name = content.get("transient", {}).get("display_id", "")
            self.shown.setdefault(name, []).append(content["data"])

    def until(self, text: str) -> Json:
        """Wait until the newest card has this text."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for data in self.shown.values():
                if text in data[-1]["text/plain"]:
                    return data[-1]
            try:
                self._take(self.client.get_iopub_msg(timeout=1))
            except queue.Empty:
                continue
        raise AssertionError(f"no card says '{text}': {self.shown}")


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[Channels, Agent]]:
    folder = Path(os.environ["TMPDIR"]) / "submit"
    folder.mkdir()
    channels = Channels(folder)
    with agent(folder / "agent.sock") as running, relay(channels):
        env = {"SINGULARITY_SOCKET": str(running.path)}
        with ipykernel(channels, "--ext", "singularity_kernel", **env):
            yield channels, running


@pytest.fixture
def place(kernel: tuple[Channels, Agent], tmp_path: Path) -> Iterator[tuple[Page, Run, Path]]:
    """A kernel whose notebook is analysis.ipynb of this folder."""
    channels, running = kernel
    notebook = tmp_path / "analysis.ipynb"
    make = nbformat.v4
    cells = [make.new_code_cell(code) for code in ("x = 1", "%%singularity submit --notebook\n")]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(make.new_notebook(cells=cells, metadata={"kernelspec": spec}), notebook)
    with client(channels) as found:
        page, run = Page(found), Run(running)
        page.run(
            f"import os; os.chdir({str(tmp_path)!r})\n"
            f"os.environ['JPY_SESSION_NAME'] = {str(notebook)!r}"
        )
        yield page, run, tmp_path
        run.become("completed", "the test is over")  # whoever follows it still


def test_a_cell_becomes_a_run_with_a_live_card(place: tuple[Page, Run, Path]) -> None:
    page, run, folder = place
    said = page.run("%%singularity submit --tier basic -p lr 0.1 --name trial\nprint('lr', lr)")
    assert said == ""  # the cell itself does not run here
    [asked] = run.asked
    spec = asked["spec"]
    assert (spec["kind"], spec["tier"], spec["name"]) == ("batch", "basic", "trial")
    assert spec["run"]["parameters"] == {"lr": 0.1}
    path = Path(spec["run"]["notebook"])
    assert path.parent == folder
    written = nbformat.read(path, as_version=4)
    nbformat.validate(written)
    assert [cell.source for cell in written.cells] == ["print('lr', lr)\n"]
    assert written.metadata.kernelspec.name == "python3"
    first = page.until("queued")
    assert "Run 0123456789ab <b>cell</b>" in first["text/plain"]
    assert "&lt;b&gt;cell&lt;/b&gt;" in first["text/html"]
    assert "<b>cell</b>" not in first["text/html"]
    assert "<script" not in first["text/html"]
    run.become("running", "its code got a device")
    assert str(path.with_suffix("")) in page.until("running")["text/plain"]
    # An interrupt is about the cell, not about the card, and so is an error.
    page.client.control_channel.send(page.client.session.msg("interrupt_request", {}))
    page.client.get_control_msg(timeout=LIMIT_S)
    page.run("1 / 0")
    run.become("parked", "paused for bob/train")
    page.until("paused for bob/train")
    run.become("completed", "ended normally")
    assert "Output  " in page.until("ended normally")["text/plain"]
    names = "[t.name for t in __import__('threading').enumerate()]"
    page.run(f"import time\nwhile 'singularity-run' in str({names}): time.sleep(0.01)")
    [shown] = page.shown.values()
    assert len(shown) <= 5  # once for each change


def test_quick_changes_are_few_updates(place: tuple[Page, Run, Path]) -> None:
    page, run, _ = place
    page.run("%%singularity submit\npass")
    began = time.monotonic()
    for number in range(200):
        run.become("running", f"step {number}.")
        time.sleep(0.005)
    run.become("failed", "cell 1 of 1 raised ValueError")
    page.until("raised ValueError")
    [shown] = page.shown.values()
    assert len(shown) <= 3 * (time.monotonic() - began) + 3


def test_this_notebook_and_another_one(place: tuple[Page, Run, Path]) -> None:
    page, run, folder = place
    assert page.run("%singularity submit --notebook -o out.ipynb") == ""
    sent = run.asked[-1]["spec"]["run"]
    copy = nbformat.read(sent["notebook"], as_version=4)
    assert [cell.source for cell in copy.cells] == ["x = 1"]  # not what would submit it again
    assert sent["output"] == str(folder / "out.ipynb")
    assert page.run("%singularity submit analysis.ipynb --devices 2") == ""
    assert run.asked[-1]["spec"]["devices"] == 2
    assert run.asked[-1]["spec"]["run"]["notebook"] == str(folder / "analysis.ipynb")
    run.become("completed", "ended normally")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("%singularity submit", "needs a notebook"),
        ("%singularity submit nowhere.ipynb", "nowhere.ipynb"),
        ("%singularity submit analysis.ipynb --devices many", "invalid int value"),
        ("%singularity submit analysis.ipynb --tear basic", "unrecognized arguments: --tear basic"),
        ("%singularity submit analysis.ipynb -p lr", "-p takes a name and a value"),
        ("%singularity submit 'x", "No closing quotation"),
        ("%%singularity submit analysis.ipynb\npass", "takes one notebook"),
        ("%%singularity park\npass", "%%singularity only has 'submit'"),
        ("%%singularity submit -k nokernel\npass", "there is no kernel 'nokernel'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(
    place: tuple[Page, Run, Path], code: str, sentence: str
) -> None:
    page, run, folder = place
    assert sentence in page.run(code)
    assert run.asked == []
    assert [path.name for path in folder.glob("*.ipynb")] == ["analysis.ipynb"]


def test_a_refusal_leaves_no_file(place: tuple[Page, Run, Path]) -> None:
    page, run, folder = place
    run.agent.answers["submit"] = Conflict("ada has 1000 queued runs already")
    assert "ada has 1000 queued runs already" in page.run("%%singularity submit\npass")
    assert [path.name for path in folder.glob("*.ipynb")] == ["analysis.ipynb"]


def test_an_agent_that_goes_away_leaves_the_card_and_is_waited_for(
    place: tuple[Page, Run, Path],
) -> None:
    page, run, _ = place
    page.run("%%singularity submit\npass")
    page.until("queued")
    run.agent.stop()
    run.become("running", "its code got a device")
    page.until("this may be old")
    run.agent.start()
    assert "this may be old" not in page.until("its code got a device")["text/plain"]
