"""Pack trained models at a few bits a weight, and time what reads them: ``make weights``."""
