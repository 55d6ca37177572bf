"""Train real models in real processes over a link: shared by ``demo`` and ``compare``."""
