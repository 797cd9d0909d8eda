"""``python -m bot``: the same as ``atlas``."""

import sys

from bot.cli import main

if __name__ == "__main__":
    sys.exit(main())
