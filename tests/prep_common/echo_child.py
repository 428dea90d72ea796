"""A child for tests: does what each record says."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from prep_common.parent_link import JsonLink


def main() -> None:
    link = JsonLink()
    while True:
        order = link.read()
        print("noise on stdout")
        match order["do"]:
            case "echo":
                link.write(order["value"])
            case "exit":
                print(order["say"], file=sys.stderr, flush=True)
                os._exit(order["code"])
            case "sleep":
                time.sleep(order["seconds"])
            case "start":
                link.write(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)


if __name__ == "__main__":
    main()
