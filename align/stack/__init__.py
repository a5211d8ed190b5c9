"""The bundled training stack: small, deterministic, readable top to bottom.

Read `train.py` first; every stage it calls is one module, and `pipeline.py` lists them. It is a
referee when two devices disagree, a source of runs with one known fault, and an example.
"""
