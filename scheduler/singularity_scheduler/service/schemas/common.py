"""JSON Schemas of what the API takes and gives; names and values come from the tables of `core`.

Requests are checked against them, the OpenAPI document shows them. What they are made of is
`vocabulary`.
"""

from __future__ import annotations

from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.service.api.problems import ERRORS

from .new_session import LAUNCH, NEW_SESSION, RUN
from .sessions import (
    FACTS,
    LIMITS,
    LOSS_REPORT,
    OTHER_WAITING,
    PROGRESS,
    SESSION,
    STORED_CHECKPOINT,
    in_lists,
)
from .vocabulary import (
    COUNT,
    DEVICE_STATE,
    PROCESS_STATE,
    REASON_FACTS,
    RULE,
    STATE,
    TEXT,
    TIER,
    TIME,
    Schema,
    listed,
    nullable,
    record,
    ref,
)

PROBLEM = {
    "type": "object",
    "description": "A refusal (RFC 9457); more keys are facts behind the sentence.",
    "properties": {
        "type": {**TEXT, "format": "uri"},
        "title": TEXT,
        "status": {"type": "integer", "enum": sorted({e.http_status for e in ERRORS} | {405})},
        "detail": {**TEXT, "description": "One sentence: what happened, what to do."},
        "reason": {"type": "string", "enum": sorted({e.reason for e in ERRORS})},
        "reason_code": {
            **TEXT,
            "description": "What the sentence was made of, as data; see the page of reasons.",
        },
        "reason_args": {"type": "object", "description": "The arguments of that code."},
        "error": {"type": "string", "enum": sorted({e.__name__ for e in ERRORS})},
    },
    "required": ["type", "title", "status", "detail", "reason", "error"],
}

DEVICE = record(
    {
        "id": TEXT,
        "node": TEXT,
        "type": TEXT,
        "name": TEXT,
        "capacity_bytes": COUNT,
        "session": {
            **nullable(TEXT),
            "description": 'Who holds it; "other": somebody one may not see.',
        },
        "uuid": {
            **TEXT,
            "description": "Of the GPU, whatever its number; of a cpu device one that is made up "
            "and always the same.",
        },
        "drained": {
            **nullable(record({"by": nullable(TEXT), "reason": TEXT, "at": nullable(TIME)})),
            "description": "Why no session gets it now; `by` is null when it was drained for what "
            "it reported itself.",
        },
        "health": {
            **record(
                {
                    "present": {
                        "type": "boolean",
                        "description": "False: its driver says that it is gone.",
                    },
                    "memory_used_bytes": nullable(COUNT),
                    "memory_total_bytes": nullable(COUNT),
                    "utilisation_percent": nullable({"type": "number", "minimum": 0}),
                    "temperature_c": nullable({"type": "number"}),
                    "power_w": nullable({"type": "number"}),
                    "ecc_corrected": nullable(COUNT),
                    "ecc_uncorrected": nullable(COUNT),
                    "row_remap_pending": nullable({"type": "boolean"}),
                    "clock_limits": {
                        **listed(TEXT),
                        "description": "What keeps its clocks down now.",
                    },
                    "xids": {
                        **listed(record({"code": COUNT, "at": nullable(TIME)})),
                        "description": "Its newest driver errors (Xid), oldest first.",
                    },
                    "trouble": {**TEXT, "description": "Why there are no figures."},
                }
            ),
            "description": "What the device says of itself; null: it does not tell.",
        },
    }
)

CLUSTER = record(
    {
        "nodes": listed(
            record(
                {
                    "id": TEXT,
                    "cluster": {
                        **nullable(TEXT),
                        "description": "null: it has not answered since the service began.",
                    },
                    "region": nullable(TEXT),
                    "connected": {"type": "boolean"},
                    "devices": COUNT,
                    "images": {
                        **record({"available": {"type": "boolean"}, "reason": TEXT}),
                        "description": "Whether it can store whole sessions and bring them back.",
                    },
                    "store": {**nullable(TEXT), "description": "Where its checkpoints go."},
                    "duty": {
                        "type": "string",
                        "enum": [duty.value for duty in NodeDuty],
                        "description": "What it is used for; only open ones get new sessions.",
                    },
                    "reason": {**TEXT, "description": "Why it is not open."},
                }
            )
        ),
        "devices": listed(ref("Device")),
        "tiers": {**listed(TIER), "description": "Those that are open to who asks."},
        "waiting": record({tier.value: COUNT for tier in Tier}),
    }
)

COMPONENTS: dict[str, Schema] = {
    "Member": record(
        {
            "id": {**TEXT, "description": "Of the group."},
            "name": TEXT,
            "number": {**COUNT, "description": "From 1; smaller ones are started first."},
            "members": COUNT,
            "values": {"type": "object", "description": "What tells it from the others."},
            **LIMITS,
        }
    ),
    "StoredCheckpoint": STORED_CHECKPOINT,
    "LossReport": LOSS_REPORT,
    "Progress": PROGRESS,
    "CheckpointList": record({"checkpoints": listed(ref("StoredCheckpoint"))}),
    "Hibernated": record(
        {
            "suspended": {**listed(TEXT), "description": "Ids of those in the store."},
            "suspending": {**listed(TEXT), "description": "Still on their way."},
            "kept": {
                **listed(
                    record(
                        {
                            "session": TEXT,
                            "reason": TEXT,
                            "possible": {
                                "type": "boolean",
                                "description": "False where its node cannot store processes.",
                            },
                        }
                    )
                ),
                "description": "Those that go on as they are, and why.",
            },
        }
    ),
    "SessionDevices": record(
        {
            "session": TEXT,
            "node": TEXT,
            "at": {**nullable(TIME), "description": "Of the figures; null: there are none yet."},
            "devices": {
                **listed(
                    record(
                        {
                            "virtual_device": COUNT,
                            "device": {**TEXT, "description": "The physical one, on its node."},
                            "name": TEXT,
                            "memory_used_bytes": {
                                **nullable(COUNT),
                                "description": "By this session.",
                            },
                            "memory_total_bytes": nullable(COUNT),
                            "utilisation_percent": nullable(
                                {"type": "number", "minimum": 0, "maximum": 100}
                            ),
                            "squashing": {
                                **nullable(
                                    record(
                                        {
                                            "state": {
                                                **TEXT,
                                                "enum": ["unproven", "on", "off"],
                                                "description": "unproven: nothing was compared "
                                                "yet; off: a comparison found a difference.",
                                            },
                                            "why_off": TEXT,
                                            "steps": {
                                                **COUNT,
                                                "description": "That the ranks began together.",
                                            },
                                            "executed": {
                                                **COUNT,
                                                "description": "Calls in these, once for all.",
                                            },
                                            "spared": {
                                                **COUNT,
                                                "description": "Calls that were not executed.",
                                            },
                                            "compared": {
                                                **COUNT,
                                                "description": "Pairs of storages, byte by byte.",
                                            },
                                        }
                                    )
                                ),
                                "description": "What ranks that share the physical device have in "
                                "common; null: no ranks share it, or nobody has told.",
                            },
                        }
                    )
                ),
                "description": "One for each virtual device; empty while it holds none. Figures "
                "are null until its node has told.",
            },
        }
    ),
    "Connection": record(
        {
            "connection": {
                "type": "object",
                "description": "Jupyter's connection information, as in a connection file.",
            }
        }
    ),
    "SuspendedNotebooks": record(
        {
            "notebooks": listed(
                record(
                    {
                        "session": ref("SessionDetails"),
                        "kernel_id": nullable(TEXT),
                        "connection": {
                            **nullable({"type": "object"}),
                            "description": "Jupyter connection information of its relay, for its "
                            "user alone; null when its node cannot tell.",
                        },
                    }
                )
            )
        }
    ),
    "SessionDetails": record(SESSION),
    "Session": in_lists(),
    "SessionStatus": record({**SESSION, "others_waiting": listed(OTHER_WAITING)}),
    "CreatedSession": record(
        {
            **SESSION,
            "others_waiting": listed(OTHER_WAITING),
            "launch": record(
                {
                    "pid": nullable({"type": "integer"}),
                    "connection": nullable({"type": "object"}),
                    "env": {"type": "object", "additionalProperties": TEXT},
                }
            ),
        },
        "launch",
    ),
    "SessionPage": record({"sessions": listed(ref("Session")), "next": nullable(TEXT)}),
    "NewSession": NEW_SESSION,
    "Run": RUN,
    "Launch": LAUNCH,
    "Change": record(
        {
            "at": TIME,
            "process_state": PROCESS_STATE,
            "device_state": DEVICE_STATE,
            "state": STATE,
            "reason": TEXT,
            **REASON_FACTS,
            "rule": RULE,
        }
    ),
    "HistoryPage": record({"history": listed(ref("Change")), "next": nullable(TEXT)}),
    "Explanation": record({"sentence": TEXT, "facts": FACTS}),
    "Cluster": CLUSTER,
    "Device": DEVICE,
    "Health": record(
        {
            "status": {"type": "string", "enum": ["ok", "degraded", "standby"]},
            "nodes": COUNT,
            "detail": TEXT,
        }
    ),
    "Identity": record(
        {
            "uid": {"type": "integer"},
            "gid": {"type": "integer"},
            "mapped": {"type": "boolean"},
            "sentence": TEXT,
        }
    ),
    "Problem": PROBLEM,
}
