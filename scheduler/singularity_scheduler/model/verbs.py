"""The table of what can be done with a session: one row for each verb.

Made of it are the operations of the REST API with their checks, the methods of the client,
commands of the command line, the verbs of `%singularity`, what the Jupyter server passes on, and
the buttons, menus and commands in JupyterLab. `docs/explanation/change-it.md` adds one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .arguments import Argument, Form
from .buttons import Button, Offered


@dataclass(frozen=True)
class VerbCommand:
    """`jupyter singularity VERB`."""

    summary: str
    """For the list of commands."""
    module: str = ""
    """Where below `cli` it is written, if it does more than ask for the verb; "": it is made of
    this row."""
    description: str = ""
    """What `--help` says, before how a session is named."""
    examples: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    """Keys of the session's document that the answer names."""


@dataclass(frozen=True)
class Magic:
    """`%singularity VERB WORD`."""

    help: str
    """A sentence of its help that says what it does; "": that of the next row does."""
    word: str = ""
    """What its word is, for the help; "": it takes none."""


@dataclass(frozen=True)
class Verb:
    """One row."""

    name: str
    summary: str
    """What the operation does, for the API's description."""
    client: str
    """What the method of the client does."""
    arguments: tuple[Argument, ...] = ()
    body: str = "Nothing"
    """Name of the schema of its arguments."""
    rule: str = ""
    """When the scheduler decides something by `user.VERB`; "": it decides by other rules."""
    uses_store: bool = False
    """It writes a whole session to the store or reads one back, and may be refused by that."""
    takes_long: bool = False
    """The client waits for more than a minute."""
    reads_again: bool = False
    """A body that is not as its schema says is read once more for a better sentence."""
    is_change: bool = True
    """It is an event of the policy, answered with the session; else an operation of its own."""
    has_method: bool = True
    """Its method of the client is made of this row."""
    command: VerbCommand | None = None
    magic: Magic | None = None
    in_server: bool = True
    """Whether the Jupyter server passes it on for a page."""
    button: Button | None = None

    @property
    def needs(self) -> Argument | None:
        """The argument that it cannot do without."""
        return next((each for each in self.arguments if not each.optional), None)

    @property
    def word(self) -> Argument | None:
        """The argument that `%singularity` takes as a word."""
        return self.arguments[0] if self.magic and self.magic.word else None


_STORED = "the name or id of one"
_NAMED = "a name for the checkpoint"

VERBS: tuple[Verb, ...] = (
    Verb(
        "park",
        "Free its devices; its process and state stay, the next device call brings them back.",
        "Free its devices, keep its process; the next device call brings it back.",
        rule="somebody asked to park",
        command=VerbCommand(
            "Free a session's devices; its next device call takes devices again.",
            description="Free a session's devices: variables and tensors stay, and its next device "
            "call takes devices again.",
            examples=("park train.ipynb",),
        ),
        magic=Magic(
            "park: free the devices; variables and tensors stay, the next device call goes on."
        ),
        button=Button(
            "Park",
            "Free its devices until the next device call; nothing is lost",
            Offered.WITH_DEVICES,
            place=60,
        ),
    ),
    Verb(
        "preempt",
        "Take its devices, nothing is lost, and hold it back until resume or migrate; a queued run "
        "does not start meanwhile.",
        "Take its devices, nothing is lost, and hold it back until `resume` or `migrate`; a queued "
        "run does not start meanwhile.",
        rule="somebody took the devices away until a resume",
        command=VerbCommand(
            "Take a session's devices and hold it back until it is resumed.",
            description="Take a session's devices and hold it back: nothing is lost, running code "
            "waits, a queued run does not start, until `resume` or `migrate`.",
            examples=("preempt 3f9c", "resume 3f9c"),
        ),
        magic=Magic("preempt: the same, but device calls wait until somebody resumes the session."),
        in_server=False,
    ),
    Verb(
        "keep",
        "Keep it alive for so many seconds from now on, in place of what was asked before; 0: no "
        "longer. It is not parked for being idle, and counts as busy when others look for devices: "
        "a higher tier still goes first. The parameter `keep_max_s` is the longest time in all "
        "while nothing uses its devices.",
        "Keep it alive for so many seconds from now on, though it may be idle; 0: no longer.",
        (
            Argument(
                "for_s",
                Form.SECONDS,
                "From now on; 0: no longer.",
                "a length of time: 90s, 15min, 2h, or 0 for no longer",
                {"maximum": 1_000_000_000},
            ),
        ),
        "Keep",
        rule="somebody keeps a session alive for a while, or that is over",
        reads_again=True,
        command=VerbCommand(
            "Keep a session alive for a while though nothing uses its devices.",
            module="sessions.keep",
        ),
        magic=Magic(
            "keep: keep it alive for a while (keep 2h) though nothing uses its devices; 0 ends "
            "that.",
            "for how long",
        ),
        button=Button(
            "Keep alive",
            "Let nobody park or suspend it because it is idle, for a while",
            Offered.LIVE,
            place=70,
            command="Keep session alive",
            asks=True,
        ),
    ),
    Verb(
        "tier",
        "Change its tier, to one that is open to its user; from then on it is served, and "
        "measured, by that. Devices that it holds may go to a session that comes before it now.",
        "Change its tier; `Forbidden` for one that is not open to its user.",
        (Argument("tier", Form.TIER, needed="one of premium, standard and basic"),),
        "TierChange",
        rule="somebody changed the tier or the priority of a session",
        command=VerbCommand(
            "Give a session another tier.",
            description="Give a session another tier, one that is open to its user. From then on "
            "it is served and measured by that: with a lower one its devices may go to somebody "
            "who waits, with a higher one it may get some at once. The windows in which its share "
            "was measured so far do not count for the new promise; the device time that it was "
            "served in all stays.",
            examples=("tier train.ipynb basic",),
            shows=("tier", "priority"),
        ),
        magic=Magic("", "which"),
        button=Button(
            "Change tier",
            "Give it another tier: what it is promised, and who goes before it",
            Offered.NOT_ENDED,
            place=80,
            command="Change tier of session",
            asks=True,
        ),
    ),
    Verb(
        "priority",
        "Change its priority among sessions of its tier.",
        'Change its priority among sessions of its tier: "low", "medium" or "high".',
        (Argument("priority", Form.PRIORITY, needed="one of low, medium and high"),),
        "PriorityChange",
        command=VerbCommand(
            "Give a session another priority inside its tier.",
            description="Give a session another priority: it orders sessions of one tier.",
            examples=("priority sweep.ipynb low",),
            shows=("tier", "priority"),
        ),
        magic=Magic("tier, priority: change them (tier basic).", "which"),
    ),
    Verb(
        "suspend",
        "Put everything of it into the store and free its node; nothing is lost. Answered when "
        "that is done or under way; `resume`, or a request of its notebook, brings it back.",
        "Put everything of it into the store, as a checkpoint called `name`, and free its node.",
        (Argument("name", Form.LABEL, "For the checkpoint that it becomes."),),
        "Suspension",
        rule="somebody asked to suspend, or its Jupyter server is gone",
        uses_store=True,
        takes_long=True,
        command=VerbCommand(
            "Put a session with its processes into the store and free its node.",
            module="moves.suspend",
        ),
        magic=Magic(
            "suspend: put everything into the store, in the middle of this cell, and free the "
            "node; the next request or `resume` brings it back, and only then the cell goes on.",
            _NAMED,
        ),
        button=Button(
            "Suspend",
            "Put everything of it into the store and free its node; nothing is lost",
            Offered.LIVE,
            place=20,
            on_card=True,
        ),
    ),
    Verb(
        "resume",
        "Take devices now instead of at the next device call; ends a preempt. A suspended session "
        "comes back, from its newest checkpoint and where it was, or as asked; it waits when there "
        "is no room.",
        "Ask for its devices now instead of at the next device call; a suspended session comes "
        "back, from `checkpoint` (id or name; None: the newest) and to `node` (None: any).",
        (
            Argument("checkpoint", Form.STORED, "Id or name; null: the newest."),
            Argument("node", Form.NODE, "Only there; null: where it was, else anywhere."),
        ),
        "Return",
        rule="somebody asked for the devices",
        uses_store=True,
        takes_long=True,
        command=VerbCommand(
            "Bring a suspended session back; let one have its devices now.",
            module="moves.resume",
        ),
        magic=Magic(
            "resume: take devices now instead of at the next device call, and end a preempt.",
            _STORED,
        ),
        button=Button(
            "Resume",
            "Take devices now; a suspended session comes back",
            Offered.RESUMABLE,
            place=30,
            on_card=True,
        ),
    ),
    Verb(
        "migrate",
        "Go on with other devices, on another node, or in another cluster.",
        'Move it to `device` ("cpu:1" or 1; one per virtual device), None: to any other; or to '
        "another `node` or `cluster`, through the store.",
        (
            Argument(
                "device",
                Form.PLACES,
                'A device ("cpu:1"), its number, one per virtual device, or null for any other.',
                field="devices",
            ),
            Argument("node", Form.NODE, "Another node instead; not together with device."),
            Argument(
                "cluster",
                Form.CLUSTER,
                "The best node of this cluster instead; not together with others.",
            ),
        ),
        "Move",
        rule="somebody asked for other devices",
        uses_store=True,
        takes_long=True,
        command=VerbCommand(
            "Let a session go on with another device, on another node or in another cluster.",
            module="moves.migrate",
        ),
        magic=Magic(
            "migrate: go on with another device, with --node on another node, or with --cluster in "
            "another cluster."
        ),
        button=Button(
            "Migrate",
            "Go on with other devices or on another node",
            Offered.LIVE_OR_SUSPENDED,
            place=40,
            asks=True,
            new_section=True,
        ),
    ),
    Verb(
        "resize",
        "Run its virtual devices, whose number does not change, on so many physical ones from now "
        "on; nothing is lost. It gets more when they are free, and its next devices when it has "
        "none.",
        "Run its virtual devices on so many physical ones from now on; see its `resizable`.",
        (
            Argument(
                "devices",
                Form.COUNT,
                "Physical devices, from 1 to the number of its virtual ones; see `resizable` of "
                "the session.",
                "a number of physical devices, such as 1",
            ),
        ),
        "Size",
        rule="somebody asked for more or fewer devices",
        takes_long=True,
        reads_again=True,
        command=VerbCommand(
            "Run a session's virtual devices on more or fewer physical ones.",
            description="Run a session on so many physical devices from now on. Its code goes on "
            "with the virtual devices that it has, whose number does not change; those that come "
            "to share a physical one take longer, and nothing is lost. When fewer are free it gets "
            "the others later; one without devices gets so many with its next ones. A session with "
            "a scale policy may still be shrunk below that for others, and grows back.",
            examples=("resize train.ipynb 1", "resize 3f9c 4"),
        ),
        magic=Magic(
            "resize: run the virtual devices on so many physical ones (resize 1); nothing is lost.",
            "on how many",
        ),
        button=Button(
            "Resize",
            "Go on with more or fewer physical devices; what its code sees stays the same",
            Offered.RESIZABLE,
            place=50,
            asks=True,
        ),
    ),
    Verb(
        "checkpoint",
        "Store it; execution goes on. Its process too where its node can do that, else its device "
        "state.",
        'Store it; returns its JSON with `last_checkpoint`. `level`: "device" or "process"; None: '
        "the best that its node can do.",
        (
            Argument("name", Form.LABEL),
            Argument("level", Form.LEVEL, "null: the best that its node can do.", on_page=False),
        ),
        "Checkpoint",
        rule="somebody asked for a checkpoint",
        uses_store=True,
        takes_long=True,
        reads_again=True,
        command=VerbCommand(
            "Store a session as it is now, under a name or without one.",
            module="moves.checkpoint",
        ),
        magic=Magic("checkpoint: store everything; execution goes on.", _NAMED),
        button=Button(
            "Checkpoint",
            "Store it; execution goes on",
            Offered.LIVE,
            place=10,
            on_card=True,
            asks=True,
        ),
    ),
    Verb(
        "restore",
        "Go back to an older checkpoint of its own. Its present state is stored first.",
        "Go back to an older checkpoint (id or name) of its own; its present state is stored first "
        "unless it is to be `discard`ed.",
        (
            Argument(
                "checkpoint",
                Form.STORED,
                "Id or name.",
                "the name or id of a checkpoint: %singularity checkpoints",
                {"minLength": 1},
            ),
            Argument(
                "discard", Form.FLAG, "Give its present state up instead of storing it first."
            ),
        ),
        "Restoration",
        rule="somebody asked to go back to a checkpoint",
        uses_store=True,
        takes_long=True,
        command=VerbCommand(
            "Undo: let a session go back to an older checkpoint.",
            module="moves.restore",
        ),
        magic=Magic(
            "restore: go back to a checkpoint, this cell is then undone too; the present is stored "
            "first.",
            _STORED,
        ),
        button=Button(
            "Restore",
            "Go back to one of its checkpoints",
            Offered.RETURNABLE,
            place=90,
            asks=True,
            new_section=True,
        ),
    ),
    Verb(
        "fork",
        "Begin a second session, with an id of its own, where a checkpoint of this one is; answers "
        "the new one.",
        "",
        (
            Argument("checkpoint", Form.STORED, "Id or name; null: the newest."),
            Argument("name", Form.NAME),
        ),
        "Fork",
        rule="somebody asked for a second session from a checkpoint",
        uses_store=True,
        takes_long=True,
        is_change=False,
        has_method=False,  # it has a key, too
        command=VerbCommand(
            "Begin a second session where a checkpoint of one is.", module="moves.fork"
        ),
        magic=Magic(
            "fork: begin a second session where a checkpoint (default: the newest) is.", _STORED
        ),
        button=Button(
            "Fork",
            "Begin a second session where a checkpoint of this one is",
            Offered.FORKABLE,
            place=100,
            asks=True,
        ),
    ),
    Verb(
        "reopen",
        "Take its end back: it is suspended as of its newest checkpoint, under its own id; a batch "
        "run goes on by itself. Every end keeps that checkpoint for a while, see its `undo_end`.",
        "Take the end of a session back: it is suspended as of its newest checkpoint, with its own "
        "id (a batch run goes on by itself). Its JSON has `undo_end` as long as that can be done.",
        rule="somebody took the end of a session back",
        is_change=False,
        command=VerbCommand(
            "Take the end of a session back: it was closed by mistake.", module="moves.reopen"
        ),
        button=Button(
            "Take back",
            "Take its end back: it is suspended again as of its newest checkpoint",
            Offered.REOPENABLE,
            place=120,
            on_card=True,
            command="Take back the end of session",
        ),
    ),
)
"""In the order of the API's description and of the list of commands."""

BY_NAME = {row.name: row for row in VERBS}

CHANGES = tuple(row.name for row in VERBS if row.is_change)
"""Those that are events of the policy."""

RULES = {f"user.{row.name}": row.rule for row in VERBS if row.rule}
"""Rule of the policy -> when it decides."""
