"""Ranks of one program on several nodes: what passes between the nodes.

Such a program runs as a *gang* of sessions, one on each node, which are its *parts*. Ranks exchange
what they bring to collectives through files of their session (`wire/exchange.h`), so they know only
their own node; a bridge for each part carries what is in these files to the bridges of the others.
And it carries TCP connections to the place where ranks meet, `MASTER_ADDR` and `MASTER_PORT`, which
is a port on the loopback of each node: no part needs to know where another is.

`Mirror` (native, `device/src/exchange/mirror.h`) reads and writes the files, `frames` is what goes
over a connection, `identity` the keys, `peers` the addresses of other parts, `bridge` puts it
together. The node agent starts one per part: ``python -m singularity_proxy.elastic.bridge``. In the
capsule are `rendezvous`, where ranks meet, and `lanes`, which lose nothing between two of those.
"""
