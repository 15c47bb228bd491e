"""Options of `submit` that are made of what can be said of a session: texts, empty for none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singularity_scheduler.model.session import WISHES
from traitlets import HasTraits, Unicode

OPTIONS = tuple(each for each in WISHES if each.fact.option)

if TYPE_CHECKING:

    class OptionTraits(HasTraits):  # type: ignore[misc]
        """A setting for each of them, by its key."""

else:
    OptionTraits: Any = type(HasTraits)(
        "OptionTraits",
        (HasTraits,),
        {each.key: Unicode(config=True, help=each.fact.option) for each in OPTIONS}
        | {"__doc__": "A setting for each of `OPTIONS`, by its key."},
    )
