"""The pictures of the documentation. Browser tests make each of them in every full run, so that
none can show what is not there any more; `pytest --pictures` puts them into ``docs/images``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.browser_page import Page

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
LIMIT = 150 << 10
"""Bytes of one picture."""
WANTED = "DOCUMENTATION_PICTURES"
"""Set in the environment by `--pictures`."""


async def take(page: Page, name: str, *size: int, of: str = "") -> None:
    """A picture called `name` of the page, in a window of this `size` (1280 x 720 without), or of
    the element that the selector `of` leads to."""
    width, height = size or (1280, 720)
    await page.do("shot", name, str(width), str(height), of)
    made = page.folder / f"{name}.png"
    assert 0 < made.stat().st_size <= LIMIT, f"{name} has {made.stat().st_size} bytes"
    if os.environ.get(WANTED):
        IMAGES.mkdir(exist_ok=True)
        shutil.copyfile(made, IMAGES / made.name)
