"""From a job file to what is submitted: expressions filled in, paths absolute, names of Azure ML
mapped to those of the scheduler."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.requests.goals import parse_condition, parse_objective
from singularity_scheduler.requests.spec import parse_locations, parse_virtual_cluster

from .errors import BadJob, shown, yaml_word
from .expressions import BadExpression, Values
from .reading import Document
from .schema import Row, Use, rows, spelled, validate
from .sweep_files import as_command
from .sweeps import Space, Sweep, refuse_twice

SINGULARITY = ("resources", "properties", "singularity")

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SWEPT = re.compile(r"\$\{\{\s*search_space\.")
_SWEPT_PLACES = ("command", "parameters")
"""What may be another one in each run of a sweep."""
Path = tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A job file, resolved. `document` says where each thing came from."""

    document: Document
    kind: str
    """"notebook" or "command"."""
    name: str = ""
    notebook: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    output: str | None = None
    kernel: str | None = None
    command: str = ""
    ranked: bool = False
    """The command is started for each of its devices, as a rank."""
    folder: str | None = None
    """Where it runs; None: the notebook's folder."""
    variables: dict[str, str | None] = field(default_factory=dict)
    """None: as it is where it is submitted."""
    timeout_s: int | None = None
    max_retries: int | None = None
    wishes: dict[str, Any] = field(default_factory=dict)
    """Of `WISHES` what the file says."""
    folders: tuple[str, ...] = ()
    """To be made before it runs: its outputs'."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What is kept and changes nothing, as the job file has it; `inputs` and `outputs` too."""
    notes: tuple[str, ...] = ()
    """Sentences for who submits it."""
    sweep: Sweep = field(default_factory=Sweep)
    """The runs that it stands for; the job itself is with the first value of each name."""
    direct: dict[str, Any] = field(default_factory=dict)
    """Of a sweep the names that nothing in the file speaks of, with their values: parameters."""

    def with_values(self, values: Mapping[str, Any]) -> Job:
        """The job with one combination of its sweep; raises `BadJob` when more than its command
        and parameters would be another one."""
        made = _Resolver(self.document, self.sweep, values).job()
        same = ("command", "parameters", "direct", "name", "metadata", "notes")
        if replace(made, **{name: getattr(self, name) for name in same}) != self:
            inputs = self.document.find("inputs")
            swept = [n for n in values if inputs is not None and n in inputs.value]
            raise self.bad(
                f"{', '.join(swept)} is swept over, and only the command and parameters may use it",
                "inputs",
                *swept[:1],
            )
        return made

    def bad(self, what: str, *path: str | int) -> BadJob:
        """The refusal `what` about the value at `path` of the file."""
        return self.document.bad(what, *path)


def resolve(document: Document, space: Space | None = None) -> Job:
    """The job that `document` describes; raises `BadJob`. `space` is what somebody wants to sweep
    over besides, or in place of what the file says; a name of it stands for the input of that name
    too."""
    document = spelled(as_command(document))
    validate(document)
    plain = _Resolver(document, Sweep(), {})
    sweep = plain.sweep()
    sweep = replace(sweep, space={**sweep.space, **(space or {})})
    sweep.refuse_too_many()
    values = {name: of_name[0] for name, of_name in sweep.space.items()}
    return _Resolver(document, sweep, values).job()


class _Resolver:
    """Resolves a file with one combination (`values`) of `sweep`."""

    def __init__(self, document: Document, sweep: Sweep, values: Mapping[str, Any]) -> None:
        self._document = document
        self._sweep = sweep
        self._swept = values
        self._notes: list[str] = []
        self._folders: list[str] = []
        self._sources: dict[str, Any] = {}
        for group in ("inputs", "outputs"):
            for name, node in self._section(group).items():
                self._sources[f"{group}.{name}"] = node.plain()
        own = self._section("sweep", "search_space")
        inputs = {n for n in values if f"inputs.{n}" in self._sources and n not in own}
        self._for_inputs = {f"inputs.{name}": values[name] for name in inputs}
        self._space = {f"search_space.{name}": value for name, value in values.items()}
        self._sources |= self._for_inputs | self._space
        self._described: dict[str, dict[str, Any]] = {"inputs": {}, "outputs": {}}
        self._values = Values(self._sources, self._finished)

    def sweep(self) -> Sweep:
        """What the file itself says of a sweep."""
        space: dict[str, list[Any]] = {}
        for name, node in self._section("sweep", "search_space").items():
            path = ("sweep", "search_space", name)
            said = node.plain()
            values = said["values"] if isinstance(said, dict) else said
            self._at(path, partial(refuse_twice, where=name), values)
            space[name] = values
        limits = ("sweep", "limits")
        found = Sweep(
            space,
            self._said(*limits, "max_total_trials"),
            self._said(*limits, "max_concurrent_trials"),
            self._said(*limits, "timeout"),
            self._said("sweep", "stop_on_failure") is True,
            self._said("sweep", "stop_when"),
            self._said("sweep", "objective"),
        )
        if found.stop_when is not None:
            self._at(("sweep", "stop_when"), parse_condition, found.stop_when)
        self._at(("sweep", "objective"), parse_objective, found.objective)
        self._at(("sweep", "search_space"), Sweep.refuse_too_many, found)
        return found

    def job(self) -> Job:
        for name in self._sources:
            if name not in self._space:
                self._refuse_swept(self._sources[name], *name.split("."))
                self._at(tuple(name.split(".")), self._values.of, name)
        kind = self._said("type") or "command"
        code = self._filled("code")
        folder = None if code is None else self._path(code)
        if folder is not None and not os.path.isdir(folder):
            raise self._bad(f"there is no folder {folder}", "code")
        if kind == "command" and folder is None:
            folder = self._document.folder
        notebook, output = self._filled("notebook"), self._filled("output")
        return Job(
            self._document,
            kind,
            name=self._said("display_name") or self._said("name") or "",
            notebook=self._path(notebook) if notebook is not None else "",
            parameters=self._parameters(),
            output=self._path(output) if output is not None else None,
            kernel=self._said("kernel"),
            command=self._command(),
            ranked=self._said("distribution") is not None,
            folder=folder,
            variables=self._variables(),
            timeout_s=self._one(
                ("limits", "timeout"), ("sweep", "limits", "trial_timeout"), read=int
            ),
            max_retries=self._said("retry_settings", "max_retries"),
            wishes=self._wishes(kind),
            folders=tuple(dict.fromkeys(self._folders)),
            metadata=self._metadata(),
            notes=tuple(self._notes),
            sweep=self._sweep,
            direct={n: v for n, v in self._swept.items() if not self._uses(n)},
        )

    def _uses(self, name: str) -> bool:
        """Whether the file speaks of this name of the sweep."""
        names = {f"search_space.{name}", f"inputs.{name}"} & {*self._for_inputs, *self._space}
        return not names.isdisjoint(self._values.used)

    # -- what the file says ---------------------------------------------------------------------

    def _section(self, *path: str) -> Mapping[str, Any]:
        node = self._document.find(*path)
        return node.value if node is not None and isinstance(node.value, dict) else {}

    def _said(self, *path: str) -> Any:
        node = self._document.find(*path)
        return None if node is None else node.plain()

    def _filled(self, *path: str) -> Any:
        return self._fill(self._said(*path), *path)

    def _fill(self, value: Any, *path: str) -> Any:
        """`value`, which stands at `path`, with its expressions filled in."""
        self._refuse_swept(value, *path)
        return self._at(path, self._values.filled, value)

    def _refuse_swept(self, value: Any, *path: str) -> None:
        if path[0] not in _SWEPT_PLACES and _SWEPT.search(str(value)):
            raise self._bad(
                "${{search_space...}} may stand in command and parameters alone: everything else "
                "is the same for all runs of a sweep",
                *path,
            )

    def _at(self, path: Path, work: Callable[[Any], Any], value: Any) -> Any:
        """What `work` makes of a value that stands at `path`; its refusals get that place."""
        try:
            return work(value)
        except BadJob:
            raise
        except BadExpression as error:
            raise self._bad(str(error), *path) from None
        except BadRequest as error:
            raise self._bad(error.message, *path) from None

    def _bad(self, what: str, *path: str | int) -> BadJob:
        return self._document.bad(what, *path)

    def _note(self, what: str, *path: str | int) -> None:
        self._notes.append(f"{self._document.name}, line {self._document.line(*path)}: {what}")

    def _path(self, text: object) -> str:
        return os.path.normpath(os.path.join(self._document.folder, yaml_word(text)))

    # -- parts ----------------------------------------------------------------------------------

    def _command(self) -> str:
        text = str(self._said("command") or "")
        return str(self._at(("command",), self._values.filled_command, text))

    def _parameters(self) -> dict[str, Any]:
        section = self._section("parameters")
        return {n: self._fill(node.plain(), "parameters", n) for n, node in section.items()}

    def _variables(self) -> dict[str, str | None]:
        """As they were written: 1.10 is no number there."""
        found: dict[str, str | None] = {}
        for name, node in self._section("environment_variables").items():
            path = ("environment_variables", name)
            filled = self._fill(node.text, *path)
            found[name] = None if node.value is None else yaml_word(filled)
            if "\0" in (found[name] or ""):
                raise self._bad("a variable cannot hold the character NUL", *path)
        return found

    def _wishes(self, kind: str) -> dict[str, Any]:
        tier = self._one(("queue_settings", "job_tier"), (*SINGULARITY, "sla_tier"), read=_tier)
        if str(self._said("queue_settings", "job_tier")).lower() == "spot":
            self._note("the tier Spot is 'basic' here", "queue_settings", "job_tier")
        cluster = self._one(("compute",), (*SINGULARITY, "virtual_cluster_arm_id"), read=_cluster)
        location = (*SINGULARITY, "location")
        where = self._one(
            ("resources", "locations"), (*SINGULARITY, "locations"), location, read=_places
        )
        wishes = {
            "tier": tier,
            "priority": self._one(
                ("queue_settings", "priority"), (*SINGULARITY, "priority"), read=_lower
            ),
            "devices": self._devices(kind),
            "device_share": self._said(*SINGULARITY, "device_share"),
            "checkpoint_every_s": self._said(*SINGULARITY, "checkpoint_every_s"),
            "checkpoint_every_steps": self._said(*SINGULARITY, "checkpoint_every_steps"),
            "scale_policy": self._said(*SINGULARITY, "scale_policy"),
            "virtual_cluster": cluster,
            "locations": where,
            "nodes": self._nodes(),
        }
        return {name: value for name, value in wishes.items() if value not in (None, "", [])}

    def _one(self, *paths: Path, read: Callable[[Any], Any]) -> Any:
        """The one value that is said at `paths`; it may be said twice, but not differently."""
        found: dict[Path, Any] = {}
        for path in paths:
            value = self._said(*path)
            if value is not None:
                found[path] = self._at(path, read, value)
        (first, value), *others = found.items() or [((), None)]
        for path, other in others:
            if other != value:
                names = self._document.words(path), self._document.words(first)
                raise self._bad(
                    f"{names[0]} is {shown(other)} and {names[1]} is {shown(value)}: say one of "
                    "them",
                    *path,
                )
        return value

    def _devices(self, kind: str) -> int | None:
        instances = self._said("resources", "instance_count")
        if kind == "command" and self._said("distribution") is not None:
            ranks = self._said("distribution", "process_count_per_instance") or 1
            return int(ranks) * int(instances or 1)
        return None if instances is None else int(instances)

    def _nodes(self) -> int | None:
        nodes = self._said(*SINGULARITY, "nodes")
        if nodes not in (None, 1) and self._sweep:
            path = (*SINGULARITY, "nodes")
            raise self._bad("the runs of a sweep are on one node each: leave nodes out", *path)
        return None if nodes is None else int(nodes)

    def _metadata(self) -> dict[str, Any]:
        """Everything that the table calls metadata, in its place, and the inputs and outputs."""
        found: dict[str, Any] = {}
        for row in rows():
            if row.use is not Use.METADATA or "NAME" in row.path:
                continue
            value = self._said(*row.path)
            if value is None:
                continue
            if row.path == ("tags",):  # as they were written
                value = {name: node.text for name, node in self._section("tags").items()}
            self._tell(row)
            inner = found
            for part in row.path[:-1]:
                inner = inner.setdefault(part, {})
            inner[row.path[-1]] = value
        return found | {group: inside for group, inside in self._described.items() if inside}

    def _tell(self, row: Row) -> None:
        if row.note:
            name = self._document.words(row.path)
            self._note(f"{name} is kept and changes nothing here: {row.note}", *row.path)

    # -- inputs and outputs ---------------------------------------------------------------------

    def _finished(self, name: str, value: Any) -> Any:
        """What an expression with `name` stands for; called once for each."""
        group, word = name.split(".")
        if name in self._space or name in self._for_inputs:
            return value
        return self._input(word, value) if group == "inputs" else self._output(word, value)

    def _input(self, name: str, value: Any) -> Any:
        path = ("inputs", name)
        if not isinstance(value, dict):
            self._refuse_asset(value, *path)
            self._described["inputs"][name] = value
            return value
        given = yaml_word(value["path"])
        self._refuse_asset(given, *path, "path")
        if value.get("mode") == "direct":
            self._described["inputs"][name] = {**value, "path": given}
            return given
        if _ADDRESS.match(given):
            raise self._bad(
                f"{shown(given)} is an address, and nothing is mounted or downloaded here: hand it "
                "on with 'mode: direct', or name a local path",
                *path,
                "path",
            )
        where = self._path(given)
        if not os.path.exists(where):
            raise self._bad(f"there is no {where}", *path, "path")
        kind = value.get("type", "uri_folder")
        if kind == "uri_file" and os.path.isdir(where):
            raise self._bad(f"inputs.{name} has the type uri_file, and {where} is a folder", *path)
        if kind == "uri_folder" and not os.path.isdir(where):
            raise self._bad(f"inputs.{name} has the type uri_folder, and {where} is a file", *path)
        self._described["inputs"][name] = {**value, "path": where}
        return where

    def _output(self, name: str, value: Any) -> str:
        described = dict(value or {})
        given = yaml_word(described.get("path", os.path.join("outputs", name)))
        path = ("outputs", name, "path")
        self._refuse_asset(given, *path)
        if _ADDRESS.match(given):
            raise self._bad(f"{shown(given)} is an address: name a local path", *path)
        where = self._path(given)
        is_file = described.get("type") == "uri_file"
        self._folders.append(os.path.dirname(where) if is_file else where)
        self._described["outputs"][name] = {**described, "path": where}
        return where

    def _refuse_asset(self, value: object, *path: str | int) -> None:
        if isinstance(value, str) and value.startswith("azureml:"):
            raise self._bad(
                f"{shown(value)} names an asset of a workspace, and there is none here: name a "
                "local path",
                *path,
            )


def _lower(value: object) -> str:
    return str(value).lower()


def _tier(value: object) -> str:
    tier = _lower(value)
    return {"spot": "basic", "null": ""}.get(tier, tier)


def _cluster(value: object) -> str:
    name = str(value).removeprefix("azureml:")
    return "" if name == "local" else parse_virtual_cluster(name)


def _places(value: object) -> list[str]:
    return list(parse_locations(value if isinstance(value, list) else [value]))
