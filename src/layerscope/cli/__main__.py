"""`python -m layerscope.cli` is the `layerscope` command."""

import sys

from layerscope.cli.main import main

sys.exit(main())
