"""Makes the curves of the small study, and waits to be killed once there are two."""

import sys
import time
from pathlib import Path

from benches.accuracy.pool import Pool
from benches.study import curves
from benches.study.curves import Asked
from benches.study.store import Store
from tests.benches.study.made import PLAN, accuracy, pretend


def main() -> None:
    curves._accuracy = accuracy  # type: ignore[assignment]
    kept = Store(Path(sys.argv[1]))

    def tell(run, record) -> None:
        if len(kept.records) == 2:
            print("two", flush=True)
            time.sleep(3600)

    with Pool(1, target=pretend) as pool:
        pool.make(Asked(PLAN, kept, lambda: False), tell)


if __name__ == "__main__":
    main()
