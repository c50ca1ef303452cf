"""Drives a running server with a trace, in one of the arms of `events.Arm`, and logs what happens (docs/replay.md).

`plan` and `content` are pure: when which operation is due, and what it sends. `arms` are the ways to the server,
`run` follows the plan, `recorder` writes the log.
"""
