"""Keeps one embedded PostgreSQL server for as long as any process uses it.

Run as a script of its own, standard library only: `embedded_keeper.py LOCK ALIVE OWNER SOCKET_DIR SERVER_ARGV...`.
It starts the server and waits for whichever comes first: the server ends by itself, or the exclusive lock on LOCK is
free, which means that no user is left (each user holds it shared, and the kernel drops a dead process's lock even after
SIGKILL). Then it stops the server, still holding the lock, so that a newcomer cannot attach to a server on its way out.
While it lives it holds ALIVE exclusively. OWNER is `uid:gid` to run the server as, or `-`; SOCKET_DIR is a temporary
directory to remove at the end, or `-`.

It decides nothing about data: where the cluster lives and how it is made is for `storage.embedded`. The failure it can
cause: killed itself, it leaves a server that nobody stops; the next start finds that out and restarts the server.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_FAST_SHUTDOWN_S = 30.0
_SHIELDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Run the server named by the arguments until it ends or nobody uses it; return its exit status."""
    users_path, alive_path, owner, socket_directory, *command = arguments
    # The keeper must outlive a Ctrl-C, a hang-up or a termination aimed at its users; the lock tells it when to end.
    for number in _SHIELDED:
        signal.signal(number, signal.SIG_IGN)
    alive = os.open(alive_path, os.O_RDWR)
    fcntl.flock(alive, fcntl.LOCK_EX)
    users = os.open(users_path, os.O_RDWR)
    user, group = (None, None) if owner == "-" else map(int, owner.split(":"))
    server = subprocess.Popen(
        command,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
        umask=0o077,
        preexec_fn=_default_signals,  # noqa: PLW1509  (no thread runs yet)
    )

    def stop_when_unused() -> None:
        fcntl.flock(users, fcntl.LOCK_EX)
        server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
        try:
            server.wait(_FAST_SHUTDOWN_S)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGQUIT)  # its immediate one: the next start recovers from the log

    threading.Thread(target=stop_when_unused, daemon=True).start()
    status = server.wait()
    if socket_directory != "-":
        with suppress(OSError):  # a socket left in it by a crash is not worth a failure
            Path(socket_directory).rmdir()
    return status


def _default_signals() -> None:
    # Ignored signals are inherited across exec, and PostgreSQL is stopped by exactly these.
    for number in _SHIELDED:
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
