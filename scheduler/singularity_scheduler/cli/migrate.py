"""`jupyter singularity migrate`: let a session go on with another device."""

from __future__ import annotations

from traitlets import Unicode

from .verbs import WHICH, VerbApp


class MigrateApp(VerbApp):
    name = "jupyter-singularity-migrate"
    description = f"""Let a session go on with another device; running code waits meanwhile and
    loses nothing. {WHICH}"""
    examples = """
        jupyter singularity migrate train.ipynb --device cpu:1
        jupyter singularity migrate 3f9c --device cpu:2,cpu:3
    """

    device = Unicode(
        config=True,
        help="""Where to: a device's number or name ("cpu:1", see `nodes`), with several virtual
        devices one name for each, separated by commas. Empty: any other device.""",
    )
    aliases = {"device": "MigrateApp.device", **VerbApp.aliases}

    def details(self) -> tuple[str | int | list[str] | None]:
        return (target(self.device),)


def target(text: str) -> str | int | list[str] | None:
    """--device as the API wants it."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if len(names) > 1:
        return names
    if not names:
        return None
    return int(names[0]) if names[0].isdecimal() else names[0]


main = MigrateApp.launch
