"""Python's garbage collector, set for a process that lives long and makes many small records a second.

Decides: how often it looks. As it comes, it walks through everything young after each 700 new objects, which took a
sixth of the client's time of a step; what is there after the start lives as long as the process. Does not: turn it off:
cycles (an error with its frames, a task with its waiter) are still collected. The failure it can cause: some ten
megabytes of garbage more, until the next look.
"""

import gc

YOUNG, MIDDLE, OLD = 20_000, 50, 100


def settle() -> None:
    """Leave what exists now to itself, and look more rarely. Once, when the process has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
