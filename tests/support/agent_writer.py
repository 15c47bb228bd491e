"""Appends one line after another to a file on storage that all nodes share: which capsule it is in
(its pid namespace) and a number that counts on. Arguments: file, pause in seconds."""

from __future__ import annotations

import os
import sys
import time

number = 0
while True:
    number += 1
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.readlink('/proc/self/ns/pid')} {number}\n")
    time.sleep(float(sys.argv[2]))
