"""`jupyter singularity parameters`: the figures of the policy, and how to change them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Unicode

from singularity_scheduler.cli.framework.base import ServiceApp

from .views import parameter_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ParametersApp(ServiceApp):
    name = "jupyter-singularity-parameters"
    synopsis = "[NAME=VALUE...]"
    most: ClassVar[int | None] = None
    description = """Show the parameters of the policy; with words, change them first: all of them
    or, when one cannot be, none. They count at once and outlast a restart. VALUE is a number, a
    list in brackets, or `default`. For administrators. With --json: an array of parameters."""
    examples = """
        jupyter singularity parameters
        jupyter singularity parameters idle_soft_s=600 min_run_s=30 --reason "many users today"
        jupyter singularity parameters 'las_thresholds_device_s=[3600, 36000]'
        jupyter singularity parameters idle_soft_s=default
    """
    reason = Unicode("", config=True, help="Why, for the log.")
    aliases = {"reason": "ParametersApp.reason", **ServiceApp.aliases}

    async def work(self, client: ServiceClient) -> None:
        changes = dict(map(change, self.words))
        if changes:
            found = await client.set_parameters(changes, self.reason)
        else:
            found = await client.parameters()
        shown = [one for one in found if one["name"] in changes] if changes else found
        self.show(shown, lambda: parameter_table(shown))


def change(word: str) -> tuple[str, Any]:
    """Name and value of ``NAME=VALUE``; None for the default."""
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise BadRequest(f"'{word}' is no NAME=VALUE, for example idle_soft_s=600")
    if text == "default":
        return name, None
    try:
        return name, json.loads(text)
    except ValueError:
        raise BadRequest(
            f"'{text}' is no value of {name}: give a number, a list in brackets, or default"
        ) from None


main = ParametersApp.launch
