"""The pictures of the documentation: all are there, are shown, and are made by browser tests."""

from __future__ import annotations

import re
from pathlib import Path

from support.pictures import IMAGES, LIMIT

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
THEMES = {"only-light": "-light", "only-dark": "-dark"}


def shown() -> list[tuple[Path, str, str, str]]:
    """(page, text for who cannot see it, picture, theme) of each picture in a page."""
    return [
        (page, text, target, theme)
        for page in sorted(DOCS.rglob("*.md"))
        for text, target, theme in re.findall(
            r"!\[([^]]*)\]\(([^)#]+)#?([^)]*)\)", page.read_text()
        )
    ]


def test_every_picture_is_shown_and_every_shown_one_is_there() -> None:
    used = {(page.parent / target).resolve() for page, _, target, _ in shown()}
    assert used == set(IMAGES.iterdir())
    assert used


def test_every_picture_has_words_and_fits_its_theme() -> None:
    for page, text, target, theme in shown():
        assert len(text) > 20, (page, target)
        if theme:
            assert Path(target).stem.endswith(THEMES[theme]), (page, target)


def test_pictures_are_small() -> None:
    assert {path.name for path in IMAGES.iterdir() if path.stat().st_size > LIMIT} == set()


def test_browser_tests_make_every_picture() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests/e2e").glob("test_*.py"))
    names = re.findall(r'pictures\.take\(page, f?"([^"]+)"', tests)
    made = ["[a-z-]+".join(re.escape(part) for part in re.split(r"{[^}]*}", n)) for n in names]
    assert made
    for picture in IMAGES.iterdir():
        assert any(re.fullmatch(name, picture.stem) for name in made), picture.name
