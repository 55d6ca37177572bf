"""gradwire beside its peers and a plain copy, measured in one process: ``make bench``."""
