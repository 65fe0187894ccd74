"""A filter for the kernel under which a process starts threads but no other process.

Processor time is counted by walking the tree of processes. A child whose parent ignores its death leaves that tree
without its seconds being added anywhere, so where the budget is in processor seconds there must be no children. The
filter is a classic BPF program as `man 2 seccomp` describes it; what it refuses fails with EPERM.
"""

from __future__ import annotations

import errno
import platform
import struct

# Of each machine: its number in linux/audit.h, `clone`, and older calls that only make processes.
_MACHINES = {"x86_64": (0xC000003E, 56, (57, 58)), "aarch64": (0xC00000B7, 220, ())}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_X32 = 0x40000000  # a second table of calls on x86_64

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in what the kernel shows of a call
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def threads_only() -> bytes | None:
    """The filter for this machine, `None` where we do not know its calls."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return None
    number, clone, older = machine
    # Each step: code, value, and where to go if it holds and if it does not; `None` is the next step.
    steps: list[tuple[int, int, str | None, str | None]] = [
        (_LOAD, _MACHINE, None, None),
        (_EQUAL, number, None, "refuse"),
        (_LOAD, _NUMBER, None, None),
        (_AT_LEAST, _X32, "refuse", None),
        # Its flags lie in memory, out of a filter's sight. Told that there is no such call, the C library uses `clone`.
        (_EQUAL, _CLONE3, "unknown", None),
        *((_EQUAL, call, "refuse", None) for call in older),
        (_EQUAL, clone, None, "allow"),
        (_LOAD, _FIRST_ARGUMENT, None, None),
        (_ANY_BIT, _CLONE_THREAD, "allow", "refuse"),
    ]
    ends = {"allow": _ALLOW, "refuse": _ERROR | errno.EPERM, "unknown": _ERROR | errno.ENOSYS}
    places = {name: len(steps) + index for index, name in enumerate(ends)}

    def jump(index: int, name: str | None) -> int:
        return 0 if name is None else places[name] - index - 1

    program = [(code, jump(i, yes), jump(i, no), value) for i, (code, value, yes, no) in enumerate(steps)]
    program += [(_RETURN, 0, 0, value) for value in ends.values()]
    return b"".join(struct.pack("=HBBI", *step) for step in program)
