"""The newest checkpoint of Lightning that is complete."""

import zipfile
from pathlib import Path


def newest_checkpoint(*folders: str | Path) -> str | None:
    """Of the .ckpt files in these folders, and in those below, the newest that is complete; or None.

        trainer.fit(module, loader, ckpt_path=newest_checkpoint("lightning_logs", "kept"))

    Sharded checkpoints, which are folders, are not looked at. Nothing is unpickled.
    """
    found = [path for folder in folders for path in Path(folder).rglob("*.ckpt") if path.is_file()]
    by_age = sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    # The table of contents stands at the end of a file.
    return next((str(path) for path in by_age if zipfile.is_zipfile(path)), None)
