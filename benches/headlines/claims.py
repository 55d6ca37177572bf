"""What the papers claim, each with where it says so."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A headline of a paper.

    Attributes
    ----------
    name : str
        Of the measurements here.
    figure : str
        What is claimed.
    quantity : str
        What the figure is of: against what, on which model, with which accounting.
    source : str
        Where the paper says so.
    """

    name: str
    paper: str
    figure: str
    quantity: str
    source: str


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "scalecom",
        "ScaleCom, NeurIPS 2020",
        "65–400 ×, up to 64 learners",
        "entries over entries sent, at the accuracy of dense training: 92 to 155 × for "
        "convolutional networks, 47 to 115 × for a transformer, 400 × for an LSTM with 4 learners "
        "(100 × with 12); 64 learners with 32 images each at 96 to 155 ×, with the filter at 0.1",
        "abstract; tables 2 and 3",
    ),
    Claim(
        "adacomp",
        "AdaComp, AAAI 2018",
        "about 40 × and 200 ×",
        "32 bits an entry over 8 or 16 bits an entry sent, without headers: 40 × for convolutions "
        "(bins of 50), 200 × for fully connected and recurrent layers (bins of 500), without "
        "noticeable loss of accuracy",
        "abstract; section 3",
    ),
    Claim(
        "accordion",
        "Accordion, MLSys 2021",
        "up to 5.5 × and 4.1 ×",
        "floats sent, and time of training, of the low compression over the schedule, at its "
        "accuracy",
        "abstract",
    ),
    Claim(
        "sidco",
        "SIDCo, MLSys 2021",
        "up to 41.7 ×, 7.6 × and 1.9 ×",
        "training speed over no compression, Top-k and DGC: the best of six models (the largest of "
        "them recurrent, nearly all of whose step is communication), at ratios of 0.1, 0.01 and "
        "0.001, with 8 GPUs",
        "abstract",
    ),
    Claim(
        "dryden",
        "Dryden et al., MLHPC 2016",
        "about 10.9 ×",
        "time of a dense all-reduce over that of an adaptively quantised one, synthetic data, at "
        "the largest scale",
        "poster",
    ),
)
