"""Change one thing at a time: ``make ablations``."""
