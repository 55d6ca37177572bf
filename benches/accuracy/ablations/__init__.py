"""Change one thing at a time: ``python -m benches.accuracy.ablations``."""
