"""A program that takes custody of GPU 0's limit, sets it, says so, and waits for its end, or for orders.

Its standard input takes: `set MILLIWATTS`, `beat`, `end`. Each is answered by a line.
"""

import sys
from pathlib import Path

from flatout.hardware.nvidia.power import NvidiaPowerControl
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.power_limits import PowerControls, PowerRefused
from flatout.monitor.power.custody import PowerCustody, SomebodyElse


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    folder, limit_mw = Path(sys.argv[1]), int(sys.argv[2])
    silence_s = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    device = NvidiaSource().discover().devices[0]
    controls = PowerControls([NvidiaPowerControl()])
    with PowerCustody(controls, folder=folder, notice=say, silence_s=silence_s) as custody:
        custody.take(device)
        custody.set(device, limit_mw)
        say(f"holding {custody._watchdog.pid if custody._watchdog else 0}")
        for words in map(str.split, sys.stdin):
            try:
                if words[0] == "set":
                    custody.set(device, int(words[1]))
                elif words[0] == "beat":
                    custody.beat()
                elif words[0] == "end":
                    break
                say(f"did {custody._watchdog.pid if custody._watchdog else 0}")
            except (PowerRefused, SomebodyElse) as error:
                say(f"{type(error).__name__}: {error}")
    for found in custody.restored:
        say(found.words())


if __name__ == "__main__":
    main()
