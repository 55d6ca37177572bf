"""Measure gradwire, other implementations and a plain copy in one process: ``make bench``."""
