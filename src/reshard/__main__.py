from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, the loading of which may be interrupted too."""
    try:
        from reshard.cli import main as run  # noqa: PLC0415  # where a signal finds somebody to say so

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
