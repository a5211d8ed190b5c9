"""verl asks TRL for a class that newer ones lack: have it do without."""

import verl.models.transformers.monkey_patch as monkey_patch

monkey_patch.is_trl_available = lambda: False
