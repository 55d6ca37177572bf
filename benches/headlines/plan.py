"""Which trainings the headlines need, most telling first."""

from .trainings import DENSE, Training

SCALECOM, ADACOMP = "scalecom", "adacomp"
FEW, SOME, MANY = 2, 8, 64

RATES: dict[tuple[str, str], float] = {
    ("fully connected", DENSE): 0.2,
    ("fully connected", "scalecom"): 0.8,
    ("fully connected", "adacomp"): 0.8,
    ("large batch", DENSE): 0.4,
    ("large batch", "scalecom"): 1.6,
    ("digits", DENSE): 0.064,
    ("digits", "adacomp"): 0.512,
    ("fashion", DENSE): 0.2,
    ("fashion", "adacomp"): 1.6,
    ("lstm", DENSE): 0.004,
    ("lstm", "adacomp"): 0.004,
}
"""The highest learning rates: powers of two times a base, chosen after a few short trials.

The trials are not recorded, so nothing shows that a rate is the best one."""


_CONNECTED, _LARGE = "fully connected", "large batch"

_RUNS: tuple[tuple[str, str, str, int, int], ...] = (  # headline, setting, method, ranks, seed
    (SCALECOM, _CONNECTED, DENSE, FEW, 0),
    (SCALECOM, _CONNECTED, "scalecom 112", SOME, 0),
    (ADACOMP, _CONNECTED, DENSE, FEW, 0),
    (ADACOMP, _CONNECTED, "adacomp", FEW, 0),
    (ADACOMP, "digits", DENSE, FEW, 0),
    (ADACOMP, "digits", "adacomp", FEW, 0),
    (SCALECOM, _CONNECTED, "scalecom 400", SOME, 0),
    (ADACOMP, "lstm", DENSE, FEW, 0),
    (ADACOMP, "lstm", "adacomp", FEW, 0),
    (ADACOMP, "lstm", "adacomp of Adam's steps", FEW, 0),
    (SCALECOM, _CONNECTED, "scalecom 112", MANY, 0),
    (ADACOMP, "fashion", DENSE, FEW, 0),
    (ADACOMP, "fashion", "adacomp", FEW, 0),
    (SCALECOM, _LARGE, DENSE, FEW, 0),
    (SCALECOM, _LARGE, "scalecom 112", MANY, 0),
    (SCALECOM, _CONNECTED, "scalecom 65", SOME, 0),
    (SCALECOM, _CONNECTED, "scalecom 200", SOME, 0),
    (SCALECOM, _LARGE, "scalecom 112, beta 0.3", MANY, 0),
    (SCALECOM, _LARGE, "scalecom 112, beta 0.1", MANY, 0),
    (SCALECOM, _LARGE, "scalecom 400", MANY, 0),
    *(
        (SCALECOM, _CONNECTED, method, ranks, seed)
        for seed in (1,)
        for method, ranks in (
            (DENSE, FEW),
            *((f"scalecom {chunk}", SOME) for chunk in (65, 112, 200, 400)),
        )
    ),
)


def trainings(*headlines: str, quick: bool = False) -> list[Training]:
    """Return the runs of some headlines; those of simulated ranks alone have any."""
    found: dict[Training, None] = {}
    for headline, setting, method, ranks, seed in _RUNS:
        if headline in headlines:
            rate = RATES[setting, method.partition(" ")[0]]
            found[Training(setting, method, ranks, rate, seed, quick)] = None
    return list(found)[:2] if quick else list(found)
