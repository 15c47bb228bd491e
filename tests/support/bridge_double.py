"""Speaks the command line of a bridge: opens both ports and says where, tells in its port's answers
what it knows, and writes down that it was told to end."""

import argparse
import json
import os
import signal
import socket
import sys

parser = argparse.ArgumentParser()
for name in ("--folder", "--listen", "--port-file", "--peers"):
    parser.add_argument(name, required=True)
for name in ("--number", "--parts"):
    parser.add_argument(name, type=int, required=True)
for name in ("--port", "--master-port"):
    parser.add_argument(name, type=int, default=0)
options = parser.parse_args()
assert len(os.environ["SINGULARITY_BRIDGE_KEY"]) == 64
assert os.path.isdir(options.folder)


def ended(*_: object) -> None:
    print("told to end", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, ended)
link = socket.create_server((options.listen, options.port))
master = socket.create_server(("127.0.0.1", options.master_port))
ports = {"port": link.getsockname()[1], "master_port": master.getsockname()[1]}
with open(options.port_file + ".new", "w", encoding="utf-8") as file:
    json.dump(ports, file)
os.replace(options.port_file + ".new", options.port_file)
while True:
    peer, _ = link.accept()
    with peer, open(options.peers, encoding="utf-8") as file:
        told = {"pid": os.getpid(), "uid": os.getuid(), "peers": json.load(file), **ports}
        peer.sendall(json.dumps({**told, "number": options.number}).encode())
