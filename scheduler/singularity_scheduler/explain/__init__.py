"""Why a session is in its state, when it has what it waits for, and what is planned for it. Pure.

Reads the state of `core`, which never imports it; its sentences are those of `text`.
"""
