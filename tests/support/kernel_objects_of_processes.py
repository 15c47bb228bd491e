"""Processes and namespaces that a session can hold; see `kernel_objects`."""

# ruff: noqa: SIM115, PTH, S108 (plain calls of the system)

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import threading
import time

from support.kernel_object import Check, folder, in_child, kind, libc, same, sleeper


@kind
def daemon() -> Check:
    path = folder("daemon") + "/pid"
    os.system(f"sh -c 'echo $$ >{path}; exec sleep 600' >/dev/null 2>&1 &")
    while not (os.path.exists(path) and open(path).read().strip()):
        time.sleep(0.01)
    return lambda: os.kill(int(open(path).read()), 0)


@kind
def zombie() -> Check:
    pid = in_child(lambda: os._exit(5))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return lambda: same(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 5)


@kind
def stopped_child() -> Check:
    child = sleeper()
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)

    def check() -> None:
        with open(f"/proc/{child.pid}/stat") as file:
            same(file.read().rpartition(")")[2].split()[0], "T")

    return check


@kind
def threads() -> Check:
    go, out = threading.Event(), []
    worker = threading.Thread(target=lambda: (go.wait(), out.append(1)))
    worker.start()

    def check() -> None:
        go.set()
        worker.join(10)
        same(out, [1])

    return check


@kind
def signal_that_waits() -> Check:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    return lambda: same(signal.SIGUSR1 in signal.sigpending(), True)


@kind
def interval_timer() -> Check:
    rung = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: rung.set())
    signal.setitimer(signal.ITIMER_REAL, 3600)

    def check() -> None:
        assert 3000 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3600
        signal.setitimer(signal.ITIMER_REAL, 0)

    return check


@kind
def posix_timer() -> Check:
    id = ctypes.c_int()
    event = ctypes.create_string_buffer(struct.pack("=qii", 0, 0, 1), 64)  # SIGEV_NONE
    same(libc.syscall(222, 1, event, ctypes.byref(id)), 0)
    now = struct.pack("=4q", 0, 0, 3600, 0)
    same(libc.syscall(223, id, 0, now, None), 0)

    def check() -> None:
        left = ctypes.create_string_buffer(32)
        same(libc.syscall(224, id, left), 0)
        assert 3000 < struct.unpack("=4q", left.raw)[2] <= 3600

    return check


@kind
def end_with_the_parent() -> Check:
    """What `prctl(PR_SET_PDEATHSIG)` asks for."""
    libc.prctl(1, signal.SIGURG, 0, 0, 0)

    def check() -> None:
        found = ctypes.c_int()
        libc.prctl(2, ctypes.byref(found), 0, 0, 0)
        same(found.value, signal.SIGURG)

    return check


@kind
def reaper_of_its_own() -> Check:
    libc.prctl(36, 1, 0, 0, 0)

    def check() -> None:
        found = ctypes.c_int()
        libc.prctl(37, ctypes.byref(found), 0, 0, 0)
        same(found.value, 1)

    return check


@kind
def limits() -> Check:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
    return lambda: same(resource.getrlimit(resource.RLIMIT_CORE), (0, 4096))


@kind
def niceness() -> Check:
    os.nice(3)
    before = os.nice(0)
    return lambda: same(os.nice(0), before)


@kind
def sessions_and_groups() -> Check:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return lambda: same((os.getsid(child.pid), os.getpgid(child.pid)), (child.pid, child.pid))


@kind
def filter_of_calls() -> Check:
    """seccomp, with a filter that permits everything."""
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("at", ctypes.c_void_p)]

    what = Program(1, ctypes.addressof(program))
    ready, writer = os.pipe()

    def child() -> None:
        libc.prctl(38, 1, 0, 0, 0)
        libc.prctl(22, 2, ctypes.byref(what), 0, 0)
        os.write(writer, b"x")
        time.sleep(14400)

    pid = in_child(child)
    os.read(ready, 1)

    def check() -> None:
        assert "Seccomp:\t2" in open(f"/proc/{pid}/status").read()

    return check


@kind
def traced_child() -> Check:
    """As under gdb or strace."""
    child = sleeper()
    libc.ptrace(16, child.pid, None, None)
    os.waitpid(child.pid, 0x40000000)
    libc.ptrace(7, child.pid, None, None)
    return lambda: os.kill(child.pid, 0)


def _own_namespace(flag: int) -> Check:
    ready, writer = os.pipe()

    def child() -> None:
        os.write(writer, b"x" if libc.unshare(flag) == 0 else b"-")
        time.sleep(14400)

    in_child(child)
    assert os.read(ready, 1) == b"x", "not permitted"
    return lambda: None


@kind
def namespace_of_users() -> Check:
    return _own_namespace(0x10000000)


@kind
def namespace_of_networks() -> Check:
    return _own_namespace(0x10000000 | 0x40000000)


@kind
def namespace_of_mounts() -> Check:
    return _own_namespace(0x10000000 | 0x00020000)
