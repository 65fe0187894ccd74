"""The front door: the command line of the laboratory."""
