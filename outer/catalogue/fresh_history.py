"""Fresh history: from time to time the model begins again, knowing nothing."""

from __future__ import annotations

from dataclasses import replace

from inner.history import History, Request


class FreshHistory:
    """Shows the model only what was tried since the last restart; the best surface stays.

    Long lists of failures draw a model into repeating them. Restarts come after 1, 1, 2, 1, 1, 2, 4, ... units of
    experiments: where the right length is unknown, that sequence is within a logarithmic factor of it.
    """

    unit = 4  # experiments

    def luby(self, turn: int) -> int:
        """The `turn`-th term of the sequence, from 1."""
        power = turn.bit_length()
        return 1 << (power - 1) if turn == (1 << power) - 1 else self.luby(turn - (1 << (power - 1)) + 1)

    def since_restart(self, history: History) -> int:
        """How many experiments came after the last restart; the baseline is none of them."""
        left, turn = len(history) - 1, 1
        while left >= self.unit * self.luby(turn):
            left -= self.unit * self.luby(turn)
            turn += 1
        return left

    def shape(self, history: History, request: Request) -> Request:
        """Hides what lies before the last restart."""
        return replace(request, show=self.since_restart(history))
