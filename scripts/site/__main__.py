"""Builds the site, strictly: a warning of Sphinx is an error, and so is anything that a page would fetch."""

import argparse
import re
import sys
import time
from pathlib import Path

from scripts.site.navigation import ROOT

HOW_TO_GET_IT = "the site needs Sphinx, MyST and Furo: pip install 'flatout[docs]', or `make docs` in a clone"
# What a browser would load by itself; links that a reader may follow are not among them.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*"
    |<link\b[^>]*\bhref="(?:https?:)?//[^"]*"
    |(?:url\(|@import)\s*["']?(?:https?:)?//[^"')]*""",
    re.VERBOSE,
)


def build(out: Path, builder: str = "html") -> int:
    """Sphinx's exit code, 1 where there was a warning. The builder "dummy" reads all and writes nothing."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit(HOW_TO_GET_IT)
    words = ["-q", "-W", "--keep-going", "-n", "-E", "-b", builder, "-c", str(Path(__file__).parent)]
    return build_main([*words, "-d", str(out.parent / "site-doctrees"), str(ROOT), str(out)])


def fetched(out: Path) -> list[str]:
    """Pages and styles that would load something from another host, with what."""
    found = []
    for page in sorted((*out.rglob("*.html"), *out.rglob("*.css"))):
        hits = _FETCHED.finditer(page.read_text("utf-8"))
        found += [f"{page.relative_to(out)}: {hit[0]}" for hit in hits]
    return found


def main() -> None:
    """`python -m scripts.site [--out FOLDER] [--check]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/site")
    parser.add_argument("--check", action="store_true", help="look for mistakes, and write no page")
    given = parser.parse_args()
    out = given.out.resolve()
    began = time.monotonic()
    if build(out, "dummy" if given.check else "html"):
        sys.exit("the site has warnings: see above")
    if given.check:
        return
    if asked := fetched(out):
        sys.exit("pages must not fetch anything:\n" + "\n".join(asked))
    print(f"{out}/index.html in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
