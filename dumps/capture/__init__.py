"""Look on while a framework trains; runs inside the training processes and changes nothing there.

Nothing here draws random numbers, writes into a tensor, keeps a graph or raises into training,
`RunStopped` under ``--stop-on error`` excepted. Imported are torch, safetensors, wrapt, pyarrow
(which the frameworks bring), `align.core`, the hook tables and the standard library, most of it
when it is first needed.
"""
