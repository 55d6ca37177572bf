"""Training with every preset, side by side: ``python -m benches.presets``."""
