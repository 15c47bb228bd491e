"""A stand-in for the scheduler service's HTTP interface, for tests of the Spawner alone.

It answers over real HTTP with the JSON the service's API defines; the integration and e2e tests
use the real service.
"""

from __future__ import annotations

import contextlib
import json

from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

TOKEN = "spawner-token"


class Scheduler:
    """`devices`: session holding each device, or None. `sessions`: what GET sessions lists. `kept`:
    what could not be suspended. `notebooks`: what waits for the next server."""

    notebooks: tuple = ()

    def __init__(self):
        self.devices = [None, None]
        self.waiting = {}
        self.sessions = []
        self.identities = {}
        self.tiers = {}
        self.refusals = []
        self.ended = []
        self.hibernated = []
        self.waits = []
        self.kept = []
        self.tokens = []
        self.url = ""

    def cluster(self):
        return {
            "nodes": [{"id": "local"}],
            "devices": [
                {"id": f"cpu:{n}", "node": "local", "type": "cpu", "session": session}
                for n, session in enumerate(self.devices)
            ],
            "tiers": ["premium", "standard", "basic"],
            "waiting": self.waiting,
        }


@contextlib.asynccontextmanager
async def scheduler():
    """An `async with` block in which a `Scheduler` serves at its `url`."""
    state = Scheduler()

    class Handler(RequestHandler):
        def prepare(self):
            state.tokens.append(self.request.headers.get("Authorization"))
            if state.refusals:
                status, error, sentence = state.refusals.pop(0)
                self.set_status(status)
                problem = {"type": "about:blank", "status": status, "detail": sentence}
                self.finish(json.dumps({**problem, "error": error, "reason": error.lower()}))

        def get(self, what):
            if what.endswith("/suspended"):
                self.finish({"notebooks": state.notebooks})
                return
            self.finish(state.cluster() if what == "cluster" else {"sessions": state.sessions})

        def put(self, what):
            user = what.split("/")[1]
            if what.endswith("/suspended"):
                asked = json.loads(self.request.body)
                state.hibernated.append((user, asked["server"]))
                state.waits.append(asked["wait_s"])
                self.finish({"suspended": [], "suspending": [], "kept": state.kept})
                return
            if what.endswith("/tiers"):
                state.tiers[user] = json.loads(self.request.body)["tiers"]
                self.finish({"tiers": state.tiers[user]})
                return
            self.finish(state.identities[user])

        def delete(self, what):
            state.ended.append((what.split("/")[1], self.get_argument("reason", "")))
            self.finish({})

    sock, port = bind_unused_port()
    server = HTTPServer(Application([(r"/services/singularity/api/v1/(.*)", Handler)]))
    server.add_sockets([sock])
    state.url = f"http://127.0.0.1:{port}/services/singularity/"
    try:
        yield state
    finally:
        server.stop()
        await server.close_all_connections()
