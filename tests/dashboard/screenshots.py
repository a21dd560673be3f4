"""Screenshots of the dashboard: ``python tests/dashboard/screenshots.py --dataset DIR --out DIR``.

Needs playwright and a ``chromium`` on the path. Without ``--dataset``, the synthetic one of the
tests is shown.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from conftest import Synthetic, chromium, serve

PAGES = ("", "regressions", "history")  # the start page has the bare address
SIZES = ((1280, 800), (390, 844))


def main() -> None:
    """Every page in both themes, wide and narrow, as ``<page>-<width>-<theme>.png``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", type=Path, help="dataset folder (default: a synthetic one)")
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="where they go")
    parser.add_argument(
        "--views", nargs="*", default=PAGES, help="e.g. 'incident?id=ID' (default: all pages)"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        dataset = args.dataset.resolve() if args.dataset else Synthetic().write(Path(scratch))
        with serve(dataset) as address:
            for dark in (False, True):
                for width, height in SIZES:
                    with chromium(width=width, height=height, dark=dark) as page:
                        for view in args.views:
                            shoot(page, f"{address}/{view}", args.out, view, width, dark)


def shoot(page, address: str, out: Path, view: str, width: int, dark: bool) -> None:
    page.goto(address)
    page.wait_for_selector("[data-testid=stStatusWidget]", state="detached")
    page.wait_for_selector("[data-testid=stMainBlockContainer] *")
    page.wait_for_timeout(1500)  # charts animate in
    name = re.sub(r"\W+", "-", view) or "today"
    path = out / f"{name}-{width}-{'dark' if dark else 'light'}.png"
    page.screenshot(path=path, full_page=True)
    print(path)


if __name__ == "__main__":
    main()
