"""A store in memory whose every operation is a turn: a scheduler with a seed decides who is next.

Writers, collectors and deleters run in threads, each on a view of its own of one world. Between
any two of their operations any of the others may do any number of its own, be killed, or find that
hours passed. After each change the world checks what must always hold: whatever is listed is
there, whole.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

from singularity_proxy.checkpoint.chunks import Codec
from singularity_proxy.checkpoint.loading import manifest_name
from singularity_proxy.checkpoint.manifest import Head, Manifest
from singularity_proxy.checkpoint.stores.base import Data, Entry, Moved, ObjectMissing, ObjectStore


class Killed(BaseException):
    """The process that this thread stands for was killed."""


class Broken(AssertionError):
    """What must always hold does not."""


class World:
    """The objects, the turns and the check."""

    def __init__(self, seed: int, *, kills: float = 0.004, jumps: float = 0.02) -> None:
        self.random = random.Random(seed)
        self._kills, self._jumps = kills, jumps
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        self.clock = 1e9
        self.failure: BaseException | None = None
        self.log: list[str] = []
        self._etags = 0
        self._changed = threading.Condition()
        self._waiting: list[tuple[View, object]] = []
        self._granted: object = None
        self._running = 0
        self._order: dict[View, float] = {}
        self._codec = Codec("alice", None)
        self._needs: dict[bytes, set[str]] = {}

    # ---- turns -----------------------------------------------------------------------------------

    def run(self, actors: list[tuple[str, Callable[[ObjectStore], None]]]) -> None:
        """Each actor in a thread with a view of its own, until all have ended."""
        threads = []
        for name, act in actors:
            view = View(self, name)
            self._order[view] = self.random.random()
            threads.append(threading.Thread(target=self._act, args=(view, act)))
        self._running = len(threads)
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._granted and (self._waiting or not self._running), 30
                )
                if not self._running:
                    break
                self._changed.wait(0.0003)  # others that are about to ask
                self._grant()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _act(self, view: View, act: Callable[[ObjectStore], None]) -> None:
        try:
            act(view)
        except Killed:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _grant(self) -> None:
        if self._granted or not self._waiting:
            return
        if self.random.random() < 0.08:  # who was held up goes on, who went on is held up
            self._order = {view: self.random.random() for view in self._order}
        if self.random.random() < self._jumps:
            self.clock += 3600 * self.random.random() * 10
        view, ticket = max(self._waiting, key=lambda item: self._order[item[0]])
        if self.random.random() < self._kills:
            view.killed = True
        self._waiting.remove((view, ticket))
        self._granted = ticket
        self._changed.notify_all()

    def turn(self, view: View, what: str, operation: Callable[[], object]) -> object:
        """Wait to be next, then do one operation."""
        ticket = object()
        with self._changed:
            self._waiting.append((view, ticket))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._granted is ticket)
            try:
                if view.killed or self.failure is not None:
                    raise Killed
                self.clock += 0.01
                self.log.append(f"{view.name}: {what}")
                return operation()
            except Broken as error:
                self.failure = error
                raise
            finally:
                self._granted = None
                self._changed.notify_all()

    # ---- what must always hold -------------------------------------------------------------------

    def store(self, key: str, data: bytes) -> str:
        self._etags += 1
        self.objects[key] = (data, f"e{self._etags}", self.clock)
        self.check()
        return f"e{self._etags}"

    def remove(self, key: str) -> None:
        del self.objects[key]
        self.check()

    def check(self) -> None:
        """Every listed checkpoint has its manifest and every chunk that it needs."""
        for key, (data, _, _) in list(self.objects.items()):
            if not key.endswith("/head"):
                continue
            for summary in Head.from_bytes(data).complete:
                manifest = self.objects.get(f"{key[:-5]}/checkpoints/{summary.id}")
                if manifest is None:
                    raise Broken(f"{summary.id} is listed without a manifest")
                for id in self._needed(summary.id, manifest[0]):
                    if f"alice/chunks/{id[:2]}/{id}" not in self.objects:
                        raise Broken(f"{summary.id} is listed without chunk {id[:8]}")

    def _needed(self, checkpoint: str, stored: bytes) -> set[str]:
        if stored not in self._needs:
            data = bytes(self._codec.decode(manifest_name(checkpoint), stored, check=False))
            self._needs[stored] = {chunk.id for chunk in Manifest.from_bytes(data).chunks}
        return self._needs[stored]


class View(ObjectStore):
    """The world as one process sees it."""

    def __init__(self, world: World, name: str) -> None:
        self.url, self.transfers = "memory", 2
        self.stat_is_cheap = world.random.random() < 0.5
        self.name, self.killed = name, False
        self._world = world

    def put(self, key: str, data: Sequence[Data], *, durable: bool = True) -> None:
        contents = b"".join(data)
        self._world.turn(self, f"put {key}", lambda: self._world.store(key, contents))

    def flush(self) -> None:
        pass

    def read(self, key: str) -> tuple[bytes, str]:
        def operation() -> tuple[bytes, str]:
            if key not in self._world.objects:
                raise ObjectMissing(key, key=key)
            return self._world.objects[key][:2]

        return self._world.turn(self, f"read {key}", operation)  # type: ignore[return-value]

    def stat(self, key: str) -> Entry | None:
        return self._world.turn(self, f"stat {key}", lambda: self._entry(key))  # type: ignore[return-value]

    def list(self, prefix: str) -> Iterator[Entry]:
        def operation() -> object:
            keys = [key for key in self._world.objects if key.startswith(prefix)]
            return [self._entry(key) for key in sorted(keys)]

        yield from self._world.turn(self, f"list {prefix}", operation)  # type: ignore[misc]

    def names(self, prefix: str) -> Iterator[str]:
        yield from sorted({entry.key[len(prefix) :].split("/")[0] for entry in self.list(prefix)})

    def touch(self, key: str) -> bool:
        def operation() -> bool:
            found = self._world.objects.get(key)
            if found is not None:
                self._world.store(key, found[0])
            return found is not None

        return bool(self._world.turn(self, f"touch {key}", operation))

    def delete(self, key: str) -> None:
        def operation() -> None:
            if key in self._world.objects:
                self._world.remove(key)

        self._world.turn(self, f"delete {key}", operation)

    def delete_if(self, key: str, etag: str) -> bool:
        def operation() -> bool:
            found = self._world.objects.get(key)
            if found is None or etag != found[1]:
                return False
            self._world.remove(key)
            return True

        return bool(self._world.turn(self, f"delete {key} {etag}", operation))

    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        def operation() -> str:
            found = self._world.objects.get(key)
            if (found[1] if found else None) != etag:
                raise Moved(key)
            return self._world.store(key, data)

        return self._world.turn(self, f"swap {key}", operation)  # type: ignore[return-value]

    def close(self) -> None:
        pass

    def _entry(self, key: str) -> Entry | None:
        found = self._world.objects.get(key)
        return Entry(key, len(found[0]), found[2], found[1]) if found else None
