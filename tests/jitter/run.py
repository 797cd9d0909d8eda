"""Play tests while everything around them comes late: what waits for one thing and asserts another fails soon.

    make jitter                                               acceptance and integration tests, two at a time
    make jitter ARGS="tests/acceptance/test_demo_process.py"  these; whatever is not named below is for pytest
    make jitter ARGS="--seed 7 --late 0.2 --stop 1 -k cards"  other dice, more late events, longer stops

Random processes of the run (pytest, Atlas, the stand-ins, browsers, the PostgreSQL servers that tests start) are
stopped for a moment by ``stopper.py``, and event loops hear of events late by ``late.py``. A seed repeats the dice, not
what the machine does meanwhile. A server named by ``DATABASE_URL`` is not of the run.

The failure it can cause: none to other processes, and none is left stopped: the stopper continues all when this one
ends or dies, and this one does when the stopper dies. Exit code: pytest's; 128 + n after signal n; 2: not on Linux.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.jitter.stopper import STOPPED, Family, tell

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TESTS = ("tests/acceptance", "tests/integration")
POLL_S = 0.1
# For the fixtures of an interrupted pytest to take their servers down.
END_WITHIN_S = 60.0


def continue_all(run: Path) -> None:
    """Continue whatever of the run stands still, or is about to: a stop takes effect when its process has its turn."""
    family = Family(run)
    for seen in family.members():
        family.go_on(seen)


def play(run: Path, options: argparse.Namespace, pytest: list[str]) -> int:
    """Play pytest with these arguments; return its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run), os.environ.get("PYTHONPATH", str(ROOT))])}
    tests = subprocess.Popen(
        [sys.executable, "-m", "pytest", *pytest], cwd=ROOT, env=environment, start_new_session=True
    )
    # After pytest's exec: the stopper remembers who is not of the run. Its session is its own: Ctrl-C is for this one.
    command = [sys.executable, str(HERE / "stopper.py"), str(run), str(options.seed), str(options.stop)]
    stopper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    alone = False
    try:
        while tests.poll() is None:
            if stopper.poll() is not None and not alone:
                alone = True
                continue_all(run)
                print("jitter: the stopper ended before the tests; nothing is stopped any more", flush=True)
            time.sleep(POLL_S)
        return tests.returncode
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        assert stopper.stdin is not None
        stopper.stdin.close()
        stopper.wait()
        if tests.poll() is None:
            tests.send_signal(signal.SIGINT)
            try:
                tests.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                for seen in Family(run).members():
                    tell(seen, signal.SIGKILL)
                tests.wait()
        shutil.rmtree(run / STOPPED)  # nor is anything kept stopped that tests forgot
        continue_all(run)


def main(arguments: list[str]) -> int:
    """Play; return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, epilog="All other arguments are pytest's.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="of all dice")
    parser.add_argument("--stop", type=float, default=0.2, metavar="MEAN_S", help="how long a stop is; 0: none")
    parser.add_argument("--late", type=float, default=0.05, metavar="CHANCE", help="that an event is late; 0: none")
    options, given = parser.parse_known_args(arguments)
    if not (hasattr(os, "pidfd_open") and Path("/proc/self/stat").exists()):
        print("jitter: stopping processes safely needs Linux", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    named = any((ROOT / each.partition("::")[0]).exists() for each in given if not each.startswith("-"))
    said = f"jitter: --seed {options.seed} --stop {options.stop} --late {options.late}"
    print(said, flush=True)
    with tempfile.TemporaryDirectory(prefix="atlas-jitter-") as name:
        run = Path(name)
        (run / STOPPED).mkdir()
        (run / "chances.json").write_text(json.dumps({"seed": options.seed, "late": options.late}), "utf-8")
        shutil.copy(HERE / "late.py", run / "sitecustomize.py")
        code = play(run, options, ["-n", "2", "--dist", "loadfile", *given, *(() if named else TESTS)])
    print(said, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
