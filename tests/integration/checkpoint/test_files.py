"""How files are read from and written to folders that belong to a session's user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.files import Part, tree
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    FileChanged,
    SingularityError,
)
from support.checkpoint_data import (
    MB,
    contents,
    noise,
    request,
    some_files,
)
from support.checkpoint_stores import StoreBox


def test_folders_links_and_modes(stores: StoreBox, tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/file").write_text("hello")
    (source / "a/empty").mkdir(mode=0o700)
    (source / "a/link").symlink_to("b/file")
    (source / "a/dangling").symlink_to("/nowhere/at all")
    os.mkfifo(source / "a/pipe")
    os.chmod(source / "a/b/file", 0o4755)
    os.chmod(source / "a/b", 0o550)
    os.utime(source / "a/b", ns=(1, 10**18))
    parts, left_out = tree(str(source), "scratch", "scratch")
    assert left_out == ["a/pipe: a socket, pipe or device"]
    box = stores.user()
    box.save(request(), parts)
    os.chmod(source / "a/b", 0o750)
    box.restore("s", into=tmp_path / "out", owner=(os.geteuid(), os.getegid()))
    out = tmp_path / "out/scratch/a"
    assert (out / "b/file").read_text() == "hello"
    assert os.stat(out / "b/file").st_mode & 0o7777 == 0o755  # no rights are gained
    assert os.stat(out / "b").st_mode & 0o7777 == 0o550
    assert os.stat(out / "b").st_mtime_ns == 10**18
    assert (out / "empty").is_dir()
    assert os.readlink(out / "link") == "b/file"
    assert os.readlink(out / "dangling") == "/nowhere/at all"
    os.chmod(out / "b", 0o750)


def test_parts_can_go_to_different_places(folder_store: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    box = folder_store.user()
    box.save(request(), parts)
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    slow.mkdir()
    where = {"device": str(fast), "image": str(slow)}
    restored = box.restore("s", place=lambda part: where.get(part.kind))
    assert set(contents(fast)) == {"device/r0.snap"}
    assert set(contents(slow)) == {"image/core-1.img", "image/pages-1.img"}
    assert {part.kind for part in restored.parts} == {"device", "image"}


@pytest.mark.root
def test_everything_becomes_its_owners(folder_store: StoreBox, tmp_path: Path) -> None:
    """Also the folders on the way, so that the owner gets there."""
    source = tmp_path / "src"
    (source / "a/b").mkdir(parents=True)
    (source / "a/b/file").write_text("hello")
    (source / "a/link").symlink_to("b")
    parts, _ = tree(str(source), "deep/scratch", "scratch")
    box = folder_store.user()
    box.save(request(), parts)
    box.restore("s", into=tmp_path / "out", owner=(12345, 12346))
    for path in (tmp_path / "out").rglob("*"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (12345, 12346), path


@pytest.mark.parametrize("how", ["link", "hard link"])
def test_what_is_put_in_the_place_of_a_restored_file_is_not_touched(
    folder_store: StoreBox, tmp_path: Path, how: str
) -> None:
    """The folder is its user's, who may do that at any moment."""
    (tmp_path / "file").write_bytes(noise(100_000))
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "victim").chmod(0o600)
    (tmp_path / "file").chmod(0o666)
    box = folder_store.user()
    box.save(request(), [Part("x", "scratch", str(tmp_path / "file"))])
    for step in ("restore.created", "restore.chunk"):

        def replace(name: str) -> None:
            if name == step:  # noqa: B023
                (tmp_path / "out/x").unlink()
                if how == "link":
                    (tmp_path / "out/x").symlink_to(tmp_path / "victim")
                else:
                    os.link(tmp_path / "victim", tmp_path / "out/x")

        with pytest.raises(SingularityError, match=r"was replaced|was not restored"):
            box.restore("s", into=tmp_path / "out", on_step=replace)
        assert (tmp_path / "victim").read_text() == "mine"
        assert os.stat(tmp_path / "victim").st_mode & 0o777 == 0o600


def test_nothing_is_written_over(folder_store: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    box = folder_store.user()
    box.save(request(), parts)
    target = tmp_path / "out"
    (target / "scratch").mkdir(parents=True)
    (target / "scratch/text").write_text("mine")
    with pytest.raises(Conflict, match="not empty"):
        box.restore("s", into=target)
    with pytest.raises(Conflict, match="there already"):
        box.restore("s", place=lambda part: str(target))
    assert contents(target) == {"scratch/text": b"mine"}
    # A link in the way is not followed either.
    (target / "device").symlink_to(tmp_path / "src")
    before = set(os.listdir(tmp_path / "src"))
    with pytest.raises(SingularityError, match="was not restored"):
        box.restore("s", place=lambda part: str(target) if part.kind == "device" else None)
    assert set(os.listdir(tmp_path / "src")) == before


def test_files_are_not_read_through_links(folder_store: StoreBox, tmp_path: Path) -> None:
    secret, root = tmp_path / "secret", tmp_path / "root"
    secret.mkdir()
    (secret / "key").write_text("secret")
    root.mkdir()
    (root / "link").symlink_to(secret / "key")
    (root / "folder").symlink_to(secret)
    os.mkfifo(root / "pipe")
    box = folder_store.user()
    for part in (
        Part("x", "scratch", str(root / "link")),
        Part("x", "scratch", "link", str(root)),
        Part("x", "scratch", "folder/key", str(root)),
        Part("x", "scratch", "pipe", str(root)),
        Part("x", "scratch", str(tmp_path / "nothing")),
    ):
        with pytest.raises(FileChanged, match="could not be saved"):
            box.save(request(), [part])
    assert box.list("s") == []
    assert box.head("s").writing == ()


@pytest.mark.root
def test_files_of_others_are_not_read(folder_store: StoreBox, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("theirs")
    os.chown(tmp_path / "foreign", 12345, 12345)
    box = folder_store.user()
    part = Part("x", "scratch", str(tmp_path / "foreign"))
    with pytest.raises(FileChanged, match="another user"):
        box.save(request(uid=12346), [part])
    assert box.save(request(uid=12345), [part]).bytes == 6


def test_a_file_that_is_written_to_is_refused(folder_store: StoreBox, tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(noise(3 * MB))
    box = folder_store.user()

    def grow(step: str) -> None:
        if step == "save.registered":
            with path.open("ab") as file:
                file.write(b"more")

    with pytest.raises(FileChanged, match="written to"):
        box.save(request(name="n"), [Part("x", "scratch", str(path))], on_step=grow)
    assert box.list("s") == []


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../b", "..", "", "a//b", "./a", "a\0b"])
def test_names_stay_in_their_folder(name: str) -> None:
    with pytest.raises(BadRequest):
        Part(name, "scratch", "/x")
