"""Packages of one module that pip can install without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, text: str) -> Path:
    """Write the wheel of a package whose one module has this text; anybody may read it."""
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{about}/RECORD"
    listed = "".join(f"{file},,\n" for file in (*files, record))
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in {**files, record: listed}.items():
            wheel.writestr(file, content)
    path.chmod(0o644)
    return path
