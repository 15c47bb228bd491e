"""The worked examples of `docs/explanation/change-it.md` do all that the page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from singularity_scheduler.service.ledger.database import newest_revision

from benchmarks import house

ROOT = Path(__file__).resolve().parents[3]

COPIED = (
    *("scheduler/singularity_scheduler", "kernel_ext/singularity_kernel"),
    *("ui_labext/singularity_labext", "ui_labext/src", "tools", "docs/how-to"),
)
"""What the examples change, and what is made of it."""

NOT_COPIED = shutil.ignore_patterns("__pycache__", "build", "labextension", "static")


def surroundings(source: Path) -> dict[str, str]:
    """Return the environment of a program that imports the packages below `source`."""
    own = [source / name for name in ("scheduler", "kernel_ext", "ui_labext")]
    path = [*own, ROOT / "proxy", ROOT / "tests", ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}


def as_the_next_revision(patch: str) -> str:
    """Return a patch or a path whose revision of the ledger, if any, follows the newest one."""
    newest = int(newest_revision())
    for before, after in (('"', '"'), ("v", "_")):  # its number, and its file's name
        patch = patch.replace(f"{before}0024{after}", f"{before}{newest + 1:04}{after}")
    return patch.replace('"0023"', f'"{newest:04}"')


class Copy:
    """The source in a folder of its own, to which an example was applied."""

    def __init__(self, folder: Path, section: str) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)
        before = self._read()
        found = house.read_example(section)
        self.patches = {as_the_next_revision(k): as_the_next_revision(v) for k, v in found.items()}
        for patch in self.patches.values():
            self.call("git", "apply", "--whitespace=nowarn", "-", words=patch)
        self.call(sys.executable, "tools/derive.py")
        self.changed = {name for name, text in self._read().items() if before.get(name) != text}

    def _read(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    def call(self, *command: str, words: str = "") -> str:
        """Run a program in the copy, with the copy's packages; return what it prints."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=surroundings(self.folder),
            input=words,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, code: str) -> None:
        """Run Python code, which asserts what it looks for."""
        self.call(sys.executable, "-c", code)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("field"), house.EXAMPLES["files_to_add_a_field"])


@pytest.fixture(scope="module")
def verb(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("verb"), house.EXAMPLES["files_to_add_a_verb"])


# ---- the field -----------------------------------------------------------------------------------


def test_a_field_takes_few_files_and_all_others_are_made(field: Copy) -> None:
    assert len(field.patches) <= house.BOUNDS["files_to_add_a_field"]
    made = {
        "scheduler/singularity_scheduler/client/made/said.py",
        "ui_labext/src/model/sessions/declared.ts",
    }
    assert field.changed == {*field.patches, *made}


def test_a_field_is_in_the_api_and_comes_back_from_the_ledger(field: Copy) -> None:
    field.run("""
import json
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.requests.spec import parse_spec
from singularity_scheduler.service.ledger import rows
from singularity_scheduler.service.ledger.tables import sessions
from singularity_scheduler.service.operations import handlers
from singularity_scheduler.service.schemas.documents import session_document
from singularity_scheduler.service.schemas.openapi import openapi_text
from support.scheduler_core import World

described = json.loads(openapi_text())["components"]["schemas"]
assert described["NewSession"]["properties"]["note"]["oneOf"][0]["maxLength"] == 200
assert "words of who started it" in described["Session"]["properties"]["note"]["description"]

spec = parse_spec({"kind": "interactive", "note": " for the paper "})
world = World()
world.do(ev.SessionCreated("a", "alice", spec))
world.answer()
view = world["a"]
assert view.note == "for the paper"
assert session_document(world.state, view)["note"] == "for the paper"
row = rows.session_to_row(view)
assert row["note"] == "for the paper" and row.keys() <= {*sessions.c.keys()}
assert rows.session_from_row(row, ()).note == "for the paper"
del row["note"]
assert rows.session_from_row(row, ()).note == "", "written before there were notes"
""")


OPEN = """
import sys
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from singularity_scheduler.service.ledger.database import Database, parse
from singularity_scheduler.service.ledger.tables import metadata, sessions

ledger = Database(parse(sys.argv[1]))
ledger.open()
with ledger.engine.connect() as connection:
    assert list(compare_metadata(MigrationContext.configure(connection), metadata)) == []
assert ("note" in sessions.c) is (sys.argv[2] == "after")
ledger.close()
"""


def test_a_ledger_that_exists_gets_the_column(field: Copy, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    subprocess.run([sys.executable, "-c", OPEN, url, "before"], check=True, env=surroundings(ROOT))
    field.call(sys.executable, "-c", OPEN, url, "after")


def test_a_field_is_on_the_command_line_and_in_the_client(field: Copy) -> None:
    field.run("""
from datetime import datetime, timezone
from singularity_kernel.batch.submitting.submit import SubmitApp
from singularity_scheduler.cli.look.views import session_card
from singularity_scheduler.client.made.said import SaidOfSession
from singularity_scheduler.jobs.wishes import WISHES

assert "note" in SaidOfSession.__annotations__ and "note" in WISHES
assert SubmitApp.aliases["note"] == "SubmitApp.note"
app = SubmitApp()
app.load_config_environ()
app.parse_command_line(["train.ipynb", "--note", "for the paper"])
assert app._wishes()["note"] == "for the paper"
card = session_card({"id": "a", "note": "for the paper"}, datetime.now(timezone.utc)).plain()
assert "Note" in card and "for the paper" in card, card
""")


def test_a_field_is_a_type_in_jupyterlab_and_on_the_card(field: Copy) -> None:
    assert "note: text(value.note)" in field.text("ui_labext/src/model/sessions/declared.ts")
    assert "session.note" in field.text("ui_labext/src/view/cards/card.tsx")


# ---- the verb ------------------------------------------------------------------------------------


def test_a_verb_takes_few_files_and_all_others_are_made(verb: Copy) -> None:
    assert len(verb.patches) <= house.BOUNDS["files_to_add_a_verb"]
    made = {
        "scheduler/singularity_scheduler/client/made/methods.py",
        "scheduler/singularity_scheduler/client/made/blocking.py",
        "scheduler/singularity_scheduler/client/schemas/session-request.v1.yaml",
        "ui_labext/src/model/words/verb_table.ts",
    }
    assert verb.changed == {*verb.patches, *made}


def test_a_verb_is_in_the_api_and_does_what_it_says(verb: Copy) -> None:
    verb.run("""
import json
from singularity_proxy.errors import BadRequest
from singularity_scheduler.service.api.metrics import verbs
from singularity_scheduler.service.api.translate import verb_event
from singularity_scheduler.service.operations import handlers
from singularity_scheduler.service.schemas.openapi import openapi_text
from singularity_scheduler.text.reasons import render
from support.scheduler_core import World

described = json.loads(openapi_text())
asked = described["paths"]["/api/v1/sessions/{session}/rename"]["post"]
assert asked["operationId"] == "rename_session", asked
assert described["components"]["schemas"]["Rename"]["required"] == ["name"]
assert "rename" in verbs()

world = World()
world.create("a")
world.do(verb_event("a", "rename", {"name": " the best one "}, "alice", {}))
assert world["a"].name == "the best one"
assert world.history[-1].rule == "user.rename"
assert render(world.history[-1].why) == "alice called it the best one: nothing else of it changed"
for bad in ({}, {"name": ""}, {"name": 7}):
    try:
        verb_event("a", "rename", bad, "alice", {})
    except BadRequest:
        continue
    raise AssertionError(bad)
""")


def test_a_verb_is_a_command_a_magic_and_a_method(verb: Copy) -> None:
    start = "from singularity_scheduler.cli import main; raise SystemExit(main())"
    assert "\nrename " in verb.call(sys.executable, "-c", start, "--help")
    says = verb.call(sys.executable, "-c", start, "rename", "--help")
    assert "Give a session another name; nothing else of it changes." in says
    verb.run("""
import inspect
from singularity_kernel.kernel.magics import NAMES, NEEDED, SingularityMagics
from singularity_labext.handlers import VerbHandler
from singularity_scheduler.cli.sessions.verbs import APPS
from singularity_scheduler.client import Client, ServiceClient
from singularity_scheduler.client.verbs import VERBS

assert "rename" in VERBS and NAMES["rename"] == "name" and NEEDED["rename"] == "a name"
assert "rename: give it another name." in " ".join(SingularityMagics.singularity.__doc__.split())
assert VerbHandler.KEYS["rename"] == ("name",) and VerbHandler.NEEDED["rename"] == "name"
assert list(inspect.signature(ServiceClient.rename).parameters) == ["self", "session", "name"]
assert Client.rename.__doc__ == "Give it another name."
assert APPS["rename"].synopsis == "SESSION NAME"
""")


def test_a_verb_has_its_words_and_its_question_in_jupyterlab(verb: Copy) -> None:
    table = verb.text("ui_labext/src/model/words/verb_table.ts")
    for line in ("  rename: ['name']", "  rename: 'notEnded'", "texts.__('Its new name')"):
        assert line in table
    assert "| `singularity:rename` |" in verb.text("docs/how-to/jupyterlab.md")
    order = table.partition("VERBS: readonly Verb[] = [")[2].partition("]")[0]
    assert order.index("'tier'") < order.index("'rename'") < order.index("'restore'")


def test_what_is_made_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/derive.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
