"""Writes the code that is made of the tables in `singularity_scheduler.model`, and of its states.

python tools/derive.py            # writes the methods of the client and the tables of JupyterLab
python tools/derive.py --check    # exit code 1 and the names when a file is out of date

`./dev docs` runs it; a test compares the result. What it writes is in git, so that no build needs
this program.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scheduler"), str(ROOT / "proxy")]

from singularity_scheduler.core.values.states import WORDS  # noqa: E402
from singularity_scheduler.model.arguments import Argument, Form  # noqa: E402
from singularity_scheduler.model.buttons import CANCEL, Button  # noqa: E402
from singularity_scheduler.model.fields import NULL, SessionField  # noqa: E402
from singularity_scheduler.model.session import SHOWN, WISHES  # noqa: E402
from singularity_scheduler.model.verbs import VERBS, Verb  # noqa: E402

CLIENT = "scheduler/singularity_scheduler/client/made"
LAB = "ui_labext/src/model"
EVENT = "scheduler/singularity_scheduler/client/schemas/session-request.v1.yaml"
"""Only its list of verbs is made."""
NOTE = "Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs."
WIDTH = 100

# ---- the client ----------------------------------------------------------------------------------


def write_methods() -> str:
    """Return the module with a method of `ServiceClient` for each verb."""
    head = f'''"""The verbs of sessions as methods of the client.

{NOTE}
"""

from __future__ import annotations

from singularity_scheduler.client.calls import MOVE_S, Calls, Json, without_unsaid


class VerbMethods(Calls):
    """Base of `ServiceClient`."""
'''
    return head + "".join(f"\n{write_method(row)}" for row in VERBS if row.has_method)


def write_method(row: Verb) -> str:
    """Return the method of one verb."""
    ordered = sorted(row.arguments, key=lambda each: each.optional)
    signature = ", ".join(["self", "session: str", *map(write_parameter, ordered)])
    opening = f"    async def {row.name}({signature}) -> Json:"
    if len(opening) > WIDTH:
        inside = f"        {signature}"
        inside = inside if len(inside) <= WIDTH else indent(signature.split(", "))
        opening = f"    async def {row.name}(\n{inside}\n    ) -> Json:"
    words = fill(f'"""{row.client}"""', 8)
    limit = ", timeout=MOVE_S" if row.takes_long else ""
    if all(not each.optional for each in ordered):
        body = ", ".join(f'"{each.name}": {each.name}' for each in ordered)
        ask = f'        return await self._verb(session, "{row.name}", {{{body}}}{limit})'
    else:
        given = ", ".join(f'"{each.name}": {each.name}' for each in ordered)
        ask = (
            f"        body: Json = {{{given}}}\n"
            f'        return await self._verb(session, "{row.name}", without_unsaid(body){limit})'
        )
    return f"{opening}\n{words}\n{ask}\n"


def indent(parts: Iterable[str]) -> str:
    """Return parameters one a line."""
    return "\n".join(f"        {part}," for part in parts)


def write_parameter(each: Argument) -> str:
    """Return an argument as a parameter of a method."""
    if not each.optional:
        return f"{each.name}: {each.python}"
    if each.form is Form.FLAG:
        return f"{each.name}: bool = False"
    return f"{each.name}: {each.python} | None = None"


def write_blocking() -> str:
    """Return the module with the same methods for code that is not asynchronous."""
    head = f'''"""The verbs of sessions as methods of the client that blocks.

{NOTE}
"""

from __future__ import annotations

from singularity_scheduler.client.api import ServiceClient
from singularity_scheduler.client.loop import Blocking, call


class BlockingVerbs(Blocking):
    """Base of `Client`."""

'''
    return head + "".join(
        f"    {row.name} = call(ServiceClient.{row.name})\n" for row in VERBS if row.has_method
    )


def write_said() -> str:
    """Return the module with the arguments by which something is said of a new session."""
    head = f'''"""What is said of a new session, as arguments of the client.

{NOTE}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class SaidOfSession(TypedDict, total=False):
    """All of them may be left out, which is the same as None."""
'''
    lines = []
    for each in WISHES:
        kind = SAID[each.fact.asked["type"]]
        words = f'"""{each.fact.about.replace("null", "None")}"""'
        lines.append(f"\n    {each.key}: {kind} | None\n{fill(words, 4)}\n")
    return head + "".join(lines)


SAID = {"string": "str", "number": "float", "integer": "int", "array": "Sequence[str]"}
"""Type in a JSON Schema -> type in the client."""


def fill(text: str, depth: int) -> str:
    """Return text in lines that are indented."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * depth,
        subsequent_indent=" " * depth,
        break_long_words=False,
        break_on_hyphens=False,
    )


# ---- JupyterLab ----------------------------------------------------------------------------------


def list_buttons() -> list[tuple[str, Button]]:
    """Return the verbs that JupyterLab shows, in the order of its menus."""
    found = [(row.name, row.button) for row in VERBS if row.button]
    return sorted([*found, ("cancel", CANCEL)], key=lambda each: each[1].place)


def quote(text: str) -> str:
    """Return a string as prettier writes it."""
    return json.dumps(text, ensure_ascii=False) if "'" in text else f"'{text}'"


def write_cases(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a case for each verb that returns its text in the user's language."""
    for name, text in texts:
        yield f"    case '{name}':\n"
        line = f"      return texts.__({quote(text)});"
        long = f"      return texts.__(\n        {quote(text)}\n      );"
        yield f"{line if len(line) <= WIDTH else long}\n"


def write_verb_table() -> str:
    """Return the TypeScript module with all that JupyterLab knows of verbs."""
    shown = list_buttons()
    arguments = {row.name: row.arguments for row in VERBS}
    keys = {
        name: ", ".join(f"'{each.name}'" for each in arguments.get(name, ()) if each.on_page)
        for name, _ in shown
    }
    commands = [(name, button.command) for name, button in shown if button.command]
    asked = [
        (row.name, row.needs.name, row.button.ask)
        for row in VERBS
        if row.button and row.button.ask and row.needs
    ]
    names = "\n".join(f"  | '{name}'" for name, _ in shown)
    parts = [
        f"// {NOTE}\n\nimport {{ ITexts }} from './words';\n",
        f"/** What a person can do with a session. */\nexport type Verb =\n{names};\n",
        "/** When a verb makes sense. */\nexport type Condition =\n"
        + "\n".join(f"  | '{word}'" for word in dict.fromkeys(b.offered.value for _, b in shown))
        + ";\n",
        write_list("In the order of menus.", "VERBS", (name for name, _ in shown)),
        write_list(
            "Those with a button on the card; the others are in its menu.",
            "BUTTONS",
            (name for name, button in shown if button.on_card),
        ),
        write_list(
            "Those that a menu has a line above.",
            "SECTION_STARTS",
            (name for name, button in shown if button.new_section),
        ),
        write_list(
            "Those that ask something before they are done.",
            "ASKS",
            (name for name, button in shown if button.asks or button.ask),
        ),
        "/** The keys that each verb takes. */\n"
        "export const KEYS: Record<Verb, readonly string[]> = {\n"
        + ",\n".join(f"  {name}: [{keys[name]}]" for name, _ in shown)
        + "\n};\n",
        "/** When each verb is offered. */\n"
        "export const OFFERED: Record<Verb, Condition> = {\n"
        + ",\n".join(f"  {name}: '{button.offered.value}'" for name, button in shown)
        + "\n};\n",
        "/** The key that a person is asked for with a line of text, where it is missing. */\n"
        "export const ASKED: Partial<Record<Verb, string>> = {"
        + (
            "\n" + ",\n".join(f"  {name}: '{key}'" for name, key, _ in asked) + "\n"
            if asked
            else ""
        )
        + "};\n",
        write_function(
            "The verb as a button has it.", "verbLabel", ((n, b.label) for n, b in shown)
        ),
        write_function(
            "The verb as a command has it, where it is not plain what it is done with.",
            "commandLabel",
            commands,
            "texts.__('%1 session', verbLabel(verb, texts))",
        ),
        write_function(
            "What the verb does, in a sentence.", "verbCaption", ((n, b.caption) for n, b in shown)
        ),
        write_function(
            "What a person is asked for.",
            "askedText",
            ((name, text) for name, _, text in asked),
            "''",
        ),
    ]
    return "\n".join(parts)


def write_state_table() -> str:
    """Return the TypeScript module with what each state means."""
    meanings = ((state, f"{meaning[0].upper()}{meaning[1:]}") for state, meaning in WORDS.items())
    return (
        f"// {NOTE.replace('the tables in `model`', '`core/values/states.py`')}\n\n"
        "import { ITexts } from './words';\n\n"
        '/** What a state means, in a sentence; "": it is one that this page does not know. */\n'
        "export function stateMeaning(state: string, texts: ITexts): string {\n"
        f"  switch (state) {{\n{''.join(write_cases(meanings))}"
        "    default:\n      return '';\n  }\n}\n"
    )


def write_session_fields() -> str:
    """Return the TypeScript module that reads the declared fields of a session's document."""
    names = {each.key: "".join(write_camel(each.key)) for each in SHOWN}
    kinds = {each.key: read_kind(each) for each in SHOWN}
    readers = ", ".join(sorted({reader for _, reader in kinds.values()}))
    fields = ""
    for each in SHOWN:
        about = f"  /** {each.fact.shown_about} */\n" if each.fact.shown_about else ""
        fields += f"{about}  {names[each.key]}: {kinds[each.key][0]};\n"
    reads = ",\n".join(
        f"    {names[each.key]}: {kinds[each.key][1]}(value.{each.key})" for each in SHOWN
    )
    return (
        f"// {NOTE}\n\nimport {{ {readers} }} from '../server/json';\n\n"
        "/** Fields of a session that are shown as they are. */\nexport interface IDeclared {\n"
        f"{fields}}}\n\n"
        "/** Reading is tolerant: a text that is missing is empty, a count 0. */\n"
        "export function readDeclared(value: Record<string, unknown>): IDeclared {\n"
        f"  return {{\n{reads}\n  }};\n}}\n"
    )


def read_kind(each: SessionField) -> tuple[str, str]:
    """Return the type of a field in TypeScript, and what reads it."""
    schema = each.fact.shown or {}
    schemas = schema.get("oneOf", (schema,))
    kind = next(one["type"] for one in schemas if one != NULL)
    if kind in ("integer", "number"):
        bounded = any("minimum" in one for one in schemas)
        if NULL in schemas:
            return "number | null", "countOrNull" if bounded else "numberOrNull"
        return "number", "count"
    return READ[kind]


READ = {
    "string": ("string", "text"),
    "array": ("string[]", "texts"),
    "boolean": ("boolean", "flag"),
}
"""Type in a JSON Schema -> type in TypeScript, and what reads it."""


def write_camel(key: str) -> Iterator[str]:
    """Yield a key of the API as TypeScript names it, word by word."""
    first, *others = key.split("_")
    yield first
    yield from (word.capitalize() for word in others)


def write_list(says: str, name: str, verbs: Iterable[str]) -> str:
    """Return a list of verbs, as prettier writes it."""
    quoted = [f"'{verb}'" for verb in verbs]
    head = f"export const {name}: readonly Verb[] = ["
    line = f"{head}{', '.join(quoted)}];"
    if len(line) > WIDTH:
        line = f"{head}\n" + ",\n".join(f"  {verb}" for verb in quoted) + "\n];"
    return f"/** {says} */\n{line}\n"


def write_function(
    says: str, name: str, texts: Iterable[tuple[str, str]], otherwise: str = ""
) -> str:
    """Return a function from a verb to a text; `otherwise`: for verbs without one."""
    cases = "".join(write_cases(texts))
    if not cases:
        return (
            f"/** {says} */\nexport function {name}(_verb: Verb, _texts: ITexts): string {{\n"
            f"  return {otherwise};\n}}\n"
        )
    rest = f"    default:\n      return {otherwise};\n" if otherwise else ""
    return (
        f"/** {says} */\nexport function {name}(verb: Verb, texts: ITexts): string {{\n"
        f"  switch (verb) {{\n{cases}{rest}  }}\n}}\n"
    )


# ---- events --------------------------------------------------------------------------------------


def write_request_schema() -> str:
    """Return the schema of the event of a request with all verbs that operations have."""
    # Only now: it imports the client, which was written before.
    from singularity_scheduler.service.api.metrics import verbs
    from singularity_scheduler.service.operations import handlers  # noqa: F401

    return re.sub(
        r"(?<=\n  verb:\n    enum: \[).*?(?=\])", ", ".join(verbs()), (ROOT / EVENT).read_text()
    )


# ---- all of it -----------------------------------------------------------------------------------


def derive() -> Iterator[tuple[str, str]]:
    """Yield path below the checkout and text of every file that is made."""
    made = {
        f"{CLIENT}/methods.py": write_methods(),
        f"{CLIENT}/blocking.py": write_blocking(),
        f"{CLIENT}/said.py": write_said(),
        f"{LAB}/words/verb_table.ts": write_verb_table(),
        f"{LAB}/words/state_table.ts": write_state_table(),
        f"{LAB}/sessions/declared.ts": write_session_fields(),
    }
    yield from made.items()
    yield EVENT, write_request_schema()


def main(argv: list[str]) -> int:
    """Write the files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the code that is made of the tables.")
    parser.add_argument("--check", action="store_true", help="only compare; 1 when out of date")
    options = parser.parse_args(argv)
    stale = []
    for name, text in derive():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not options.check:
            path.write_text(text)
    if options.check and stale:
        print(f"out of date, run ./dev docs: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
