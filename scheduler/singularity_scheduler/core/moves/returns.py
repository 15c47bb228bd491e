"""What waits in the store comes back where there is room; of a gang all parts at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import ProcessState


def bring_back(draft: Draft) -> None:
    """Start what waits to come back wherever there is room now; called with every decision."""
    seen: set[str] = set()
    for view in draft.returning():
        if view.held_back:
            return  # they are the last ones
        if view.part is not None:
            if view.part.gang not in seen:
                seen.add(view.part.gang)
                _bring_parts(draft, view)
            continue
        nodes = placement.candidates(draft, view)
        found = next((n for n in nodes if not placement.no_room(draft, view, n)), None)
        if found is not None:
            placement.resume(draft, view, found)
        elif not _waits_already(view):
            _note(draft, view, placement.waits(draft, view))


def _waits_already(view: SessionView) -> bool:
    """Whether its reason says that it waits for room: what is in its way is not asked again."""
    return view.why.code == "waits_for_room"


def _note(draft: Draft, view: SessionView, why: Reason) -> None:
    if not _waits_already(view):
        draft.note(view, move_reasons.waits_for_room(view, why), "queue.return")


def _bring_parts(draft: Draft, view: SessionView) -> None:
    """All parts of a gang that are in the store come back in one decision, or none does."""
    views = gangs.together(draft, view)
    stored = [v for v in views if v.process_state is ProcessState.SUSPENDED]
    if any(v.process_state is ProcessState.SUSPENDING or v.leaving is not None for v in views):
        return  # they come along
    if any(not v.returning or v.held_back for v in stored):
        return
    taken = {v.node for v in views} - {v.node for v in stored}
    rooms = {v.id: _rooms(draft, v, taken) for v in stored}
    found = different(rooms)
    for one in stored:
        if found is not None:
            placement.resume(draft, one, found[one.id])
        elif not rooms[one.id]:
            _note(draft, one, placement.waits(draft, one))
        else:
            _note(draft, one, obstacles.parts_without_nodes())


def _rooms(draft: Draft, view: SessionView, taken: set[str]) -> list[str]:
    """The nodes of its cluster where this part could come back, those first that are tried first.
    Parts talk to one another all the time, so none leaves the cluster."""
    of_node = draft.state.geography.of_node
    return [
        node
        for node in placement.candidates(draft, view)
        if node not in taken
        and of_node.get(node, view.cluster) == view.cluster
        and not placement.no_room(draft, view, node)
    ]


def different(rooms: Mapping[str, list[str]]) -> dict[str, str] | None:
    """A node of its own for each; None: there is no such choice."""
    holder: dict[str, str] = {}

    def settle(session: str, tried: set[str]) -> bool:
        for node in rooms[session]:
            if node in tried:
                continue
            tried.add(node)
            if node not in holder or settle(holder[node], tried):
                holder[node] = session
                return True
        return False

    for session in rooms:
        if not settle(session, set()):
            return None
    return {session: node for node, session in holder.items()}
