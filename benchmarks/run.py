"""Every benchmark, one after the other; ratios are of one run on one machine.

python -m benchmarks.run            # what `make bench` calls
python -m benchmarks.run report     # one of them
"""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "console_log",
    "rollouts",
    "layer_records",
    "report_render",
    "report",
    "stack_learning",
)


def main() -> None:
    """Run the benchmarks named on the command line, all by default."""
    names = sys.argv[1:] or BENCHMARKS
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    for name in names:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
