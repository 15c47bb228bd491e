"""Job files as text: what is read, and what is said of everything that cannot be."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest, NotFound
from singularity_scheduler.jobs.errors import BadJob
from singularity_scheduler.jobs.reading import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse, read
from singularity_scheduler.jobs.writing import written

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_values_are_those_of_yaml_1_2() -> None:
    text = (
        "whole: 010\nhex: 0x1F\noctal: 0o17\nsmall: 1e-3\nhalf: .5\ntrue: TRUE\nword: on\n"
        "time: 1:30\nday: 2026-01-02\nempty:\nnull: ~\nquoted: '1'\nversion: 1.10.2\n"
        "block: |\n  1\n"
    )
    assert parse(text, "job.yml").root.plain() == {
        **{"whole": 10, "hex": 31, "octal": 15, "small": 0.001, "half": 0.5, "true": True},
        **{"word": "on", "time": "1:30", "day": "2026-01-02", "empty": None, "null": None},
        **{"quoted": "1", "version": "1.10.2", "block": "1\n"},
    }


def test_values_know_their_lines() -> None:
    job = parse("a: 1\n\nb:\n  c: [1,\n    2]\n", "job.yml")
    assert [job.line("a"), job.line("b"), job.line("b", "c"), job.line("b", "c", 1)] == [1, 3, 4, 5]
    assert job.line("b", "none") == 3  # the nearest thing around it
    assert job.bad("no", "b", "c").message == "job.yml, line 4: no"


def test_aliases_stand_for_what_they_name() -> None:
    job = parse("a: &x {k: [1]}\nb: *x\nc: [*x, *x]", "job.yml")
    assert job.root.plain()["c"] == [{"k": [1]}, {"k": [1]}]


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a:\n\tb: 1\n", 2, "a tab: YAML is indented with spaces"),
        ("a: 1\n\tb: 2\n", 2, "a tab: YAML is indented with spaces"),
        ("a: [1,\n\t2]\n", 2, "a tab: YAML is indented with spaces"),
        ("", 1, "the file is empty: it must describe a job"),
        ("# nothing\n", 1, "the file is empty: it must describe a job"),
        ("- a\n", 1, "a job file must be a mapping, such as 'type: notebook'"),
        ("a: 1\nb: 2\na: 3\n", 3, "'a' is there twice, first in line 1"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins here: one file describes one job"),
        ("a: b: c\n", 1, "this is not YAML (mapping values are not allowed here)"),
        ("a: 1\nb: 'x\nc: 1\n", 2, "this is not YAML (this is never closed)"),
        ("a: {b: 1\n", 1, "this is not YAML ("),
        ("a: 1\nb: \x00\n", 2, "a character here cannot stand in YAML"),
        ('a: "\\ud800"\n', 1, "half a character here cannot be stored"),
        ("a: 1\nb: 1e999\n", 2, "the number '1e999' is too large"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "is not taken: write plain values"),
        ("a: !x 1\n", 1, "the tag '!x' is not taken: write plain values"),
        ("? [a]\n: 1\n", 1, "a key must be a plain word"),
        ("a: &x [*x]\n", 1, "the alias *x stands for nothing before it"),
        ("a: " + "[" * 40 + "]" * 40, 1, f"values are nested deeper than {MAX_DEPTH} levels"),
        ("a: " + "[" * 60_000, 1, f"values are nested deeper than {MAX_DEPTH} levels"),
        ("a:\n- " + "- " * 40 + "x", 2, f"values are nested deeper than {MAX_DEPTH} levels"),
        ("a: [" + "x, " * 6000 + "]", 1, f"more than {MAX_VALUES} values, aliases filled in"),
        (BOMB, 4, f"more than {MAX_VALUES} values, aliases filled in"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, sentence: str) -> None:
    begun = time.thread_time()
    with pytest.raises(BadJob) as refused:
        parse(text, "job.yml")
    assert refused.value.message.startswith(f"job.yml, line {line}: ")
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.fields == {"file": "job.yml", "line": line}
    assert time.thread_time() - begun < 5


def test_deep_values_behind_aliases_are_counted() -> None:
    text = "a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a" + "]" * 20
    with pytest.raises(BadJob, match=rf"line 2: values are nested deeper than {MAX_DEPTH}"):
        parse(text, "job.yml")


def test_files_that_are_no_job_files(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.yml cannot be read \(No such file"):
        read(str(tmp_path / "none.yml"))
    with pytest.raises(NotFound, match="is a folder and no job file"):
        read(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.yml")  # opening it would wait for ever
    with pytest.raises(NotFound, match="is no ordinary file"):
        read(str(tmp_path / "pipe.yml"))
    latin = tmp_path / "latin.yml"
    latin.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(BadJob, match=r"latin\.yml, line 2: this is no UTF-8 text"):
        read(str(latin))


def test_a_file_of_50_mb_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yml"
    with path.open("wb") as file:
        file.truncate(50 << 20)
    begun = time.thread_time()
    with pytest.raises(BadJob, match=f"large.yml: the file has more than {MAX_BYTES >> 10} KiB"):
        read(str(path))
    assert time.thread_time() - begun < 1


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    refused = None
    try:
        parse(text, "job.yml")
    except BadRequest as error:
        refused = error.message
    assert refused is None or re.fullmatch("job.yml, line [0-9]+: .+", refused)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab1:- ", max_size=5), inner)
    ),
    max_leaves=10,
)


@given(plain)
@example([1e-7, 1e300, -0.0, "1e-7", "on", "~", "0o7", "a: #b", "\n", "\x85", "*x", "A\x85"])
def test_what_is_written_is_read_again(value: Any) -> None:
    found = parse(written({"value": value}), "job.yml").root.plain()
    assert repr(found["value"]) == repr(value)
