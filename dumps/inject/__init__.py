"""Feed recorded rollouts into a framework while it trains; runs inside the training processes.

Where a capture must never stop a run, a replay must never let a doubtful one go on: whatever does
not fit is written down and raised. Imported are torch, wrapt, pyarrow (which the frameworks bring),
`align.core`, the hook tables, `dumps` and the standard library.
"""
