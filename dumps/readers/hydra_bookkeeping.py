"""``hydra.yaml`` of a Hydra run folder: Hydra's own settings, no configuration of the run.

It states the version of Hydra, and is recognised so that nobody takes it for a configuration.
"""

from __future__ import annotations

import re
from pathlib import Path

from align.core.environment import EnvironmentFact, EnvironmentFacts
from align.core.finding import Evidence, Side
from align.core.run import ArtifactKind
from dumps.readers.config_text import read_config_text
from dumps.readers.leaf import dotted
from dumps.readers.reader import Glimpse, Progress, Reader
from dumps.readers.yaml_leaves import parse_yaml

_START = re.compile(rb"(?:\xef\xbb\xbf)?hydra:\r?\n  (?:run|sweep|launcher|mode|searchpath):")


def _sniff(glimpse: Glimpse) -> bool:
    return _START.match(glimpse.head) is not None


def read_hydra_bookkeeping(path: Path, progress: Progress) -> EnvironmentFacts:
    """Return the version of Hydra that started the run.

    Raises:
        ConfigError: Nothing in the file is YAML.
    """
    document = parse_yaml(read_config_text(path, progress), where=str(path))
    facts = {}
    for leaf in document.leaves:
        if leaf.path == ("hydra", "runtime", "version"):
            text = leaf.text.strip()
            evidence = Evidence(str(path), Side.BOTH, leaf.line, dotted(leaf.path), text)
            facts["hydra"] = EnvironmentFact("hydra", str(leaf.value), evidence)
    return EnvironmentFacts(str(path), facts)


READER = Reader(
    "hydra_bookkeeping", ArtifactKind.ENVIRONMENT, _sniff, read_hydra_bookkeeping, priority=20
)
