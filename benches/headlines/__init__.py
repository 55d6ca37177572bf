"""What papers claim, beside what is measured here: ``python -m benches.headlines``."""
