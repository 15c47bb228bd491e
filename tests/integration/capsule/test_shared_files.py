"""Files that others use while a session is away: nothing of theirs is cut or overwritten, the
session comes back, and what is not as it was is told by name."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.files import record as files
from singularity_proxy.capsule.files.rules import Action, Way
from singularity_proxy.capsule.files.writers import WriterWatch
from singularity_proxy.errors import OpenFilesChanged
from support.capsule_returns import back, bring_back, saved
from support.capsules import Place, Places, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

WHAT = ("same", "grown", "rewritten", "changed", "shorter", "gone", "folder", "readonly")

WRITERS = f"""
import json, os, sys, time
WHAT = {WHAT!r}
files = {{}}
for what in WHAT:
    files["append", what] = open(f"append-{{what}}.csv", "w")  # made by another descriptor
    files["append", what].write("row\\n" * 4)
    files["append", what].close()
    files["append", what] = open(f"append-{{what}}.csv", "a")
    files["rows", what] = open(f"rows-{{what}}.csv", "w")
    files["rows", what].write("row\\n" * 4)
    files["rows", what].flush()
    with open(f"place-{{what}}.bin", "w") as made:
        made.write("row\\n" * 4)
    files["place", what] = open(f"place-{{what}}.bin", "r+")
    files["place", what].seek(4)
    with open(f"hdf-{{what}}.h5", "wb") as made:
        made.write(b"\\x89HDF\\r\\n\\x1a\\n" + b"12345678")
    files["hdf", what] = open(f"hdf-{{what}}.h5", "r+")
    files["hdf", what].seek(0, 2)
    with open(f"read-{{what}}.txt", "w") as made:
        made.write("row\\n" * 4)
    files["read", what] = open(f"read-{{what}}.txt")
print("on", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
told = {{}}
for (kind, what), file in files.items():
    try:
        if kind == "read":
            told[f"{{kind}}-{{what}}"] = os.pread(file.fileno(), 100, 0).decode()
        else:
            os.write(file.fileno(), b"mine\\n")
            told[f"{{kind}}-{{what}}"] = "ok"
    except OSError as error:
        told[f"{{kind}}-{{what}}"] = type(error).__name__
print(json.dumps(told), flush=True)
"""


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def change(path: Path) -> None:
    """What somebody else does to a file, by the last word of its name."""
    data = path.read_bytes()
    match path.stem.rpartition("-")[2]:
        case "grown":
            append(path, b"theirs\n")
        case "rewritten":
            path.write_bytes(b"THEIRS" + data[6:] + b"theirs\n")
        case "changed":
            path.write_bytes(b"THEIRS" + data[6:])
        case "shorter":
            os.truncate(path, 6)
        case "gone":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
            (path / "theirs").write_text("theirs")
        case "readonly":
            path.chmod(0o444)


async def outcome(place: Place) -> dict[str, str]:
    (place.tmp / "go").touch()
    await place.until(lambda: place.log().count("\n") >= 2)
    told: dict[str, str] = json.loads(place.log().splitlines()[1])
    return told


async def test_a_resume_cuts_and_overwrites_nothing_of_others(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.python(WRITERS)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        for path in sorted(place.home.iterdir()):
            change(path)
        theirs = {path.name: path.read_bytes() for path in place.home.iterdir() if path.is_file()}
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.RESUME), label="after-1"
        )
        await bring_back(place, tmp_path / "c", done.plan)
        said = await outcome(place)
        now = {path.name: path.read_bytes() for path in place.home.iterdir() if path.is_file()}
        # Nobody's bytes are gone, nothing was copied, and what the session wrote stands behind.
        mine = b"mine\n"
        for name, data in theirs.items():
            wrote = said[name.partition(".")[0]] == "ok"
            if name == "place-same.bin":
                assert now[name] == data[:4] + mine + data[9:]
            else:
                assert now[name] == data + (mine if wrote else b""), name
        made = set(now) - set(theirs)
        assert made == {"append-gone.csv", "rows-gone.csv"}
        assert all(now[name] == mine for name in made)
        assert (place.home / "rows-folder.csv/theirs").read_text() == "theirs"
        writes = {name for name, how in said.items() if how == "ok"}
        going_on = ("same", "grown", "rewritten", "changed", "shorter", "gone")
        assert writes == {
            *(f"{kind}-{what}" for kind in ("append", "rows") for what in going_on),
            "place-same",
            "hdf-same",
        }
        assert said["read-grown"] == "row\n" * 4 + "theirs\n"
        assert said["read-gone"] == said["place-grown"] == said["hdf-grown"] == "OSError"
        told = {Path(one.path).name: one.sentence() for one in done.told}
        # Whatever is not as a program expects it is named.
        silent = {
            *(f"{name}-same.{end}" for name, end in ENDS),
            "append-grown.csv",
            "read-grown.txt",
            "read-rewritten.txt",  # of a file that is only read no hash is taken
            "read-readonly.txt",
        }
        assert set(told) == {f"{n}-{w}.{e}" for n, e in ENDS for w in WHAT} - silent
        assert told["rows-grown.csv"].endswith("written to by others after the checkpoint; "
            "the session goes on at its end")  # fmt: skip
        assert "open for reading only" in told["place-grown.bin"]
        assert "was gone; it was made anew" in told["rows-gone.csv"]


ENDS = (("append", "csv"), ("rows", "csv"), ("place", "bin"), ("hdf", "h5"), ("read", "txt"))


@pytest.mark.parametrize("who", ["nobody", "a program", "a session"])
async def test_a_rollback_cuts_only_what_is_the_sessions_own(tmp_path: Path, who: str) -> None:
    """The copy keeps what was there; a file that others write to as well is left."""
    code = """
import os, time
rows = open("rows.csv", "w"); rows.write("1\\n"); rows.flush()
log = open("log.csv", "a"); log.write("1\\n"); log.flush()
part = open("part.parquet", "wb", buffering=0); part.write(b"PAR1 1\\n")
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
for file in (rows, log):
    file.write("2\\n"); file.flush()
try: part.write(b"2\\n")
except OSError as error: print(error.strerror, flush=True)
print("done", flush=True)
time.sleep(600)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await asyncio.to_thread(capsule.thaw)
        (place.tmp / "go").touch()
        await place.logged("done")
        await capsule.end(0)
        (place.tmp / "go").unlink()
        rows, log, part = (place.home / name for name in ("rows.csv", "log.csv", "part.parquet"))
        shared = {str(path) for path in (rows, log, part) if who == "a session"}
        others = [path.open("a") for path in (rows, log, part) if who == "a program"]
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place), label="after-1", shared=shared
        )
        for file in others:
            file.close()
        (place.folder / "capsule.log").write_text("")
        await bring_back(place, tmp_path / "c", done.plan)
        (place.tmp / "go").touch()
        await place.logged("done")
        actions = [one.action for one in done.told]
        if who == "nobody":
            assert rows.read_text() == log.read_text() == "1\n2\n"
            assert (place.home / "rows.csv.after-1").read_text() == "1\n2\n"
            assert part.read_text() == "PAR1 1\n2\n"
            assert actions == [Action.CUT] * 3
        else:
            assert rows.read_text() == log.read_text() == "1\n2\n2\n"
            # Places in it are known by heart: it could only be written wrong.
            assert part.read_text() == "PAR1 1\n2\n"
            assert "Bad file descriptor" in place.log()
            assert actions == [Action.KEEP, Action.READ, Action.END]
            assert "because others write to it" in done.told[0].sentence()
            assert len(list(place.home.iterdir())) == 3


async def test_a_fork_has_its_own_copy_of_what_the_first_one_writes(tmp_path: Path) -> None:
    code = """
import os, time
rows = open("rows.csv", "w"); rows.write("1\\n"); rows.flush()
log = open("log.csv", "a"); log.write("1\\n"); log.flush()
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
rows.write("fork\\n"); rows.flush(); log.write("fork\\n"); log.flush()
print("done", flush=True)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        rows, log = place.home / "rows.csv", place.home / "log.csv"
        append(rows, b"first\n")
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.FORK), label="fork-2"
        )
        await bring_back(place, tmp_path / "c", done.plan)
        (place.tmp / "go").touch()
        await place.logged("done")
        assert rows.read_text() == "1\nfirst\n"
        assert (place.home / "rows.csv.fork-2").read_text() == "1\nfork\n"
        assert log.read_text() == "1\nfork\n"
        [told] = done.sentences()
        assert "rows.csv.fork-2" in told


DATABASE = """
import os, sqlite3, time
db = sqlite3.connect("study.db", isolation_level=None, timeout=1)
db.execute("pragma journal_mode={mode}")
db.execute("create table if not exists t(x)")
db.execute("insert into t values ('first')")
{open}
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
try:
    {then}
    print("wrote", flush=True)
except sqlite3.Error as error:
    print("error", error, flush=True)
"""
WRITE = "db.execute(\"insert into t values ('mine')\")"
OPEN = "db.execute('begin immediate'); db.execute(\"insert into t values ('open')\")"


def rows_of(path: Path) -> list[str]:
    with sqlite3.connect(path, timeout=5) as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        found = [x for (x,) in db.execute("select x from t")]
    db.close()
    return found


async def _database(
    tmp_path: Path, mode: str, opened: str, then: str, meanwhile: Callable[[Path], None]
) -> tuple[str, list[str], list[str]]:
    """(what the session said when it was back, rows, what was told)."""
    async with Places() as place:
        code = DATABASE.format(mode=mode, open=opened or "pass", then=then)
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        meanwhile(place.home / "study.db")
        for path in place.home.iterdir():
            os.chown(path, place.uid, -1)
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.RESUME), label="after-1"
        )
        await bring_back(place, tmp_path / "c", done.plan)
        (place.tmp / "go").touch()
        await place.until(lambda: place.log().count("\n") >= 2)
        said = place.log().splitlines()[1]
        return said, rows_of(place.home / "study.db"), done.sentences()


def others_insert(path: Path, count: int = 500) -> None:
    db = sqlite3.connect(path, timeout=5)
    with db:
        db.executemany("insert into t values (?)", [(f"theirs {n}",) for n in range(count)])
    db.close()


THEIRS = [f"theirs {n}" for n in range(500)]


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
async def test_a_database_is_used_by_both(tmp_path: Path, mode: str) -> None:
    """Both sides' rows are in it, and it is whole; nothing has to be told."""
    said, rows, told = await _database(tmp_path, mode, "", WRITE, others_insert)
    assert (said, rows, told) == ("wrote", ["first", *THEIRS, "mine"], [])


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_transaction_that_was_open_goes_on_when_nobody_came_between(
    tmp_path: Path, mode: str
) -> None:
    then = f"{WRITE}; db.execute('commit')"
    said, rows, told = await _database(tmp_path, mode, OPEN, then, lambda _: None)
    assert (said, rows, told) == ("wrote", ["first", "open", "mine"], [])


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("opened", [OPEN, "cursor = db.execute('select x from t')"])
async def test_a_transaction_that_others_have_overtaken_is_given_up(
    tmp_path: Path, mode: str, opened: str
) -> None:
    """It would write its old pages over theirs."""
    then = f"{WRITE}; db.execute('commit')"
    if opened is not OPEN:
        opened += "; cursor.fetchone()"
        opened = f"db.execute('begin'); {opened}"
    said, rows, [told] = await _database(tmp_path, mode, opened, then, others_insert)
    assert said.startswith("error ")
    assert rows == ["first", *THEIRS]
    assert "was given up, because the database was used by others" in told


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    ("opened", "expected"),
    [("", None), ("db.execute('begin'); db.execute('select x from t')", None), (OPEN, "study.db")],
)
async def test_a_checkpoint_sees_that_a_database_is_being_changed(
    mode: str, opened: str, expected: str | None
) -> None:
    """It lets the session go on for a moment then, and tries again."""
    async with Places() as place:
        code = DATABASE.format(mode=mode, open=opened or "pass", then="pass")
        capsule = await place.python(code)
        await place.logged("on")
        await asyncio.to_thread(capsule.freeze)
        found = await asyncio.to_thread(files.in_the_middle, capsule)
        wanted = {"study.db", "study.db-shm"} if expected else {None}
        assert (Path(found).name if found else None) in wanted


async def test_a_lock_that_another_program_has_now_is_not_waited_for(tmp_path: Path) -> None:
    code = """
import fcntl, os, time
a = open("a.lock", "w"); fcntl.flock(a, fcntl.LOCK_EX)
b = open("b.lock", "w"); fcntl.lockf(b, fcntl.LOCK_EX)
c = open("c.lock", "w"); fcntl.flock(c, fcntl.LOCK_EX)
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
print("back", flush=True)
time.sleep(600)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        with (place.home / "a.lock").open("w") as a, (place.home / "b.lock").open("w") as b:
            fcntl.flock(a, fcntl.LOCK_EX)
            fcntl.lockf(b, fcntl.LOCK_EX)
            done = await asyncio.to_thread(
                reconcile.reconcile, record, **back(place, Way.RESUME), label="after-1"
            )
            await bring_back(place, tmp_path / "c", done.plan)
            (place.tmp / "go").touch()
            await place.logged("back")
            assert [Path(one.path).name for one in done.told] == ["a.lock", "b.lock"]
            assert all("another program holds it now" in one for one in done.sentences())
        with (place.home / "c.lock").open("w") as c, pytest.raises(BlockingIOError):
            fcntl.flock(c, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the session has it again


MAPPED = """
import mmap, os, time
with open("data.bin", "wb") as made: made.write(bytes(8192))
with open("data.bin", "r+b") as file: data = mmap.mmap(file.fileno(), 8192)
data[0] = 7
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
print(data[0], data[4096], flush=True)
"""


async def test_data_in_memory_comes_back_unless_its_file_is_shorter(tmp_path: Path) -> None:
    async with Places() as place:
        capsule = await place.python(MAPPED)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        data = place.home / "data.bin"
        os.truncate(data, 4096)
        with pytest.raises(OpenFilesChanged, match=r"data.bin \(shorter\); nothing was changed"):
            await asyncio.to_thread(
                reconcile.reconcile, record, **back(place, Way.RESUME), label="x"
            )
        assert data.stat().st_size == 4096
        append(data, b"\5" * 5000)  # what the sentence says: any file that is long enough
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.RESUME), label="x"
        )
        await bring_back(place, tmp_path / "c", done.plan)
        (place.tmp / "go").touch()
        await place.logged("7 5")


async def test_a_link_leads_no_further_than_the_user_may_go(tmp_path: Path) -> None:
    """CRIU has all rights: a link to a file of somebody else, of the same size and mode."""
    async with Places() as place:
        if place.uid == os.geteuid():
            pytest.skip("needs a user with another uid")
        code = """
import os, time
with open("mine", "w") as made: made.write("12345678")
os.chmod("mine", 0o600)
file = open("mine", "r+")
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
try: print(os.pread(file.fileno(), 100, 0), flush=True)
except OSError as error: print("refused", flush=True)
"""
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        secret = place.root / "secret"
        secret.write_text("a secret")
        secret.chmod(0o600)
        (place.home / "mine").unlink()
        (place.home / "mine").symlink_to(secret)
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.RESUME), label="x"
        )
        await bring_back(place, tmp_path / "c", done.plan)
        (place.tmp / "go").touch()
        await place.logged("refused")
        assert "may not be opened any more" in done.sentences()[0]


async def test_nothing_is_written_to_another_file_that_a_link_leads_to(tmp_path: Path) -> None:
    """The user's other files are not the session's, whatever stands in the place of one. A file
    that was moved and left a link behind is still the same."""
    code = """
import os, time
names = ("rows.csv", "log.csv", "place.bin", "moved.csv")
for name in names:
    with open(name, "w") as made: made.write("12345678")
files = [open(name, "a" if name in ("log.csv", "moved.csv") else "r+") for name in names]
files[0].seek(0, 2); files[2].seek(4)
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
for name, file in zip(names, files):
    try: os.write(file.fileno(), b"mine"); print(name, "ok", flush=True)
    except OSError as error: print(name, error.strerror, flush=True)
print("done", flush=True)
"""
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        precious = place.home / "precious"
        precious.write_text("precious, and longer than theirs")
        os.chown(precious, place.uid, -1)
        for name in ("rows.csv", "log.csv", "place.bin"):
            (place.home / name).unlink()
            (place.home / name).symlink_to(precious)
        (place.home / "moved.csv").rename(place.home / "there.csv")
        (place.home / "moved.csv").symlink_to(place.home / "there.csv")
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.RESUME), label="x"
        )
        assert sum("is a link to another file now" in said for said in done.sentences()) == 3
        await bring_back(place, tmp_path / "c", done.plan)
        (place.tmp / "go").touch()
        await place.logged("done")
        assert precious.read_text() == "precious, and longer than theirs"
        assert (place.home / "there.csv").read_text() == "12345678mine"
        for name in ("rows.csv", "log.csv", "place.bin"):
            assert f"{name} Bad file descriptor" in place.log()
        assert "moved.csv ok" in place.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is told who writes")
async def test_who_wrote_to_a_file_is_known(tmp_path: Path) -> None:
    code = """
import os, time
files = [open(name, "a") for name in ("own.csv", "shared.csv")]
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
for file in files: file.write("mine"); file.flush()
print("done", flush=True)
time.sleep(600)
"""
    async with Places() as place:
        watch = WriterWatch()
        capsule = await place.python(code)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        watch.begin("s", capsule, record)
        await asyncio.to_thread(capsule.thaw)
        began = time.time()
        (place.tmp / "go").touch()
        await place.logged("done")
        shared = str(place.home / "shared.csv")
        with watch.ignoring("s"):
            append(Path(shared), b"the agent's")
        assert watch.foreign("s", began) == frozenset()
        append(Path(shared), b"theirs")
        await place.until(lambda: watch.foreign("s", began) == {shared})
        assert watch.foreign("s", time.time()) == frozenset()
        watch.forget("s")
        assert watch.foreign("s", began) == frozenset()
