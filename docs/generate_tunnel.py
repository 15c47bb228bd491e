"""The reference page of the tunnel between relay and shim, from the code."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap

from generate_text import table


def attribute_docs(cls: type) -> dict[str, str]:
    """Name -> the string below its assignment, in the source of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for before, after in itertools.pairwise(definition.body):
        if (
            isinstance(before, ast.Assign)
            and isinstance(before.targets[0], ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[before.targets[0].id] = str(after.value.value)
    return found


def _size(count: int) -> str:
    return f"{count >> 20} MiB"


def tunnel_page() -> str:
    from singularity_kernel.kernel import shim
    from singularity_kernel.relay import core as relay_core
    from singularity_kernel.relay import port as relay_tunnel
    from singularity_kernel.relay import store as relay_store
    from singularity_kernel.relay import tunnel

    kinds = attribute_docs(tunnel.Kind)
    limits: list[tuple[object, ...]] = [
        (
            "on its way without an acknowledgement, per lane",
            f"{_size(tunnel.WINDOW_BYTES)}, {tunnel.WINDOW_MESSAGES} messages",
            "the rest waits",
        ),
        (
            "queue of a lane, on each side",
            f"{_size(tunnel.QUEUE_BYTES)}, {tunnel.QUEUE_MESSAGES} messages",
            "relay: this channel of the clients is not read any more; shim: the kernel's sockets "
            "are not read any more, and a kernel with our extension waits",
        ),
        (
            "requests kept for a rollback",
            _size(relay_store.KEPT_REQUEST_BYTES),
            "the oldest are forgotten; how many a rollback could not repeat is reported",
        ),
        (
            "outputs kept for a rollback",
            f"{_size(relay_store.KEPT_OUTPUT_BYTES)}, {relay_store.KEPT_OUTPUTS}",
            "the oldest are forgotten; they are still counted",
        ),
        (
            "outputs kept while no client is connected",
            f"{_size(relay_store.HELD_BYTES)} (`NodeAgent.held_output_bytes`), "
            f"{relay_store.HELD_OUTPUTS}",
            "the oldest are dropped; the next client is told how many, in their place",
        ),
        (
            "no sign from the other side",
            f"{relay_tunnel.SILENT_MS / 1000:g} s",
            "the connection is closed and made anew",
        ),
        (
            "noted as sent after",
            f"{relay_core.MARK_S * 1000:g} ms",
            "outputs of a relay that is killed earlier are sent to the clients once more; "
            "Jupyter's clients refuse a message whose signature they have seen",
        ),
        (
            "the kernel has ended",
            f"{shim.DRAIN_S:g} s",
            "for its last words to be acknowledged",
        ),
    ]
    header: list[tuple[object, ...]] = [
        (0, 4, "magic", f"`{tunnel.MAGIC.decode()}`"),
        (4, 1, "version", f"{tunnel.VERSION}; another one is refused with a sentence"),
        (5, 1, "kind", "see below"),
        (6, 1, "lane", ", ".join(f"{n} {name}" for n, name in enumerate(tunnel.LANES))),
        (7, 1, "", "0"),
        (8, 4, "incarnation", "HELLO: the one that the shim joins; else the present one"),
        (12, 8, "number", "of the message (DATA), or up to which all arrived (ACK); from 1"),
    ]
    assert tunnel.HEADER.size == 20
    return "\n".join(
        [
            "# Kernel connection\n",
            "Between the relay of a session, which has the ports that Jupyter's clients know, and "
            "the shim, which runs in the capsule as the parent of the kernel. ZeroMQ over TCP with "
            "CurveZMQ (the relay is ROUTER and server, the shim dials out as DEALER), because both "
            "have ZeroMQ anyway: both ends prove who they are, everything is encrypted, and there "
            "are no certificates to make or date. Each session has keys of its own, each "
            "incarnation a new one for the shim; a key of an earlier incarnation is let in no "
            "more.\n",
            "The shim finds the relay by `tunnel.json` in the session's folder (0600): address, "
            "keys, session and incarnation. It reads it again whenever it is disconnected, so "
            "after a move only this file is written anew.\n",
            "## Frame\n",
            f"One multipart message: a header of {tunnel.HEADER.size} bytes, network byte order, "
            "then the parts of the Jupyter message unchanged (routing prefix, delimiter, signature "
            "and so on), or the body of a greeting.\n",
            table(("offset", "bytes", "field", "meaning"), header),
            table(
                ("kind", "name", "meaning"),
                [(k.value, f"`{k.name}`", kinds[k.name]) for k in tunnel.Kind],
            ),
            "Body of HELLO: the session's id, the incarnation of the shim's state (4 bytes), and "
            "for each lane three numbers of 8 bytes: received, acknowledged, sent. Body of "
            "WELCOME: the latter, of the relay. REFUSE: the sentence.\n",
            "## Rules\n",
            "* Each channel but the heartbeat is a lane, with numbers of its own in each "
            "direction. Between lanes there is no order, as between Jupyter's channels.\n"
            "* A message is kept by its sender until it is acknowledged. The relay acknowledges "
            "what is on its disk, the shim what is in the kernel's socket.\n"
            "* On every new connection both sides say what they have; what the other one misses is "
            "sent again. A receiver takes the next number only: a repetition is dropped, a gap "
            "ends the connection.\n"
            "* Only the connection that was greeted last counts.\n",
            "## Limits\n",
            table(("what", "limit", "then"), limits),
            "## Incarnations\n",
            inspect.cleandoc(
                """
                A session that goes back (an older checkpoint, `restore`, `fork`, a node that is
                lost) begins a new incarnation. The relay is told its number; the capsule that joins
                says in its HELLO how far its image had come. From that follow, exactly:

                * requests that arrived after the image's last one are queued again, in order,
                  except `{never}` that were carried out;
                * outputs that the image had not produced are *rolled back*: they are counted and
                  listed in the loss report. The clients have seen them;
                * outputs that the image had produced and the relay never got are taken now, once,
                  also when the same image is started several times.

                A kernel that is started anew, without an image, gets what nobody had received.
                """
            ).format(never="` and `".join(relay_store.NEVER_AGAIN)),
            "",
            "## While the session is away\n",
            inspect.cleandoc(
                """
                Heartbeats are answered by the relay, always. `kernel_info_request` is answered from
                the kernel's last answer, so that pages open; other requests wait on disk. A request
                of the types {waking} brings the session back.
                """
            ).format(waking=_waking()),
        ]
    )


def _waking() -> str:
    from singularity_kernel.relay.app import WAKING

    return ", ".join(f"`{kind}`" for kind in sorted(WAKING))
