"""`python -m bilevel`: the same as the command `bilevel`."""

import sys

from bilevel.cli import main

sys.exit(main())
