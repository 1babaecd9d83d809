"""The child process that exports a module and reports each stage on a pipe, as JSON lines."""

import os
import sys
import threading
import time
import traceback
from typing import Any

import msgspec

from flatout.records.errors import FlatoutError
from flatout.records.packages import ExportOrder

_PARENT_CHECK_S = 0.5


def main(pipe: int, order: ExportOrder) -> None:
    """Export, and say how it went."""

    def send(event: dict[str, Any]) -> None:
        os.write(pipe, msgspec.json.encode(event) + b"\n")

    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    send({"event": "stage", "name": "importing torch"})
    # The user's modules lie in the folder that they are in.
    sys.path.insert(0, "")
    try:
        from flatout.infer.exporting.exporting import export_model

        made = export_model(order, lambda name: send({"event": "stage", "name": name}))
    except FlatoutError as error:
        traceback.print_exc()
        parts = {"received": error.received, "expected": error.expected, "remedy": error.remedy}
        send({"event": "failed", "kind": type(error).__name__, "exit_code": error.exit_code, **parts})
    else:
        send({"event": "done", "made": made})


def _follow_parent(parent: int) -> None:
    """End when the command that asked for this is gone."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ExportOrder))
