"""The benches and the soak over emulated kernels, for a moment: a visit is tried with them.

python3 -m tests.gpu.emulated bench | soak --out FILE
"""

import argparse
import sys
from pathlib import Path

from benches.compare.timing import timed
from benches.gpu import __main__ as bench
from benches.gpu.measure import SECTIONS
from benches.gpu.measure import Setup as Bench
from tests.csrc.emulated.operators import emulate
from tests.gpu import soak

BENCH = Bench("cpu", timed, 5003, rounds=1, warm_up=1)
SOAK = soak.Setup("cpu", numel=700, large=3000, seconds=0.0, least=4, least_large=2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bench", "soak"))
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    emulate()
    if chosen.what == "bench":
        return 1 if bench.measure(BENCH, list(SECTIONS), chosen.out)[1]["failed"] else 0
    scenarios = soak.soak(SOAK, chosen.out)["scenarios"].values()
    return 0 if all(each["outcome"] == "passed" for each in scenarios) else 1


if __name__ == "__main__":
    sys.exit(main())
