"""What a session was asked to be, and the words for it: its kind, tier and priority. Plain data.

Requests are read by `spec`; what became of a session is in `model`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from singularity_scheduler.core.reasons.reason import Words
from singularity_scheduler.model.arguments import MAX_NAME
from singularity_scheduler.model.session import Wishes
from singularity_scheduler.model.words import Kind, Priority, Tier

__all__ = [
    "BEHIND",
    "MAX_NAME",
    "BatchRun",
    "Kind",
    "Member",
    "Part",
    "Priority",
    "ScalePolicy",
    "SessionSpec",
    "Tier",
]


@dataclass(frozen=True)
class BatchRun:
    """What a batch session runs in its own capsule: a notebook, by papermill, or a command. JSON
    texts and not objects where a value has an inside, so that the whole is a plain value."""

    notebook: str = ""
    """Absolute path of the input; "": it is a command."""
    output: str | None = None
    """Absolute path of the executed notebook; None only until the session has its id."""
    parameters: str = "{}"
    """JSON object: parameter name -> value."""
    kernel: str | None = None
    """Name of the kernelspec; None: the one the notebook names."""
    folder: str | None = None
    """Working folder; None: the notebook's."""
    python: str | None = None
    """Interpreter that runs papermill; None: the service's own."""
    variables: str = "{}"
    """JSON object: environment of the run. It is stored, so it is no place for secrets."""
    timeout_s: int | None = None
    """Most seconds from its start to its end; None: no limit."""
    max_retries: int = 0
    """How often it starts again by itself when a process of it was killed."""
    command: str = ""
    """For bash; "": it is a notebook."""
    ranked: bool = False
    """The command is started once for each virtual device, with RANK and its like."""
    metadata: str = "{}"
    """JSON object: what its job file says that changes nothing (tags, experiment, ...)."""

    @property
    def attempts(self) -> int:
        """How often it may begin or go on in all."""
        return self.max_retries + 1


@dataclass(frozen=True)
class Member:
    """A session's part in a group: sessions that were submitted together, such as a sweep's."""

    group: str
    """The id that they share."""
    number: int
    """From 1; smaller ones are started first."""
    members: int
    """How many the group has."""
    name: str = ""
    """Of the group, for people."""
    max_parallel: int | None = None
    """Most of them that are started and have not ended at a time; None: no limit."""
    values: str = "{}"
    """JSON object: what tells this one from the others, name -> value."""
    timeout_s: int | None = None
    """So long after it was submitted all of it is ended, waiting included; None: no limit."""
    stop_on_failure: bool = False
    """The first that fails ends the rest of the group."""
    stop_when: str = ""
    """A condition on recorded values: the first that meets it ends the others; "": none."""
    objective: str = ""
    """Which of them is the best: "minimize loss"; "": nobody said."""
    reached: str = ""
    """The session that met the condition; "": none yet, or it is not known here."""
    reached_why: Words = ""
    """By what; a sentence in ledgers from before there were codes."""


@dataclass(frozen=True)
class Part:
    """A session's part in a gang: the sessions that run one program together, one on each of
    several nodes; see `members`."""

    gang: str
    """The id that they share."""
    number: int
    """From 0: the rank of its node."""
    sessions: tuple[str, ...]
    """All of them by their numbers."""
    secret: str = field(default="", repr=False)
    """Of this gang alone; what its bridges prove themselves with is made of it. Never shown."""

    @property
    def parts(self) -> int:
        """How many the gang has."""
        return len(self.sessions)


@dataclass(frozen=True)
class ScalePolicy:
    """On how many physical devices an elastic session may run its virtual ones; see `scaling`."""

    least: int
    most: int
    counts: tuple[int, ...] = ()
    """Allowed numbers, ascending; (): every one from `least` to `most`."""
    interval_s: float | None = None
    """Least time between two changes that the scheduler makes; None: as the policy is set."""


BEHIND = 1 << 62
"""Where members of a group that have no place in the queue yet stand in it; see `groups`."""


@dataclass(frozen=True)
class SessionSpec(Wishes):
    """What was asked for, validated by `requests.spec`."""

    kind: Kind
    tier: Tier
    devices: int
    """Virtual devices; of one on several nodes: on each of them."""
    name: str = ""
    run: BatchRun | None = None
    member: Member | None = None
    scale: ScalePolicy | None = None
    """None: it runs on as many physical devices as it has virtual ones."""
    nodes: int = 1
    """More than one: it is a gang with a part on each of so many nodes."""
    part: Part | None = None
    """Which part of a gang it is; None: it runs on its own."""
    owned: bool = False
    """It belongs to a process of the service's machine (a Jupyter server, a terminal), so it starts
    on a node of that machine; it may leave it later."""

    @property
    def needs(self) -> int:
        """The least number of physical devices that it can run on."""
        return self.devices if self.scale is None else self.scale.least
