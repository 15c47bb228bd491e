"""The names of the policy's rules: what a change or an action says it was decided by.

One table, because histories, metrics (a label value each) and the event schemas show them.
"""

from __future__ import annotations

RULES: dict[str, str] = {
    "submit": "a run was accepted into the queue",
    "start": "a session's process is started",
    "queue.admit": "the runs before it leave a queued run room, so it starts",
    "queue.grant": "free devices are given to the head of the queue",
    "preempt.idle": "an idle notebook gives its devices to a session that waits",
    "preempt.tier": "a busy session gives its devices to one of a higher tier",
    "device.lazy": "code called a device, so its session waits for one",
    "device.withdrawn": "nothing in the session needs a device any more",
    "device.attached": "devices were attached",
    "device.attach_failed": "devices could not be attached",
    "device.parked": "device state was saved and the devices freed",
    "device.park_failed": "device state could not be saved",
    "user.park": "somebody asked to park",
    "user.preempt": "somebody took the devices away until a resume",
    "user.resume": "somebody asked for the devices",
    "user.migrate": "somebody asked for other devices",
    "user.checkpoint": "somebody asked for a checkpoint",
    "user.end": "somebody ended the session",
    "process.live": "the session's process runs",
    "process.exited": "the session's process ended",
    "process.ended": "the node agent removed what was left of the session",
    "lease.lapsed": "a node agent did not hear from the scheduler in time",
    "lease.reaped": "a silent node lost its leases",
    "proxy.recovered": "a device proxy was rebuilt after a crash",
    "proxy.failed": "a device proxy could not be rebuilt",
    "proxy.gave_up": "a call that ended one device proxy after another was made to fail",
    "proxy.silent": "a device proxy does not answer",
    "proxy.answers": "a silent device proxy answers again",
    "device.drained": "a device is unwell or was drained, so its session leaves it",
    "device.working": "one operation keeps a device busy for long",
    "agent.restarted": "a node agent no longer knows the session",
    "recover": "ledger and node agent were put right after one of them was away",
}
"""Name -> when it decides."""
