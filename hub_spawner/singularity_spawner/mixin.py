"""`SingularitySpawnerMixin`: what any Spawner needs so that its servers run under Singularity.

    from kubespawner import KubeSpawner
    from singularity_spawner import SingularitySpawnerMixin

    class MySpawner(SingularitySpawnerMixin, KubeSpawner):
        "KubeSpawner whose notebooks keep their state while their device comes and goes."

`hubconfig.configure` builds such a class by itself. The mixin never starts a process: it asks the
person for tier and devices, asks the scheduler service whether that can be, tells the server
where the service is, and suspends the server's sessions when the server stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from inspect import isawaitable
from typing import Any

from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient
from traitlets import Bool, Float, Integer, List, Unicode, default
from traitlets.config import Configurable

from . import form, hibernation, removals
from .hub_errors import spawn_refused
from .options import (
    MAX_DEVICES,
    TIER_NAMES,
    OptionsError,
    ServerOptions,
    check_capacity,
    from_form,
    parse,
)
from .progress import StartStory

SERVICE_NAME = "singularity"
USE_SCOPE = "custom:singularity:use"
ADMIN_SCOPE = "custom:singularity:admin"


class SingularitySpawnerMixin(Configurable):  # type: ignore[misc]
    """Put it before the Spawner class in the list of bases.

    Its state across a Hub restart is the choice of tier and devices; everything else is asked of
    the service again. Configure it as ``c.SingularitySpawnerMixin.<trait>`` whatever the class
    built on it is called.
    """

    service_url = Unicode(
        "",
        help="""
        Base URL of the scheduler service as the *Hub* reaches it, ending in
        ``/services/singularity/``. Set by ``singularity_spawner.configure``.

        Empty: the service is not asked for anything, and every start is refused with a sentence.
        """,
    ).tag(config=True)

    server_api_url = Unicode(
        "",
        help="""
        Base URL of the scheduler service as the *single-user servers* reach it, handed to them as
        ``SINGULARITY_API_URL``. On Kubernetes this is usually the Hub's public URL plus
        ``/services/singularity/``.

        Empty: the same as ``service_url``.
        """,
    ).tag(config=True)

    service_token = Unicode(
        "",
        help="""
        API token of the Hub service ``singularity-spawner``, with which the spawner asks for the
        cluster's size and user identities and ends the sessions of a stopped server. It needs the
        scope ``custom:singularity:admin``. Set by ``singularity_spawner.configure``; a secret.
        """,
    ).tag(config=True)

    service_timeout = Float(
        20.0,
        help="""
        Seconds that a start waits for a scheduler service that does not answer, for instance
        while it restarts, before the start is refused. 0: one attempt only.
        """,
    ).tag(config=True)

    release_timeout = Float(
        3.0,
        help="""
        Seconds that stopping a server waits for the service to end the server's sessions. When
        they pass, the service's own leases do it later; the server is stopped in any case.
        """,
    ).tag(config=True)

    hibernate = Bool(
        True,
        help="""
        Whether a server that stops suspends its notebooks instead of ending them, and the next one
        finds them again under the same kernel ids. The servers' environment needs this package
        for it. Notebooks of a node that cannot store processes end with their server.

        False: all end with their server.
        """,
    ).tag(config=True)

    hibernate_timeout = Float(
        60.0,
        min=0.0,
        max=3600.0,
        help="""
        Seconds that stopping a server waits until its notebooks are suspended. When they pass, the
        server is stopped; its notebooks are kept, and suspended without it.
        """,
    ).tag(config=True)

    max_age_s = Float(
        0.0,
        min=0.0,
        help="""
        Age in seconds from which the Hub's culler stops servers, whatever they do: notebooks count
        down to it. Set by ``singularity_spawner.configure`` with its `cull_max_age_s`.

        0: there is no such limit.
        """,
    ).tag(config=True)

    default_tier = Unicode(
        "standard", help="SLA tier that is preselected: premium, standard or basic."
    ).tag(config=True)

    default_devices = Integer(1, min=1, help="Number of virtual devices that is preselected.").tag(
        config=True
    )

    allowed_tiers = List(
        Unicode(),
        default_value=list(TIER_NAMES),
        help="""
        Tiers that people may choose. To keep premium for a group, set it per user::

            def limit(spawner, auth_state):
                if "research" not in {g.name for g in spawner.user.groups}:
                    spawner.allowed_tiers = ["standard", "basic"]

            c.Spawner.auth_state_hook = limit

        With each start of a server the scheduler is told, and holds all sessions of the user to
        it: new ones, and those whose tier is changed.
        """,
    ).tag(config=True)

    max_devices = Integer(
        MAX_DEVICES,
        min=1,
        help="Most virtual devices that one server may ask for, on top of the cluster's size.",
    ).tag(config=True)

    extra_user_options = List(
        Unicode(),
        help="""
        Names of user options that your own form adds and your own hook handles. Any option that
        is neither one of these nor ``tier`` or ``devices`` is refused.
        """,
    ).tag(config=True)

    # -- the choice -------------------------------------------------------------------------

    choice: ServerOptions | None = None
    """The choice in force: set when a start is admitted, kept across Hub restarts."""

    _story: StartStory | None = None
    _release_due = False

    @default("options_form")  # type: ignore[untyped-decorator]
    def _default_options_form(self) -> Any:
        return type(self)._render_form

    @default("options_from_form")  # type: ignore[untyped-decorator]
    def _default_options_from_form(self) -> Any:
        return self._checked_form

    @default("apply_user_options")  # type: ignore[untyped-decorator]
    def _default_apply_user_options(self) -> Any:
        return type(self)._apply

    @default("will_resume")  # type: ignore[untyped-decorator]
    def _default_will_resume(self) -> bool:
        return True

    @default("server_token_scopes")  # type: ignore[untyped-decorator]
    def _default_server_token_scopes(self) -> list[str]:
        return list(SERVER_SCOPES)

    def default_choice(self) -> ServerOptions:
        """What is preselected: the configured defaults, moved inside the configured limits."""
        tier = self.default_tier
        if tier not in self.allowed_tiers and self.allowed_tiers:
            tier = self.allowed_tiers[0]
        return ServerOptions(tier, min(self.default_devices, self.max_devices))

    def check_options(self, user_options: object) -> ServerOptions:
        """`user_options` as a valid choice; raises the refusal to show when it is not one."""
        try:
            return parse(
                user_options,
                default=self.default_choice(),
                allowed_tiers=self.allowed_tiers,
                max_devices=self.max_devices,
                extra_keys=self.extra_user_options,
            )
        except OptionsError as error:
            raise spawn_refused(str(error), reason="singularity_options") from None

    async def _render_form(self) -> str:
        """The Hub calls it (as ``options_form(spawner)``) each time the spawn page is shown."""
        view: form.ClusterView | None = None
        waits = ""
        client = self._client(timeout=2.0)
        if client is not None:
            try:
                view = form.cluster_view(await client.cluster(), self._elastic())
                waits = await self._what_waits()
            except SingularityError as error:
                self._hub_log.warning("The spawn form cannot show free devices: %s", error.message)
        preselected = self.default_choice()
        try:
            preselected = self.check_options(self.user_options or {})
        except Exception as error:
            self._hub_log.debug("The last choice is not offered again: %s", error)
        return form.render(
            preselected,
            cluster=view,
            max_devices=self.max_devices,
            allowed_tiers=self.allowed_tiers,
            waits=waits,
        )

    def _elastic(self) -> bool:
        """Whether notebooks of the server are given a scale policy by its environment."""
        said = self.environment.get("SINGULARITY_ELASTIC", "")
        return isinstance(said, str) and said.lower() in ("1", "true", "yes")

    def _checked_form(self, form_data: dict[str, Any]) -> dict[str, Any]:
        """The Hub's `options_from_form`. Refuses bad input here already, so that it is not kept
        as the default of the next start."""
        options = from_form(form_data)
        self.check_options(options)
        return options

    def _apply(self, user_options: object) -> None:
        """The Hub's `apply_user_options`, for options from the form, the query and REST alike."""
        try:
            self.choice = self.check_options(user_options)
        except Exception:
            # The Hub has stored these options as the default for starts without any.
            self._forget_user_options()
            raise

    def _forget_user_options(self) -> None:
        self.user_options: dict[str, Any] = {}
        orm_spawner = getattr(self, "orm_spawner", None)
        if orm_spawner is not None:
            orm_spawner.user_options = None

    # -- start, progress, stop --------------------------------------------------------------

    async def start(self) -> Any:
        """Ask the service, then start the server the way the class below does."""
        story = self._story = StartStory()
        try:
            # Again: a deployment may have put its own hook in the place of `_apply`.
            self._apply(getattr(self, "user_options", None) or {})
            assert self.choice is not None
            await self._admit(self.choice, story)
            await removals.finished(self.user.name, self.name or "", self.service_timeout)
            if sentence := await self._what_waits():
                story.say(20, sentence)
            await self.before_start(story)
            story.say(40, "Starting the notebook server.")
            started = super().start()
            result = await started if isawaitable(started) else started
        except BaseException:
            story.end()
            raise
        self._release_due = True
        story.say(70, "The notebook server starts; waiting for its first answer.")
        story.end()
        return result

    async def _what_waits(self) -> str:
        """Say how many notebooks of this server wait in the store; "": none, or it is not known."""
        client = self._client(timeout=2.0)
        if client is None or not self.hibernating:
            return ""
        try:
            waiting = await client.suspended(self.user.name, self.name or "")
        except SingularityError as error:
            self._hub_log.debug("What waits for the server is not known: %s", error)
            return ""
        return hibernation.waiting_sentence(waiting)

    async def before_start(self, story: StartStory) -> None:
        """For subclasses: work after the service said yes and before the server starts."""

    async def _admit(self, choice: ServerOptions, story: StartStory) -> None:
        noun = "device" if choice.devices == 1 else "devices"
        story.say(
            5, f"Asking the scheduler about {choice.devices} {noun} at the {choice.tier} tier."
        )
        view = form.cluster_view(await self.ask_service("cluster", story))
        try:
            check_capacity(choice, view.devices)
        except OptionsError as error:
            self._forget_user_options()
            raise spawn_refused(str(error), reason="singularity_capacity") from None
        # Who calls the service itself is held to the same as who uses the form.
        await self.ask_service("set_tiers", story, self.user.name, self.allowed_tiers)
        later = (
            "A device is taken at the first device call."
            if view.free >= choice.devices
            else "They are busy: the first device call waits for its turn, or takes an idle one."
        )
        story.say(15, f"{view.sentence()} {later}")

    async def ask_service(self, method: str, story: StartStory, *args: Any) -> Any:
        """`await client.<method>(*args)`, trying again until `service_timeout`; raises the
        refusal to show to the user. Used while a server starts."""
        client = self._client()
        if client is None:
            raise spawn_refused(
                "This Hub does not know its Singularity service, so the server was not started: "
                "the administrator has to call singularity_spawner.configure(c) in the Hub's "
                "configuration.",
                reason="singularity_unconfigured",
                status=500,
            )
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.service_timeout
        while True:
            try:
                return await getattr(client, method)(*args)
            except Unavailable as error:
                if loop.time() >= give_up:
                    raise spawn_refused(
                        "The scheduler service does not answer, so the server was not started; "
                        f"try again in a minute ({error.message}).",
                        reason="singularity_unavailable",
                        status=503,
                    ) from None
                story.say(None, "Waiting for the scheduler service, which does not answer yet.")
            except SingularityError as error:
                raise spawn_refused(
                    error.message,
                    reason=f"singularity_{error.reason}",
                    status=error.http_status,
                ) from None
            await asyncio.sleep(0.5)

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """The Hub's progress page: our steps first, then those of the class below."""
        story = self._story
        for _ in range(100):  # the page may ask before `start` began
            if story is not None:
                break
            await asyncio.sleep(0.05)
            story = self._story
        if story is not None:
            async for event in story.events():
                yield event
        below: AsyncIterator[dict[str, Any]] = super().progress()
        async for event in below:
            # A Spawner that knows nothing better says "Spawning server..." at 50 %.
            if event.get("message") != "Spawning server...":
                yield event
        seconds = 0
        while True:  # the Hub ends this generator as soon as the server is there
            await asyncio.sleep(2)
            seconds += 2
            yield {
                "progress": min(95, 70 + seconds),
                "message": f"Waiting for the notebook server to answer ({seconds} s).",
            }

    async def stop(self, now: bool = False) -> None:
        """Suspend the server's sessions, stop it, and end those that cannot be suspended.

        While it lives, the server passes on what its kernels still say. What ends does so after
        it: it would restart the kernels."""
        until = time.monotonic() + self.hibernate_timeout
        found = await self._hibernated(self.hibernate_timeout)
        try:
            await super().stop(now=now)
        finally:
            if found is not None:  # a page that was still open may have called some back
                left = max(self.release_timeout, until - time.monotonic())
                found = found.and_then(await self._hibernated(left))
            await self.release(found)

    async def run_post_stop_hook(self) -> None:
        """The Hub calls it after every end of a server, also one that ended by itself (then
        without `stop`)."""
        if self._release_due:
            await self.release(await self._hibernated(self.hibernate_timeout))
        answer = super().run_post_stop_hook()
        if isawaitable(answer):
            await answer

    @property
    def hibernating(self) -> bool:
        """Whether this server's notebooks are suspended when it stops."""
        return bool(self.hibernate) and hibernation.can_hibernate(self.args)

    async def _hibernated(self, seconds: float) -> hibernation.Hibernation | None:
        """Suspend the sessions of this server and wait so long for it; None where it does not
        hibernate."""
        client = self._client(timeout=self.release_timeout)
        if client is None or not self.hibernating:
            return None
        found = await hibernation.hibernate(client, self.user.name, self.name or "", seconds)
        for sentence in found.sentences(self._server_title()):
            self._hub_log.info("%s", sentence)
        return found

    async def release(self, found: hibernation.Hibernation | None = None) -> None:
        """End the sessions of this server at the service, or of those that were to be suspended
        (`found`) the ones that cannot be; a failure is logged, never raised."""
        self._release_due = False
        if found is None:
            await self._end(None)
        elif found.to_end:
            await self._end(found.to_end)

    async def delete_forever(self) -> None:
        """The Hub calls it when the server is removed or its user deleted: nothing comes back, so
        its notebooks end, suspended or not; while the scheduler is away, later."""
        await self._end(None, "was removed", forever=True)
        answer = super().delete_forever()
        if isawaitable(answer):
            await answer

    async def _end(
        self, only: dict[str, str] | None, what: str = "was stopped", forever: bool = False
    ) -> None:
        client, user, server = self._client(self.release_timeout), self.user.name, self.name or ""
        if client is None:
            return
        title, mine = self._server_title(), partial(hibernation.belongs, user=user, server=server)
        reason = f"the notebook server of {title} {what}"
        end = partial(hibernation.end_sessions, client, mine, reason, only)
        try:
            ended = await asyncio.wait_for(end(), self.release_timeout)
            if forever and ended:
                self._hub_log.warning("%s", hibernation.removed_sentence(title, ended))
        except (SingularityError, asyncio.TimeoutError, TimeoutError) as error:
            later = "ended when the scheduler answers" if forever else "left to their leases"
            self._hub_log.warning("The sessions of %s are %s: %s", title, later, error)
            if forever:
                removals.repeat(user, server, end)

    # -- command line, environment and state ------------------------------------------------

    def get_args(self) -> list[str]:
        """The server's command line: with our kernel manager, if it is to hibernate."""
        args = list(super().get_args())
        return [*args, *(hibernation.server_arguments(args) if self.hibernating else [])]

    def get_env(self) -> dict[str, str]:
        """The server's environment: where the service is, the choice, no device of its own."""
        env: dict[str, str] = super().get_env()
        choice = self.choice or self.default_choice()
        env.update(
            SINGULARITY_API_URL=self.server_api_url or self.service_url,
            SINGULARITY_TIER=choice.tier,
            SINGULARITY_DEVICES=str(choice.devices),
            # Every kernel becomes a session, whatever its kernelspec says or leaves out.
            JUPYTER_DEFAULT_PROVISIONER_NAME="singularity",
            # The server itself never opens a device.
            CUDA_VISIBLE_DEVICES="",
        )
        if self.max_age_s:
            env["SINGULARITY_SERVER_UNTIL"] = f"{time.time() + self.max_age_s:.0f}"
        return env

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.choice is not None:
            state["singularity"] = self.choice.to_json()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        saved = state.get("singularity")
        if saved:
            self.choice = ServerOptions(saved["tier"], saved["devices"])
            self._release_due = True

    def clear_state(self) -> None:
        super().clear_state()
        self.choice = None
        self._story = None  # the Hub clears the state before each start

    # -- plumbing ---------------------------------------------------------------------------

    def _client(self, timeout: float = 10.0) -> ServiceClient | None:
        if not self.service_url:
            return None
        return ServiceClient(self.service_url, self.service_token, timeout=timeout)

    def _server_title(self) -> str:
        return f"{self.user.name}/{self.name}" if self.name else str(self.user.name)

    @property
    def _hub_log(self) -> Any:
        return self.log


SERVER_SCOPES: tuple[str, ...] = (
    "users:activity!user",
    "access:servers!server",
    f"access:services!service={SERVICE_NAME}",
    USE_SCOPE,
)
"""Scopes of a single-user server's token."""
