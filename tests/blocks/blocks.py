"""Fenced blocks of a Markdown document, and what the comment before each says about running it.

A block is what its fence says: `sh` is run, `text` after it is what it prints, `toml` is a job file or a part of one, `python`
is run. A comment on the lines before the fence says more, clauses with semicolons between them:

    <!-- run: skip, WHY -->             not run (sh: parsed alone); WHY is printed and counted
    <!-- run: file NAME -->             its lines are the file NAME of the blocks that follow
    <!-- run: schema FILE.csv -->       toml: a schema, with which that file is prepared
    <!-- run: cluster -->               toml: a cluster file, on which a job is simulated
    <!-- run: ranks N -->               toml: the job is planned for N ranks; default 4
    <!-- run: exit N -->                sh: ends with this code
    <!-- run: args WORD… -->            python: its arguments
    <!-- run: after -->                 python: goes on where the block of Python before it ended
    <!-- run: same FILE -->             its lines stand in FILE, which is tested
    <!-- run: if verb NAME -->          as long as the program has no such verb, skipped

A comment `<!-- setup` … `-->` between blocks is run as `sh` and not shown: it makes files that a reader would have. One
`<!-- run: skip all, WHY -->` at the top of a document is for all of its blocks.

Invariant: every fence opens a block with a language, and is closed.
"""

import re
from dataclasses import dataclass, field

LANGUAGES = ("sh", "text", "toml", "python", "rust", "json")
CLAUSES = ("skip", "file", "schema", "cluster", "ranks", "exit", "args", "after", "same", "if")


class Mistake(Exception):
    """A document that does not follow the rules, with its line."""


@dataclass
class Block:
    """One block: its language, its lines, where it stands, its clauses by name."""

    document: str
    line: int
    language: str
    text: str
    clauses: dict = field(default_factory=dict)
    # A set-up: run, and neither shown nor counted.
    hidden: bool = False

    @property
    def place(self):
        return f"{self.document}:{self.line}"


def clauses_of(text, place):
    """The clauses of a comment: name → the rest."""
    found = {}
    # What follows "skip," is prose, semicolons and all.
    parts = [text] if text.startswith("skip") else text.split(";")
    for part in parts:
        name, _, rest = part.strip().partition(" ")
        name = name.rstrip(",")
        if name not in CLAUSES:
            raise Mistake(f"{place}: no clause `{name}`; expected one of {', '.join(CLAUSES)}")
        found[name] = rest.strip()
    if "skip" in found and not found["skip"]:
        raise Mistake(f"{place}: a skip says why: <!-- run: skip, WHY -->")
    return found


def blocks_of(document, text):
    """All blocks of a document in their order."""
    found, clauses, skip_all = [], {}, None
    previous, in_list = "", False
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        place = f"{document}:{number}"
        comment = re.fullmatch(r"\s*<!-- run: (.*?) -->\s*", line)
        fence = re.fullmatch(r"(\s*)(```+)(.*)", line)
        if comment and comment[1].startswith("skip all,"):
            skip_all = comment[1].removeprefix("skip all,").strip()
        elif comment:
            clauses |= clauses_of(comment[1], place)
        elif line.strip() == "<!-- setup":
            body = []
            for _, inner in lines:
                if inner.strip() == "-->":
                    break
                body.append(inner)
            else:
                raise Mistake(f"{place}: this set-up does not end with -->")
            found.append(Block(document, number, "sh", "\n".join(body) + "\n", hidden=True))
        elif fence:
            indent, ticks, language = fence[1], fence[2], fence[3].strip()
            if language not in LANGUAGES:
                raise Mistake(f"{place}: the fence has `{language}`; expected one of {', '.join(LANGUAGES)}")
            body = []
            for _, inner in lines:
                if inner.strip() == ticks:
                    break
                body.append(inner.removeprefix(indent))
            else:
                raise Mistake(f"{place}: this block does not end")
            if skip_all is not None:
                clauses = {"skip": skip_all}
            found.append(Block(document, number, language, "\n".join(body) + "\n", clauses))
            clauses = {}
        elif line.strip() and clauses:
            raise Mistake(f"{place}: a comment `run:` stands right before a fence")
        elif re.match(r"    \S", line) and not previous.strip() and not in_list:
            raise Mistake(f"{place}: an indented block; use a fence with a language")
        if line.strip() and not line.startswith(" "):
            in_list = bool(re.match(r"([-*]|\d+\.) ", line))
        previous = line
    return found
