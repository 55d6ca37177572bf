"""Benchmarks of the installed package, run by asv on each commit."""
