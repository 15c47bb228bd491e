"""Values in a command: a real bash reads it, and says what words it got."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from singularity_scheduler.jobs import resolve
from singularity_scheduler.jobs.errors import BadJob
from singularity_scheduler.jobs.expressions import BadExpression, Values
from singularity_scheduler.jobs.reading import parse

ODD = 'it\'s "5 $" `of` \\ all; #1 *'
PATH = "/a b/it's $HOME/*"
SOURCES: dict[str, Any] = {
    "inputs.odd": ODD,
    "inputs.words": "--lr 0.1  --name 'a b'",
    "inputs.lr": 0.1,
    "inputs.off": False,
    "inputs.quote": "it's",
    "inputs.comment": "a #b",
    "inputs.end": "a\\",
    "inputs.paren": "a)",
    "inputs.data": {"path": "x"},
    "inputs.again": "${{inputs.data}}",
    "inputs.here": "x <<A\ny",
    "inputs.eof": "a\nEOF\nshow b",
    "outputs.model": None,
}
SHOW = "show() { printf '<%s>' \"$@\"; }\n"
"""Writes the words that it is called with."""


def in_command(text: str) -> str:
    """The command `text` with its expressions filled in."""

    def finish(name: str, value: Any) -> Any:
        return PATH if name in ("inputs.data", "outputs.model") else value

    return Values(SOURCES, finish).filled_command(text)


def run(text: str) -> str:
    """What bash writes that runs `text`, with `show` to show words."""
    done = subprocess.run(
        ["bash", "-c", SHOW + text], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("show ${{inputs.lr}} ${{inputs.off}}", "<0.1><false>"),
        ('show "${{inputs.odd}}"', f"<{ODD}>"),
        ("show '${{inputs.odd}}'", f"<{ODD}>"),
        ("show $'${{inputs.odd}}'", f"<{ODD}>"),
        ('show "a ${{inputs.odd}} b" c', f"<a {ODD} b><c>"),
        ("show ${{inputs.words}}", "<--lr><0.1><--name><a b>"),
        ('show "${{inputs.words}}"', "<--lr 0.1  --name 'a b'>"),
        ("show ${{outputs.model}}", f"<{PATH}>"),
        ("show --data=${{inputs.data}}/x.csv b", f"<--data={PATH}/x.csv><b>"),
        ('show "${{inputs.data}}" ${{inputs.data}}', f"<{PATH}><{PATH}>"),
        ("show \\'${{outputs.model}}", f"<'{PATH}>"),
        ('show "\\"${{outputs.model}}"', f'<"{PATH}>'),
        ("show 'a'\"'\"${{outputs.model}}", f"<a'{PATH}>"),
        ('show "$(show ${{outputs.model}} "${{inputs.odd}}")"', f"<<{PATH}><{ODD}>>"),
        ('(show `show ")"` ${{outputs.model}})', f"<<)>><{PATH}>"),
        ("n=2; show $((1<<n)) ${#n}\nshow ${{outputs.model}}", f"<4><1><{PATH}>"),
        ("show a#b # it's\nshow ${{outputs.model}}", f"<a#b><{PATH}>"),
        ("cat <<EOF\n${{inputs.odd}} it's\nEOF\nshow ${{inputs.data}}", f"{ODD} it's\n<{PATH}>"),
        ("cat <<-'EOF'; show <<<x\n${{inputs.odd}}\n\tEOF\n", f"{ODD}\n<>"),
        ('cat << "E"\n${{outputs.model}} $X\nE\nshow "${{inputs.odd}}"', f"{PATH} $X\n<{ODD}>"),
        ('cat <<<"${{inputs.odd}}"', f"{ODD}\n"),
        ("show ${{inputs.again}}", f"<{PATH}>"),
        ("cat <<'END-1'\n${{inputs.odd}}\nEND-1\nshow ${{inputs.data}}", f"{ODD}\n<{PATH}>"),
        (
            "cat <<EOF-1\n${{inputs.odd}}\nEOF\nEOF-1\nshow ${{inputs.data}}",
            f"{ODD}\nEOF\n<{PATH}>",
        ),
        (
            "cat <<E\n\tE\n${{inputs.odd}}\nE \nE\nshow ${{inputs.data}}",
            f"\tE\n{ODD}\nE \n<{PATH}>",
        ),
        ("a=( $(cat <<EOF\n${{inputs.odd}}\nEOF\n) ); show ${{inputs.data}}", f"<{PATH}>"),
        ("((n = 1 << 2)); show $n ${{inputs.data}}", f"<4><{PATH}>"),
        ("((show a); show ${{inputs.data}})", f"<a><{PATH}>"),
    ],
)
def test_each_value_arrives_as_it_is_meant(text: str, written: str) -> None:
    assert run(in_command(text)) == written


@pytest.mark.parametrize("name", ["quote", "comment", "end", "paren", "here"])
def test_a_value_that_would_swallow_the_rest_is_refused(name: str) -> None:
    plain = f"(show ${{{{inputs.{name}}}}})"
    with pytest.raises(BadExpression) as refused:
        in_command(plain)
    assert f'write it in quotes, "${{{{inputs.{name}}}}}"' in str(refused.value)
    value = SOURCES[f"inputs.{name}"]
    assert run(in_command(plain.replace("$", '"$').replace("}}", '}}"'))) == f"<{value}>"


@pytest.mark.parametrize(
    "text",
    ["show \\${{outputs.model}}", 'show "\\${{inputs.odd}}"', "cat <<EOF\n${{inputs.eof}}\nEOF\n"],
)
def test_a_value_that_would_not_arrive_is_refused(text: str) -> None:
    with pytest.raises(BadExpression, match=r"the backslash before it|would end the here-document"):
        in_command(text)


def test_a_job_in_a_folder_with_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "my jobs"
    (folder / "data").mkdir(parents=True)
    text = (
        "command: >-\n"
        "  ls -d ${{inputs.data}} &&\n"
        '  show "${{inputs.text}}" ${{outputs.o}}/x\n'
        'inputs: {data: {path: data}, text: say "hi"}\n'
        "outputs: {o: }\n"
    )
    job = resolve(parse(text, str(folder / "job.yml")))
    assert run(job.command) == f'{folder}/data\n<say "hi"><{folder}/outputs/o/x>'


def test_the_refusal_names_the_line() -> None:
    text = "type: command\ncommand: show ${{inputs.text}}\ninputs: {text: it's}\n"
    with pytest.raises(BadJob) as refused:
        resolve(parse(text, "job.yml"))
    assert refused.value.message == (
        'job.yml, line 2: inputs.text is "it\'s", and bash would read the rest of the command as '
        'part of it: write it in quotes, "${{inputs.text}}"'
    )
