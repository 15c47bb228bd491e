"""The chaos campaign: a real platform, real users, faults and verbs at random times, and what must
hold.

`./dev chaos` runs it; `CONTRIBUTING.md` says how to read what it reports. A schedule follows from
its seed alone (`schedule`), `world` is the platform under test, `sessions` what its users do,
`faults` and `verbs` what happens to them, `watch` and `settle` what must hold meanwhile and
afterwards.
"""
