"""The documentation says what the code says, and builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from singularity_scheduler.jobs import BadJob, parse, resolve, rows

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the pages are written with Python 3.11; argparse words its help differently elsewhere",
)
def test_reference_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "states" / "index.html").exists()


def test_every_key_of_job_files_is_in_their_page() -> None:
    page = (DOCS / "reference" / "job-files.md").read_text()
    listed = re.findall(
        r"^\| `([^`]+)` \| (?:both|command|notebook) \| (\w+) \|", page, re.MULTILINE
    )
    assert listed == [(".".join(row.path), row.use.value) for row in rows()]


def test_the_job_files_of_the_pages_are_right(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "src").mkdir()
    page = (DOCS / "how-to" / "batch.md").read_text()
    jobs = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "type:" in text]
    assert len(jobs) == 4
    for text in jobs:
        assert resolve(parse(text, str(tmp_path / "job.yml"))).wishes["devices"] == 2
    shown = re.search(r"submit: job\.yml, (line \d+: 'job_teir' .*)\n", page)
    assert shown is not None
    wrong = jobs[0].replace("job_tier", "job_teir")
    with pytest.raises(BadJob, match=re.escape(shown[1])):
        resolve(parse(wrong, str(tmp_path / "job.yml")))


def support_table(path: Path) -> list[str]:
    text = path.read_text().split("## What works, what does not\n", 1)[1]
    return [line for line in text.split("\n## ", 1)[0].splitlines() if line.startswith("|")]


def test_front_page_and_readme_have_one_support_table() -> None:
    table = support_table(ROOT / "README.md")
    assert len(table) > 10
    assert table == support_table(DOCS / "index.md")


def test_front_page_and_readme_say_first_what_it_is() -> None:
    title, tagline, what, *_ = (ROOT / "README.md").read_text().split("\n\n")
    assert title == "# jupyter-singularity"
    assert [title, tagline, what] == (DOCS / "index.md").read_text().split("\n\n")[:3]
    assert what.startswith("Singularity shares the accelerators of one or more machines between ")
    assert all(word in what for word in ("JupyterHub", "in the middle of a cell", "variables"))


def test_the_long_cell_of_the_tutorial_lasts_until_the_terminal_has_been_used() -> None:
    page = (DOCS / "tutorial" / "first-notebook.md").read_text()
    middle = page.partition("## Take it away in the middle")[2]
    cell = re.search(r"```python\n(.*?)```", middle, re.DOTALL)
    assert cell is not None
    assert middle.index("open a terminal") < cell.start(), "nobody is quick enough after it"
    assert "time.time() + 60" in cell[1]


def test_readme_shows_administrators_pip_then_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.split("```bash\n")[1].startswith("pip install ")
    first_screen = text.splitlines()[:24]
    assert any(line.startswith("./dev up") for line in first_screen)
    assert any(line.startswith("./dev test") for line in first_screen)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_top_level_pages_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text().replace("\n", ""))
    gone = [x for x in links if "://" not in x and not (ROOT / x).exists()]
    assert not gone


def test_pre_commit_runs_what_the_tests_run() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"] for repo in config["repos"] for hook in repo["hooks"]}
    assert hooks == {"ruff", "ruff-format", "mypy", "codespell", "jupyter-events"}


def test_dev_help_names_every_command() -> None:
    script = (ROOT / "dev").read_text()
    text = script.split("<<'TEXT'\n", 1)[1].split("\nTEXT\n", 1)[0]
    cases = script.split("case $command in\n", 1)[1]
    commands = re.findall(r"^  ([a-z]+)[ )|]", cases, re.MULTILINE)
    assert {"up", "test", "demo", "doctor", "bench", "lint", "docs", "setup"} <= set(commands)
    for command in commands:
        assert re.search(rf"^  {command} ", text, re.MULTILINE), command


def test_unknown_command_of_dev_is_refused() -> None:
    done = subprocess.run(["./dev", "upp"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("./dev: unknown command 'upp'\n")
