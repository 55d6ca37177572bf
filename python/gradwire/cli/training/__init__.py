"""Real models trained in real processes over a link: what ``demo`` and ``compare`` share."""
