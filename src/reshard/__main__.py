from __future__ import annotations

import sys

from reshard.cli import main

if __name__ == "__main__":
    sys.exit(main())
