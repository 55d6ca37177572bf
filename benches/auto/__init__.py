"""`attach(model, "auto")` beside every setting that can be chosen by hand."""
