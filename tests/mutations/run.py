"""Break each safeguard in turn; the tests that guard it must notice.

Each ``tests/mutations/*.toml`` names one change: ``claim`` (what the safeguard promises), ``file``, ``old``, ``new``
(an exact text that stands there once) and ``tests`` (pytest node ids). One at a time it is applied to a copy of the
repository and its tests run there; a mutation whose tests still pass has survived, and the run fails.

    make mutants                       all
    make mutants ARGS="fence digest"   only those whose name contains one of the words
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "node_modules", "__pycache__", ".*_cache", ".hypothesis", "screens")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Mutation:
    """One safeguard broken."""

    name: str
    claim: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Break the safeguard in the copy; return the text that stood there."""
        path = root / self.file
        before = path.read_text("utf-8")
        found = before.count(self.old)
        if found != 1:
            raise SystemExit(f"{self.name}: its old text stands {found} times in {self.file}; it must stand once")
        path.write_text(before.replace(self.old, self.new), "utf-8")
        return before


def mutations(words: list[str]) -> Iterator[Mutation]:
    """Read the mutations whose name contains one of *words* (all, without words)."""
    for path in sorted(HERE.glob("*.toml")):
        if not words or any(word in path.stem for word in words):
            fields = tomllib.loads(path.read_text("utf-8"))
            yield Mutation(
                path.stem, fields["claim"], fields["file"], fields["old"], fields["new"], tuple(fields["tests"])
            )


def passes(root: Path, tests: tuple[str, ...]) -> tuple[bool, str]:
    """Run tests in the copy; return whether all passed, and the end of what was printed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    try:
        ended = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, "timed out"
    if ended.returncode not in (0, 1):
        # Neither passed nor failed: the tests could not be run, which proves nothing.
        raise SystemExit(
            f"pytest {' '.join(tests)} ended with {ended.returncode}:\n{ended.stdout[-3000:]}{ended.stderr[-2000:]}"
        )
    return ended.returncode == 0, ended.stdout[-3000:]


def main(words: list[str]) -> int:
    """Run; 0 when every mutation was noticed."""
    chosen = list(mutations(words))
    if not chosen:
        print("no such mutation")
        return 2
    survived: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder) / "atlas"
        shutil.copytree(REPOSITORY, root, ignore=LEFT_OUT)
        guards = tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
        sound, printed = passes(root, guards)
        if not sound:
            print(f"the tests fail without any mutation:\n{printed}")
            return 1
        for mutation in chosen:
            before = mutation.apply(root)
            try:
                alive, _ = passes(root, mutation.tests)
            finally:
                (root / mutation.file).write_text(before, "utf-8")
            print(f"{'SURVIVED' if alive else 'noticed ':<9} {mutation.name:<40} {mutation.claim}", flush=True)
            if alive:
                survived.append(mutation.name)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutations noticed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
