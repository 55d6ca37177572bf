"""Loss and bytes of DiLoCo beside dense data parallelism: ``python -m benches.diloco``."""
