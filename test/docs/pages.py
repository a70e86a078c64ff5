"""Which documents there are, and what stands in one: prose, code spans, blocks."""
import os
import re

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)


def documents():
    found = [os.path.join(ROOT, n) for n in os.listdir(ROOT) if n.endswith(".md")]
    for top in ("docs", "samples"):
        for folder, _, leaves in os.walk(os.path.join(ROOT, top)):
            found += [os.path.join(folder, n) for n in leaves
                      if n.endswith(".md")]
    return sorted(found)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def texts():
    """[(name from the repository root, text)] of all documents."""
    return [(os.path.relpath(path, ROOT), read(path)) for path in documents()]


def is_generated(text):
    """Pages made from sources say so at their beginning; what stands in them is
    checked where it comes from."""
    return re.match(r"<!-- Made by |# .*\n\nGenerated ", text) is not None


def blocks(text, *languages):
    """The fenced blocks in one of the languages."""
    return [body for language, body in FENCE.findall(text) if language in languages]


def prose(text):
    """The text without fenced and indented blocks."""
    text = FENCE.sub("", text)
    return re.sub(r"(?:^|(?<=\n\n))(?:    .*\n)+", "", text)


def spans(text):
    """The code spans of the prose, each on one line."""
    return [" ".join(span.split()) for paragraph in re.split(r"\n\s*\n", prose(text))
            for span in re.findall(r"`([^`]+)`", paragraph)]


def indented(text):
    """The lines of indented blocks."""
    return [line.strip() for line in
            re.findall(r"^    \S.*", FENCE.sub("", text), re.M)]


def sources(*ends, tops=None):
    """[(name, text)] of the repository's files that end so."""
    found = []
    for top in tops or sorted(os.listdir(ROOT)):
        if top.startswith(".") or top in ("build", "out"):
            continue
        place = os.path.join(ROOT, top)
        places = [place] if os.path.isfile(place) else [
            os.path.join(folder, leaf) for folder, _, leaves in os.walk(place)
            for leaf in leaves if "__pycache__" not in folder]
        found += [(os.path.relpath(p, ROOT), p) for p in sorted(places)
                  if p.endswith(ends)]
    return [(name, open(path, encoding="utf-8", errors="replace").read())
            for name, path in found]
