"""Where a capture looks on in MindSpeed-RL; names and signatures are those of 2.3.0 and master."""

from __future__ import annotations

from align.frameworks.hook_point import HookPoint

_PACKAGE = "mindspeed_rl"
_WORKER = "mindspeed_rl.workers.actor_hybrid_worker"


HOOKS = ()
