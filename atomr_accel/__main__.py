"""``python -m atomr_accel`` is the command ``atomr-accel``."""

import sys

from .cli._main import main

if __name__ == "__main__":
    sys.exit(main())
