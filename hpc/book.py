#!/usr/bin/env python3
"""The book: docs/ and the documents beside it as pages for a browser, in target/book.

    hpc/book.py            builds it with mdbook, and checks every link of every page

docs/SUMMARY.md orders the pages. Documents of the repository that they link (ARCHITECTURE.md, …) become pages at the end; other
files that they link lie beside the pages. So a link means the same here as where the sources are looked at. Exits 5 without
mdbook, 1 where mdbook warns or a link leads nowhere. Python's standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
STAGE, BOOK = ROOT / "target/book-sources", ROOT / "target/book"
LIMIT_S = 300
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(#[^)\s]*)?(?=\))")


def fail(code, message):
    print(f"book: {message}", file=sys.stderr)
    sys.exit(code)


def place_of(path):
    """Where a file of the repository is staged: docs/ at the top, all else below `repository`."""
    place = path.relative_to(DOCS) if path.is_relative_to(DOCS) else Path("repository") / path.relative_to(ROOT)
    # What mdbook makes of a README is called index, but not in links to it.
    return place.with_name("index.md") if place.name == "README.md" else place


def is_local(target):
    return not re.match(r"[a-z]+:", target)


def stage(page, pages):
    """Writes a document where it is built, and all that it links; adds documents that it links to `pages`."""
    to = STAGE / "src" / place_of(page)

    def moved(link):
        target, anchor = link[1], link[2] or ""
        if not is_local(target):
            return link[0]
        path = (page.parent / target).resolve()
        if path.is_dir():
            path /= "README.md"
        if not path.is_file():
            fail(1, f"{page.relative_to(ROOT)}: no {target}")
        if path.suffix == ".md":
            if path not in pages:
                pages.append(path)
        else:
            copy = STAGE / "src" / place_of(path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        return os.path.relpath(STAGE / "src" / place_of(path), to.parent) + anchor

    # A folder without a README is a word and no link.
    text = re.sub(r"\[([^\]]*)\]\(([^)#\s]+/)\)", lambda m: m[0] if (page.parent / m[2] / "README.md").is_file() else m[1], page.read_text())
    # Comments about running blocks are not for readers.
    text = re.sub(r"<!-- setup\n.*?^-->\n|<!-- run:.*?-->\n", "", text, flags=re.S | re.M)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(LINK.sub(moved, text))


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


def broken_links():
    """Links of pages to files or anchors that are not there."""
    pages = {}
    for path in BOOK.rglob("*.html"):
        pages[path] = Page()
        pages[path].feed(path.read_text())
    broken = set()
    for path, page in pages.items():
        if path.name in ("print.html", "404.html", "toc.html"):
            continue  # Links of these are those of the others, from elsewhere.
        for link in filter(is_local, page.links):
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            file = (path.parent / target).resolve() if target else path
            there = file.is_file() and (not anchor or file not in pages or anchor in pages[file].anchors)
            if not there:
                broken.add(f"{path.relative_to(BOOK)}: {link}")
    return sorted(broken)


def main():
    mdbook = shutil.which("mdbook") or shutil.which("mdbook", path=os.path.expanduser("~/.cargo/bin"))
    if not mdbook:
        fail(5, "mdbook is not there; `cargo install mdbook --locked` installs it")
    shutil.rmtree(STAGE, ignore_errors=True)
    (STAGE / "src").mkdir(parents=True)
    summary = (DOCS / "SUMMARY.md").read_text()
    pages = [(DOCS / name).resolve() for name, _ in LINK.findall(summary)]
    ordered = len(pages)
    for page in pages:  # Grows while documents link others.
        if not page.is_file():
            fail(1, f"docs/SUMMARY.md: no {page.relative_to(ROOT)}")
        stage(page, pages)
    more = [page for page in pages[ordered:] if page != DOCS / "SUMMARY.md"]
    if stray := [page for page in more if page.is_relative_to(DOCS)]:
        fail(1, f"docs/SUMMARY.md does not name {', '.join(str(page.relative_to(DOCS)) for page in stray)}")
    summary = LINK.sub(lambda link: str(place_of((DOCS / link[1]).resolve())), summary)
    summary += "\n# The repository\n\n" + "".join(f"- [{page.relative_to(ROOT)}]({place_of(page)})\n" for page in sorted(more))
    (STAGE / "src/SUMMARY.md").write_text(summary)
    settings = (DOCS / "book.toml").read_text()
    (STAGE / "book.toml").write_text(settings.replace('src = "."', 'src = "src"'))
    shutil.rmtree(BOOK, ignore_errors=True)
    built = subprocess.run([mdbook, "build", STAGE, "--dest-dir", BOOK], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = built.stdout + built.stderr
    if built.returncode or re.search(r"\b(WARN|ERROR)\b", said):
        fail(1, said)
    if broken := broken_links():
        fail(1, "links that lead nowhere:\n" + "\n".join(broken))
    print(f"book: {len(pages)} pages, {BOOK.relative_to(ROOT)}/index.html")


main()
