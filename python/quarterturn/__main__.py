"""python -m quarterturn convert|quantize ...: the commands on checkpoints, without a wheel."""

import sys

from ._files import main

if __name__ == "__main__":
    sys.exit(main())
