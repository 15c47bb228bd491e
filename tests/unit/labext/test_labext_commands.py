"""The commands that other extensions may call are those that are documented."""

from __future__ import annotations

import re
from pathlib import Path

from singularity_scheduler.core.values.states import WORDS

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_of_commands_is_complete() -> None:
    source = ROOT / "ui_labext" / "src"
    verbs = re.search(
        r"VERBS: readonly Verb\[\] = \[(.*?)\]",
        (source / "model/words/verb_table.ts").read_text(),
        re.S,
    )
    assert verbs
    commands = {f"singularity:{verb}" for verb in re.findall(r"'(\w+)'", verbs[1])}
    commands |= set(
        re.findall(r"'(singularity:[\w-]+)'", (source / "plugins/names.ts").read_text())
    )
    page = (ROOT / "docs/how-to/jupyterlab.md").read_text()
    assert commands == set(re.findall(r"^\| `(singularity:[\w-]+)`", page, re.M))


def test_menu_and_shortcuts_have_documented_commands_only() -> None:
    schema = (ROOT / "ui_labext/schema/commands.json").read_text()
    page = (ROOT / "docs/how-to/jupyterlab.md").read_text()
    used = set(re.findall(r'"command": "(singularity:[\w-]+)"', schema))
    assert used <= set(re.findall(r"^\| `(singularity:[\w-]+)`", page, re.M))
    for command, key in re.findall(
        r'"(singularity:[\w-]+)",\s+"keys": \["Accel Alt (\w)"\]', schema
    ):
        assert f"| `{command}` (Ctrl+Alt+{key}) |" in page


def test_the_page_has_a_word_and_an_icon_for_every_state() -> None:
    source = (ROOT / "ui_labext/src/model/words/words.ts").read_text()
    words = re.findall(r"^    (\w+): \(\) => texts\.__\('(\w+)'\)", source, re.M)
    assert all(state == word for state, word in words)
    assert {state for state, _ in words} == {*WORDS}
    assert set(re.findall(r"^  (\w+): \{ icon: ", source, re.M)) == {*WORDS}
