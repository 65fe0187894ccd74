"""The errors a user can meet, as one tree.

    BilevelError
    ├── UserError           the way out is the user's: exit status 2
    │   ├── TaskError       a task file, a constant or a surface that does not hold
    │   ├── CorpusError     a corpus that is empty, not text, or damaged
    │   ├── LabError        a laboratory that is missing, of a newer schema, or not one
    │   │   └── BusyError   another process is writing to the laboratory
    │   └── MachineError    git, disk space, a GPU or a sandbox that this machine lacks
    ├── EditError           a proposal that does not apply to the surface: the experiment is `refused`
    ├── StrategyError       a strategy that broke its contract: costs its own experiment
    ├── TrialError          the machinery around an experiment failed: no fault of the experiment
    └── Stopped             asked to stop (Ctrl-C); everything recorded stays, `bilevel resume` goes on

A message is one line: what was found, where, and what to do.
"""


class BilevelError(Exception):
    """Whatever this laboratory raises on purpose."""


class UserError(BilevelError):
    """Something the user can mend."""


class TaskError(UserError):
    """A task file, a constant or a surface that does not hold."""


class CorpusError(UserError):
    """A corpus that is empty, not text, or damaged."""


class LabError(UserError):
    """A laboratory that is missing, of a newer schema, or not one."""


class BusyError(LabError):
    """Another process is writing to the laboratory."""


class MachineError(UserError):
    """Something this machine lacks: git, disk space, a GPU, a sandbox."""


class EditError(BilevelError):
    """A proposal that does not apply to the surface."""


class StrategyError(BilevelError):
    """A strategy that broke its contract."""


class TrialError(BilevelError):
    """The machinery around an experiment failed, through no fault of the experiment."""


class Stopped(BilevelError):
    """The user asked to stop."""
