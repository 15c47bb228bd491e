"""JSON Schemas of sessions as the API shows them: one with all it has, those of lists and events,
and what is known of their checkpoints and of why they wait."""

from __future__ import annotations

from singularity_scheduler.client import values
from singularity_scheduler.core.state.stored import CAUSES
from singularity_scheduler.core.steps import goals
from singularity_scheduler.explain import precedence
from singularity_scheduler.explain.estimate import Basis
from singularity_scheduler.explain.planned import Plan
from singularity_scheduler.model.session import SHOWN

from .vocabulary import (
    COUNT,
    DEVICE_STATE,
    FRACTION,
    KIND,
    PROCESS_STATE,
    REASON_FACTS,
    RULE,
    SECONDS,
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

LONGEST_PART = 2048
"""Characters of JSON of recorded values, a run's parameters and its variables' names, in lists and
events."""

SESSION: dict[str, Schema] = {
    "id": TEXT,
    "user": TEXT,
    "kind": KIND,
    "name": TEXT,
    "tier": TIER,
    "state": {**STATE, "description": "The one word for people."},
    "process_state": PROCESS_STATE,
    "device_state": DEVICE_STATE,
    "reason": {**TEXT, "description": "Why it is in this state, for people."},
    **REASON_FACTS,
    "idle_since": {**nullable(TIME), "description": "Since when its kernel has nothing to do."},
    "unused_since": {
        **nullable(TIME),
        "description": "Since when no call has reached the devices that it holds; null: calls "
        "come, or its node has not told yet.",
    },
    "keep_until": {
        **nullable(TIME),
        "description": "Until when somebody keeps it alive; null: nobody.",
    },
    "planned": {
        **nullable(
            record(
                {
                    "what": {"type": "string", "enum": [plan.value for plan in Plan]},
                    "at": {
                        **nullable(TIME),
                        "description": "At the latest; null: as soon as it can be done.",
                    },
                    "rule": RULE,
                    "why": {**TEXT, "description": "For people."},
                    **REASON_FACTS,
                }
            )
        ),
        "description": "What is done with it by itself if nothing else happens; null: nothing that "
        "is known.",
    },
    "gives_at": {
        **nullable(TIME),
        "description": "From when on others of its tier may take its idle devices; null: it is not "
        "idle, or holds none.",
    },
    "busy": {"type": "boolean"},
    "virtual_devices": {"type": "integer", "minimum": 1},
    "device_share": {
        **FRACTION,
        "description": "Part of the time of its one device that it asks for; 1: whole devices.",
    },
    "devices": {
        **listed(TEXT),
        "description": "The physical device behind each of its virtual ones; some may share one.",
    },
    "physical_devices": {**COUNT, "description": "How many different ones these are."},
    "resizable": {
        **nullable(
            record(
                {
                    "min": {"type": "integer", "minimum": 1},
                    "max": {"type": "integer", "minimum": 1},
                    "counts": {**listed({"type": "integer", "minimum": 1}), "description": "All."},
                }
            )
        ),
        "description": "The numbers of physical devices that it can be asked to run on (`resize`); "
        "null: there is no choice.",
    },
    "scale_policy": {
        **nullable({"type": "object"}),
        "description": "On how many it may run by itself, as it was asked for; null: on as many as "
        "it has virtual ones.",
    },
    "node": TEXT,
    "cluster": {**TEXT, "description": "Of its node; of a suspended one where it was last."},
    "region": {**TEXT, "description": "In which its cluster lies."},
    "created_at": TIME,
    "updated_at": TIME,
    "waiting_since": nullable(TIME),
    "queue": {
        **nullable(record({"place": {"type": "integer", "minimum": 1}, "ahead": COUNT})),
        "description": "Its place while it waits; 1 is served next.",
    },
    "sla": {
        **record(
            {
                "promised_fraction": FRACTION,
                "window_s": SECONDS,
                "windows": {**COUNT, "description": "Completed ones in which it had work."},
                "windows_kept": {**COUNT, "description": "Those in which it got what is promised."},
                "wanted_s": {**SECONDS, "description": "Time with work in this window so far."},
                "got_s": {**SECONDS, "description": "Time of that in which it had its devices."},
                "attained_device_s": {**SECONDS, "description": "Device time it has had in all."},
            }
        ),
        "description": "What it got of the device time that its tier promises.",
    },
    "last_checkpoint": nullable(ref("StoredCheckpoint")),
    "checkpoints": {**COUNT, "description": "How many the store has of it."},
    "undo_end": {
        **nullable(record({"checkpoint": TEXT, "name": TEXT, "until": nullable(TIME)})),
        "description": "Of an ended session: the checkpoint with which its end can be taken back "
        "(`reopen`), and until when that is kept, null: no limit. null: it cannot be taken back.",
    },
    "loss": {**nullable(ref("LossReport")), "description": "Of its last return from the store."},
    "progress": {
        **nullable(ref("Progress")),
        "description": "Of the transfer that is under way; in the event stream as `progress`.",
    },
    "held_back": {
        "type": "boolean",
        "description": "Preempted: it gets no devices, and a queued run does not start, until it "
        "is resumed.",
    },
    "run": {
        **nullable(
            record(
                {
                    "notebook": nullable(TEXT),
                    "command": nullable(TEXT),
                    "ranked": {
                        "type": "boolean",
                        "description": "The command is started for each virtual device.",
                    },
                    "output": nullable(TEXT),
                    "parameters": {"type": "object"},
                    "kernel": nullable(TEXT),
                    "folder": nullable(TEXT),
                    "variables": {**listed(TEXT), "description": "Their names."},
                    "timeout_s": nullable(COUNT),
                    "max_retries": COUNT,
                    "metadata": {"type": "object"},
                }
            )
        ),
        "description": "The notebook or command that a batch session runs.",
    },
    "group": {
        **nullable(ref("Member")),
        "description": "Its part in a group of sessions that were submitted together.",
    },
    "part": {
        **nullable(
            record(
                {
                    "gang": {**TEXT, "description": "The id that all its parts share."},
                    "number": {**COUNT, "description": "From 0: the rank of its node."},
                    "parts": {**COUNT, "description": "How many there are, one on each node."},
                    "sessions": {**listed(TEXT), "description": "All of them by their numbers."},
                }
            )
        ),
        "description": "Its part in a run on several nodes (a gang); null: it is on one node.",
    },
    "recorded": {"type": "object", "description": "Values that it recorded: name -> last value."},
    **{each.key: each.schema for each in SHOWN},
    "owner": record({"server": TEXT}, "server"),
}


def in_lists() -> Schema:
    """A session in lists and events: what makes a run long may be left out."""
    run = SESSION["run"]["oneOf"][0]["properties"]
    long = "null when it is longer than 2 KiB as JSON: GET sessions/{session} has all of it."
    shortened = {
        "parameters": {**nullable(run["parameters"]), "description": f"Name -> value; {long}"},
        "variables": {**nullable(listed(TEXT)), "description": f"Their names; {long}"},
        "metadata": {**nullable(run["metadata"]), "description": long},
    }
    described = {
        **nullable(record({**run, **shortened})),
        "description": SESSION["run"]["description"],
    }
    recorded = {**nullable(SESSION["recorded"]), "description": f"Name -> last value; {long}"}
    return record({**SESSION, "run": described, "recorded": recorded})


OTHER_WAITING = record({"user": TEXT, "name": TEXT, "tier": TIER, "devices": COUNT})

STORED_CHECKPOINT = record(
    {
        "id": TEXT,
        "name": {**TEXT, "description": "Given by a person; empty: it may be trimmed."},
        "at": nullable(TIME),
        "level": {
            "type": "string",
            "enum": ["device", "process", "files"],
            "description": "process: everything; device, files: that alone.",
        },
        "bytes": {**COUNT, "description": "What it would take unshared and uncompressed."},
        "stored_bytes": {**COUNT, "description": "What it takes in the store."},
        "sent_bytes": {**COUNT, "description": "What had to be sent for it."},
        "incarnation": COUNT,
        "reason": {**TEXT, "description": "Why its level is not higher."},
        "cause": {
            "type": "string",
            "enum": list(CAUSES),
            "description": "What it was made for: periodic, by itself; restore, before the session "
            "went back to an older one; move, to another node; drain, its node was emptied; "
            "suspend; empty: somebody asked for it.",
        },
        "damaged": {**nullable(TEXT), "description": "What was found wrong with it."},
        "proved_at": {
            **nullable(TIME),
            "description": "When it was brought back without a trace to see that it can be.",
        },
        "unproved": {
            **nullable(TEXT),
            "description": "Why it did not come back when that was tried.",
        },
        "restorable": {
            "type": "boolean",
            "description": "Whether a session can be brought back from it; not those of a run on "
            "several nodes, all parts of which go back by themselves.",
        },
    }
)

LOSS_REPORT = record(
    {
        "level": TEXT,
        "back": {**listed(TEXT), "description": "What came back."},
        "lost": {**listed(TEXT), "description": "What could not, each as a few words."},
        "rolled_back": {
            "type": "boolean",
            "description": "Whether what it did after the checkpoint is undone.",
        },
        "hashes_checked": COUNT,
        "checkpoint": TEXT,
        "at": nullable(TIME),
        "requests_again": {
            **COUNT,
            "description": "Requests of Jupyter's clients since the checkpoint that are carried "
            "out again.",
        },
        "outputs_rolled_back": {
            **COUNT,
            "description": "Messages that the kernel had sent after the checkpoint.",
        },
        "requests_lost": {
            **COUNT,
            "description": "Requests since the checkpoint that are not kept any more.",
        },
    }
)

PROGRESS = record(
    {
        "bytes_done": COUNT,
        "bytes_total": COUNT,
        "bytes_sent": {**COUNT, "description": "Of them, what the store did not have yet."},
        "rate": {"type": "number", "minimum": 0, "description": "Bytes per second."},
        "eta_s": {**nullable({"type": "number", "minimum": 0}), "description": "Seconds left."},
    }
)


FACTS: Schema = {
    "type": "object",
    "description": "What the sentence is made of; which keys there are depends on the state.",
    "properties": {
        "state": STATE,
        "meaning": {**TEXT, "description": "Of the state."},
        "reason": TEXT,
        **REASON_FACTS,
        "place": {**COUNT, "description": "In the queue; 1 is served next."},
        "ahead": {**COUNT, "description": "How many are before it."},
        "before": {
            **listed(
                record(
                    {
                        "session": TEXT,
                        "tier": TIER,
                        "rule": {"type": "string", "enum": list(precedence.RULES)},
                    }
                )
            ),
            "description": "The first of them, and the rule by which each goes before it.",
        },
        "waiting_s": {**SECONDS, "description": "How long it has waited."},
        "estimate": {
            **record(
                {
                    "basis": {"type": "string", "enum": [basis.value for basis in Basis]},
                    "why": {**TEXT, "description": "The basis in words."},
                    **REASON_FACTS,
                    "low_s": nullable(SECONDS),
                    "high_s": nullable(SECONDS),
                    "samples": {**COUNT, "description": "Waits or moves that it is based on."},
                    "after": {
                        **nullable(TEXT),
                        "description": "What has to happen before the seconds count.",
                    },
                }
            ),
            "description": "Seconds from now; null where nobody can say. By experience half of the "
            "waits of its kind were over at low_s, nine tenths at high_s.",
        },
        "preempted": {
            **record(
                {
                    "by": {
                        **nullable(TEXT),
                        "description": "A session's label or a person; null: by itself.",
                    },
                    "tier": {
                        **nullable(TEXT),
                        "description": "Of that session, where it was a matter of tiers.",
                    },
                    "rule": RULE,
                    "meaning": {**TEXT, "description": "Of the rule."},
                    "reason": TEXT,
                    **REASON_FACTS,
                    "since_s": SECONDS,
                    "saved": {
                        "type": "object",
                        "description": "Where its state is (the store, or the memory of a node), "
                        "how much of it (level) and, in the store, the checkpoint, its bytes and "
                        "its age_s.",
                    },
                }
            ),
            "description": "What it lost and has not got back.",
        },
        "kept_s": {**SECONDS, "description": "For how long it is still kept alive."},
        "gives_in_s": {**SECONDS, "description": "When others may take its idle devices."},
        "parks_in_s": {**SECONDS, "description": "When it is parked by itself."},
    },
}

OBJECTIVE = record(
    {
        "primary_metric": {"type": "string", "minLength": 1, "maxLength": values.MAX_NAME},
        "goal": {"type": "string", "enum": list(goals.GOALS)},
    }
)

LIMITS: dict[str, Schema] = {
    "max_parallel": {
        **nullable(COUNT),
        "description": "Most members that are started and have not ended at a time.",
    },
    "timeout_s": {
        **nullable(COUNT),
        "description": "So many seconds after it was submitted all of it is ended, waiting "
        "included; null: no limit.",
    },
    "stop_on_failure": {
        "type": "boolean",
        "description": "The first member that fails ends the others.",
    },
    "stop_when": {
        **nullable(TEXT),
        "description": "A condition on recorded values, such as loss<0.01: the first member that "
        "meets it ends the others.",
    },
    "objective": {
        **nullable(OBJECTIVE),
        "description": "Which recorded value tells which member is the best.",
    },
}
