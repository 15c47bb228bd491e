"""Pipes, sockets and descriptors of the system that a session can hold; see `kernel_objects`."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import termios
import threading
import time

from support.kernel_object import KEEP, Check, call, folder, kind, libc, same, sleeper

# -- pipes and sockets -----------------------------------------------------------------------------


@kind
def pipe() -> Check:
    reader, writer = os.pipe()
    os.write(writer, b"data")
    return lambda: same(os.read(reader, 10), b"data")


@kind
def pipe_of_packets() -> Check:
    reader, writer = os.pipe2(os.O_DIRECT)
    os.write(writer, b"one")
    os.write(writer, b"two")
    return lambda: same([os.read(reader, 10), os.read(reader, 10)], [b"one", b"two"])


@kind
def pipe_with_a_size() -> Check:
    reader, _ = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 18)
    return lambda: same(fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ), 1 << 18)


@kind
def fifo() -> Check:
    path = folder("fifo") + "/f"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, b"data")
    return lambda: same(os.read(reader, 10), b"data")


def _pair(family: int) -> Check:
    near, far = socket.socketpair(socket.AF_UNIX, family)
    near.send(b"one")
    near.send(b"two")

    def check() -> None:
        expected = [b"onetwo"] if family == socket.SOCK_STREAM else [b"one", b"two"]
        same([far.recv(100) for _ in expected], expected)
        far.send(b"back")
        same(near.recv(100), b"back")

    return check


@kind
def unix_stream() -> Check:
    return _pair(socket.SOCK_STREAM)


@kind
def unix_datagrams() -> Check:
    return _pair(socket.SOCK_DGRAM)


@kind
def unix_seqpacket() -> Check:
    return _pair(socket.SOCK_SEQPACKET)


def _server(name: str) -> Check:
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    near = socket.socket(socket.AF_UNIX)
    near.connect(name)
    far, _ = server.accept()

    def check() -> None:
        near.send(b"x")
        same(far.recv(10), b"x")
        again = socket.socket(socket.AF_UNIX)
        again.connect(name)
        server.accept()[0].send(b"new")
        same(again.recv(10), b"new")

    return check


@kind
def unix_server() -> Check:
    return _server(folder("unix-server") + "/s")


@kind
def unix_server_without_a_file() -> Check:
    return _server("\0objects")


@kind
def unix_datagram_server() -> Check:
    path = folder("unix-datagrams") + "/s"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(path)
    near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.connect(path)
    near.send(b"before")

    def check() -> None:
        near.send(b"after")
        same([server.recv(100), server.recv(100)], [b"before", b"after"])

    return check


@kind
def descriptor_on_its_way() -> Check:
    near, far = socket.socketpair()
    reader, writer = os.pipe()
    socket.send_fds(near, [b"x"], [writer])
    os.close(writer)

    def check() -> None:
        _, fds, _, _ = socket.recv_fds(far, 10, 1)
        os.write(fds[0], b"data")
        same(os.read(reader, 10), b"data")

    return check


@kind
def tcp_connection_inside() -> Check:
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    near.send(b"before")

    def check() -> None:
        near.send(b"after")
        data = b""
        while len(data) < 11:
            data += far.recv(100)
        same(data, b"beforeafter")

    return check


@kind
def tcp_connection_without_reuse() -> Check:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()

    def check() -> None:
        near.send(b"x")
        same(far.recv(10), b"x")
        again = socket.create_connection(server.getsockname())
        server.accept()
        again.close()

    return check


@kind
def tcp_server() -> Check:
    server = socket.create_server(("127.0.0.1", 0))

    def check() -> None:
        near = socket.create_connection(server.getsockname())
        server.accept()[0].send(b"x")
        same(near.recv(10), b"x")

    return check


@kind
def tcp_server_of_version_6() -> Check:
    server = socket.create_server(("::1", 0), family=socket.AF_INET6)

    def check() -> None:
        near = socket.create_connection(server.getsockname()[:2])
        server.accept()[0].send(b"x")
        same(near.recv(10), b"x")

    return check


@kind
def tcp_bound() -> Check:
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    name = one.getsockname()
    return lambda: same(one.getsockname(), name)


@kind
def udp() -> Check:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))

    def check() -> None:
        one.sendto(b"x", one.getsockname())
        same(one.recv(10), b"x")

    return check


@kind
def udp_connected() -> Check:
    one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    other.bind(("127.0.0.1", 0))
    one.connect(other.getsockname())

    def check() -> None:
        one.send(b"x")
        same(other.recv(10), b"x")

    return check


@kind
def netlink() -> Check:
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    one.bind((0, 0))

    def check() -> None:
        one.send(struct.pack("=IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))  # RTM_GETLINK, of all
        assert one.recv(1 << 16)

    return check


# -- descriptors of the system ---------------------------------------------------------------------


@kind
def eventfd() -> Check:
    fd = os.eventfd(7) if hasattr(os, "eventfd") else libc.eventfd(7, 0)
    return lambda: same(struct.unpack("=Q", os.read(fd, 8))[0], 7)


@kind
def timerfd() -> Check:
    fd = libc.timerfd_create(1, 0)
    same(libc.timerfd_settime(fd, 0, struct.pack("=4q", 0, 50_000_000, 0, 50_000_000), None), 0)

    def check() -> None:
        os.read(fd, 8)
        assert struct.unpack("=Q", os.read(fd, 8))[0] >= 1

    return check


@kind
def signalfd() -> Check:
    mask = struct.pack("=Q", 1 << (signal.SIGUSR2 - 1))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    fd = libc.signalfd(-1, mask, 0)

    def check() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        same(struct.unpack("=I", os.read(fd, 128)[:4])[0], signal.SIGUSR2)

    return check


@kind
def epoll() -> Check:
    reader, writer = os.pipe()
    poll = select.epoll()
    poll.register(reader, select.EPOLLIN)

    def check() -> None:
        same(poll.poll(0), [])
        os.write(writer, b"x")
        same(poll.poll(5), [(reader, select.EPOLLIN)])

    return check


@kind
def inotify() -> Check:
    path = folder("inotify")
    fd = libc.inotify_init1(0)
    assert libc.inotify_add_watch(fd, path.encode(), 0x100) > 0  # IN_CREATE

    def check() -> None:
        open(f"{path}/new", "w").close()
        assert b"new" in os.read(fd, 4096)

    return check


@kind
def pidfd() -> Check:
    child = sleeper()
    fd = os.pidfd_open(child.pid)

    def check() -> None:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        same(child.wait(), -signal.SIGTERM)

    return check


@kind
def io_uring() -> Check:
    KEEP.append(call(425, 8, ctypes.create_string_buffer(120)))
    return lambda: None


@kind
def userfaultfd() -> Check:
    KEEP.append(call(323, 1))  # UFFD_USER_MODE_ONLY
    return lambda: None


@kind
def perf_counter() -> Check:
    attributes = ctypes.create_string_buffer(struct.pack("=IIQ", 1, 112, 1), 112)  # of software
    KEEP.append(call(298, attributes, 0, -1, -1, 0))
    return lambda: None


@kind
def posix_queue() -> Check:
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    name = f"/objects-{os.getpid()}-{time.time_ns()}".encode()
    fd = rt.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, None)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    rt.mq_unlink(name)
    rt.mq_send(fd, b"data", 4, 0)

    def check() -> None:
        buffer = ctypes.create_string_buffer(1 << 16)
        same(rt.mq_receive(fd, buffer, 1 << 16, None), 4)

    return check


@kind
def system_v_memory() -> Check:
    libc.shmat.restype = ctypes.c_void_p
    id = libc.shmget(0, 4096, 0o1600)
    assert libc.shmat(id, None, 0) not in (None, ctypes.c_void_p(-1).value)
    libc.shmctl(id, 0, None)
    return lambda: None


@kind
def system_v_memory_alone() -> Check:
    """Nobody is attached to it, so that no process shows it."""
    libc.shmat.restype = ctypes.c_void_p
    id = libc.shmget(0, 4096, 0o1600)
    assert id >= 0, os.strerror(ctypes.get_errno())

    def check() -> None:
        assert libc.shmat(id, None, 0) not in (None, ctypes.c_void_p(-1).value)
        libc.shmctl(id, 0, None)

    return check


@kind
def system_v_semaphores() -> Check:
    id = libc.semget(0, 1, 0o1600)
    assert id >= 0, os.strerror(ctypes.get_errno())
    assert libc.semctl(id, 0, 16, 3) == 0  # SETVAL

    def check() -> None:
        same(libc.semctl(id, 0, 12), 3)  # GETVAL
        libc.semctl(id, 0, 0)

    return check


@kind
def system_v_queue() -> Check:
    id = libc.msgget(0, 0o1600)
    assert id >= 0, os.strerror(ctypes.get_errno())
    assert libc.msgsnd(id, struct.pack("l4s", 1, b"data"), 4, 0) == 0

    def check() -> None:
        buffer = ctypes.create_string_buffer(64)
        same(libc.msgrcv(id, buffer, 16, 0, 0), 4)
        libc.msgctl(id, 0, None)

    return check


@kind
def terminal_with_a_program() -> Check:
    pid, master = pty.fork()
    if pid == 0:
        os.execvp("cat", ["cat"])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 40, 100, 0, 0))

    def ask(line: bytes) -> None:
        os.write(master, line)
        said, deadline = b"", time.monotonic() + 20
        while said.count(line.strip()) < 2 and time.monotonic() < deadline:
            said += os.read(master, 1000)  # the terminal's echo, and the program's answer

    ask(b"begun\n")

    def check() -> None:
        ask(b"goes on\n")
        size = fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8))
        same(struct.unpack("4H", size)[:2], (40, 100))

    return check


@kind
def terminal_with_a_shell() -> Check:
    pid, master = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh"])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 40, 100, 0, 0))

    def ask(line: bytes, last: bytes) -> bytes:
        os.write(master, line)
        said, deadline = b"", time.monotonic() + 20
        while last not in said and time.monotonic() < deadline:
            said += os.read(master, 1000)
        return said

    ask(b"echo $((1+1))\n", b"2\r\n")  # it is the shell by now

    def check() -> None:
        said = ask(b"stty size; echo $((6*7))\n", b"42\r\n")
        assert b"40 100" in said, said

    return check
