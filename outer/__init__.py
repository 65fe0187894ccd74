"""Levels 2 and 3: read the traces, rewrite the search strategy, keep it only if it searches better."""
