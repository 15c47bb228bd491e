"""Both ways to a private CRIU, for real: packages from the archive, and a build from source."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from singularity_proxy.capsule.images import criu, image
from support.capsules import Places, needs_namespaces

pytestmark = [pytest.mark.full, pytest.mark.asyncio, needs_namespaces, pytest.mark.timeout(600)]


@pytest.mark.parametrize("build", [False, True])
async def test_a_fresh_criu_dumps_and_restores(
    build: bool, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads (no network: skipped); the build takes a minute or two."""
    # Not below /tmp: what runs inside a capsule must be seen there.
    place = Path(sys.prefix) / "var" / f"criu-test-{short_dir.name}"
    monkeypatch.setattr(sys, "prefix", str(place))
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    try:
        found = await asyncio.to_thread(criu.obtain, build=build)
        if not found.ok and "apt-get update failed" in found.reason:
            pytest.skip(found.reason)
        assert found.ok, found.reason
        assert found.path == str(criu.private_path())
        names = {path.name for path in criu.private_path().parent.iterdir()}
        assert names == {"criu", "root"}
        async with Places() as session:
            capsule = await session.start("/bin/sleep", "600")
            await asyncio.to_thread(
                image.dump, capsule, str(short_dir / "image"), command=found.command()
            )
            await capsule.end(0)
            capsule = await session.prepare()
            await asyncio.to_thread(
                image.restore, capsule, str(short_dir / "image"), command=found.command()
            )
            assert capsule.main() is not None
    finally:
        await asyncio.to_thread(_remove, place)


def _remove(place: Path) -> None:
    import shutil

    shutil.rmtree(place, ignore_errors=True)
