"""Draws docs/images/watch-example.svg, the view over a made-up server: `python -m scripts.watch_picture`."""

import asyncio
import re
from pathlib import Path

from flatout.monitor.view.app import WatchApp
from tests.fakes.watching import Standing, eight_gpus

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "watch-example.svg"


async def _drawn() -> str:
    app = WatchApp(Standing(eight_gpus()))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("down")
        await pilot.pause()
        return app.export_screenshot(title="flatout watch (an example, made up)")


def main() -> None:
    """Write the picture; it asks for no fonts over the network."""
    svg = re.sub(r"@font-face \{.*?\}", "", asyncio.run(_drawn()), flags=re.DOTALL)
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n")
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
