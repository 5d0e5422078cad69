#!/usr/bin/env python3
"""Takes all of a core that it gets for a second; prints the name of its node and the percentage it got."""

import os
import time

start, cpu = time.monotonic(), time.process_time()
while time.monotonic() - start < 1:
    pass
share = (time.process_time() - cpu) / (time.monotonic() - start)
print(os.uname().nodename, round(100 * share, 1))
