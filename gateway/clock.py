"""The only importer of `time`: everything else is told what the time is."""

import time

monotonic = time.monotonic
"""Seconds on a clock that never jumps; its zero means nothing. All quota arithmetic uses this one."""

wall = time.time
"""Seconds since the epoch, for logs and events only; no decision is made by it."""
