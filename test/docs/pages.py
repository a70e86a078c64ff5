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


def files():
    """The paths of the repository's files from its root, built ones and test data
    aside."""
    for folder, names, leaves in os.walk(ROOT):
        place = os.path.relpath(folder, ROOT)
        names[:] = sorted(n for n in names if n not in ("__pycache__", ".git") and
                          os.path.normpath(os.path.join(place, n)) not in
                          ("build", "out", "test/data"))
        for leaf in sorted(leaves):
            yield os.path.normpath(os.path.join(place, leaf))


def sources(*ends, tops=("",)):
    """[(name, text)] of the files under some folders whose names end so."""
    return [(name, read(os.path.join(ROOT, name))) for name in files()
            if name.endswith(ends) and name.startswith(tops)]


def shell_scripts():
    """[(name, text)] of the shell scripts, which may have no ending."""
    for name in files():
        path = os.path.join(ROOT, name)
        named = name.endswith(".sh")
        if named or "." not in os.path.basename(name) and os.access(path, os.X_OK):
            text = read(path)
            if named or re.match(r"#!.*\b(?:ba)?sh\b", text):
                yield name, text
