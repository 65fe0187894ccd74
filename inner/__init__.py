"""Level 1: edit one file, train for a fixed budget, score, keep or revert."""
