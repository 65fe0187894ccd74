"""Our own speed: each module prints its figures and its machine, and never passes or fails."""
