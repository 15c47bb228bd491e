"""Files, locks and memory that a session can hold; see `kernel_objects`."""

# ruff: noqa: SIM115, PTH, S108 (plain calls of the system)

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import multiprocessing.shared_memory
import os
import struct
import subprocess
import time

from support.kernel_object import KEEP, Check, call, folder, in_child, kind, libc, same, sleeper

# -- files -----------------------------------------------------------------------------------------


@kind
def file_open() -> Check:
    file = open(folder("file") + "/f", "w+b")
    file.write(b"data")
    file.seek(2)
    return lambda: same(file.read(), b"ta")


@kind
def file_shared_with_a_child() -> Check:
    file = os.open(folder("shared-file") + "/f", os.O_RDWR | os.O_CREAT)
    os.write(file, b"0123456789")
    os.lseek(file, 0, 0)
    reader, writer = os.pipe()
    far, near = os.pipe()

    def child() -> None:
        os.read(reader, 1)
        os.lseek(file, 5, 0)
        os.write(near, b"x")

    in_child(child)

    def check() -> None:
        os.write(writer, b"x")
        os.read(far, 1)
        same(os.read(file, 10), b"56789")

    return check


@kind
def file_deleted() -> Check:
    path = folder("deleted") + "/f"
    file = open(path, "w+b")
    file.write(b"data")
    file.flush()
    os.unlink(path)

    def check() -> None:
        file.seek(0)
        same(file.read(), b"data")
        same(os.path.exists(path), False)

    return check


@kind
def file_without_a_name() -> Check:
    fd = os.open(folder("tmpfile"), os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"data")
    return lambda: same(os.pread(fd, 10, 0), b"data")


@kind
def file_with_another_name() -> Check:
    path = folder("links")
    file = open(f"{path}/a", "w+b")
    os.link(f"{path}/a", f"{path}/b")
    os.unlink(f"{path}/a")

    def check() -> None:
        file.write(b"data")
        file.flush()
        same(open(f"{path}/b", "rb").read(), b"data")

    return check


@kind
def folder_open() -> Check:
    fd = os.open(folder("open"), os.O_RDONLY | os.O_DIRECTORY)

    def check() -> None:
        os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        same(os.listdir("/tmp/objects-open"), ["new"])

    return check


@kind
def folder_deleted_but_worked_in() -> Check:
    path = folder("gone")
    child = subprocess.Popen(["sleep", "600"], cwd=path)
    os.rmdir(path)
    return lambda: same(child.poll(), None)


@kind
def folder_deleted_but_open() -> Check:
    path = folder("gone-open")
    fd = os.open(path, os.O_RDONLY)
    os.rmdir(path)
    return lambda: same(os.fstat(fd).st_mode >> 12, 4)


@kind
def path_descriptor() -> Check:
    fd = os.open(folder("path"), os.O_PATH)
    return lambda: same(os.listdir(f"/proc/self/fd/{fd}"), [])


@kind
def device_files() -> Check:
    zero, null, random = (os.open(f"/dev/{n}", os.O_RDWR) for n in ("zero", "null", "urandom"))

    def check() -> None:
        same(os.read(zero, 2), b"\0\0")
        same(os.write(null, b"x"), 1)
        same(len(os.read(random, 4)), 4)

    return check


@kind
def proc_file() -> Check:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    return lambda: same(os.pread(fd, 5, 0), b"Name:")


@kind
def proc_file_of_an_ended_process() -> Check:
    child = sleeper()
    fd = os.open(f"/proc/{child.pid}/stat", os.O_RDONLY)
    child.kill()
    child.wait()
    KEEP.append(fd)
    return lambda: None


@kind
def sys_file() -> Check:
    fd = os.open("/sys/kernel/mm/transparent_hugepage/enabled", os.O_RDONLY)
    return lambda: same(b"never" in os.pread(fd, 100, 0), True)


@kind
def flock() -> Check:
    path = folder("flock") + "/f"
    one = open(path, "w")
    KEEP.append(one)
    fcntl.flock(one, fcntl.LOCK_EX)

    def check() -> None:
        with open(path) as other, contextlib.suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError("the lock is gone")

    return check


@kind
def posix_lock() -> Check:
    path = folder("lock") + "/f"
    one = open(path, "w")
    KEEP.append(one)
    fcntl.lockf(one, fcntl.LOCK_EX, 4, 2)

    def check() -> None:
        def child() -> None:
            with open(path, "r+") as other:
                try:
                    fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 2)
                except OSError:
                    os._exit(3)

        _, status = os.waitpid(in_child(child), 0)
        same(os.waitstatus_to_exitcode(status), 3)

    return check


@kind
def lock_of_an_open_file() -> Check:
    path = folder("ofd") + "/f"
    one = os.open(path, os.O_RDWR | os.O_CREAT)
    lock = struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 0, 5, 0)
    fcntl.fcntl(one, 37, lock)  # F_OFD_SETLK

    def check() -> None:
        other = os.open(path, os.O_RDWR)
        with contextlib.suppress(OSError):
            fcntl.fcntl(other, 37, lock)
            raise AssertionError("the lock is gone")

    return check


@kind
def lease() -> Check:
    path = folder("lease") + "/f"
    open(path, "w").close()
    fd = os.open(path, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return lambda: same(fcntl.fcntl(fd, fcntl.F_GETLEASE), fcntl.F_RDLCK)


# -- memory ----------------------------------------------------------------------------------------


@kind
def memory_shared_with_a_child() -> Check:
    shared = mmap.mmap(-1, 4096)
    shared[:4] = b"data"
    reader, writer = os.pipe()

    def child() -> None:
        os.read(reader, 1)
        shared[:4] = shared[:4].upper()

    pid = in_child(child)

    def check() -> None:
        os.write(writer, b"x")
        os.waitpid(pid, 0)
        same(shared[:4], b"DATA")

    return check


@kind
def memfd() -> Check:
    fd = os.memfd_create("objects")
    os.write(fd, b"data")
    shared = mmap.mmap(fd, 4)

    def check() -> None:
        os.pwrite(fd, b"D", 0)
        same(shared[:], b"Data")

    return check


@kind
def memfd_sealed() -> Check:
    fd = os.memfd_create("objects", os.MFD_ALLOW_SEALING)
    os.write(fd, b"data")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return lambda: same(fcntl.fcntl(fd, fcntl.F_GET_SEALS), fcntl.F_SEAL_WRITE)


@kind
def shared_memory_by_name() -> Check:
    one = multiprocessing.shared_memory.SharedMemory(create=True, size=100)
    one.buf[:4] = b"data"

    def check() -> None:
        other = multiprocessing.shared_memory.SharedMemory(one.name)
        same(bytes(other.buf[:4]), b"data")
        other.close()
        one.unlink()

    return check


@kind
def named_semaphore() -> Check:
    import _multiprocessing

    name = f"/objects-{time.time_ns()}"
    lock = _multiprocessing.SemLock(1, 1, 1, name, False)
    lock.acquire()

    def check() -> None:
        other = _multiprocessing.SemLock._rebuild(lock.handle, 1, 1, name)
        same(other.acquire(False), False)
        lock.release()
        same(other.acquire(False), True)

    return check


@kind
def file_in_memory_deleted() -> Check:
    path = folder("map-deleted") + "/f"
    with open(path, "w+b") as file:
        file.write(b"data")
        file.flush()
        shared = mmap.mmap(file.fileno(), 4)
    os.unlink(path)
    return lambda: same(shared[:], b"data")


@kind
def file_in_memory_changed_there() -> Check:
    path = folder("map-private") + "/f"
    with open(path, "w+b") as file:
        file.write(b"data")
        file.flush()
        private = mmap.mmap(file.fileno(), 4, flags=mmap.MAP_PRIVATE)
    private[:1] = b"D"

    def check() -> None:
        same(private[:], b"Data")
        same(open(path, "rb").read(), b"data")

    return check


@kind
def locked_memory() -> Check:
    one = mmap.mmap(-1, 4096)
    one[:4] = b"data"
    at = ctypes.addressof(ctypes.c_char.from_buffer(one))
    same(libc.mlock(ctypes.c_void_p(at), 4096), 0)

    def check() -> None:
        same(one[:4], b"data")
        assert "VmLck:\t       0" not in open("/proc/self/status").read()

    return check


@kind
def secret_memory() -> Check:
    fd = call(447, 0)
    os.ftruncate(fd, 4096)
    KEEP.append(mmap.mmap(fd, 4096))
    return lambda: None
