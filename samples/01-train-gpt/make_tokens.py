#!/usr/bin/env python3
"""Writes text files as a stream of character tokens (uint16, little endian).

    make_tokens.py OUT.bin FILE...

Token 0 is the newline, 1 to 95 are the characters from space to tilde. A few
typographic characters become their ASCII relatives; others become '?'.
"""
import array
import sys

ASCII = str.maketrans({"\t": " ", "–": "-", "—": "-", "·": "-", "×": "x",
                       "→": ">", "►": ">", "─": "-", "│": "|", "├": "|",
                       "≤": "<", "≥": ">", "‘": "'", "’": "'", "“": '"',
                       "”": '"', "…": "."})


def tokens(text):
    for character in text.translate(ASCII):
        code = ord(character)
        yield 0 if character == "\n" else code - 31 if 32 <= code < 127 else 32


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    stream = array.array("H")
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            stream.extend(tokens(file.read()))
    if sys.byteorder == "big":
        stream.byteswap()
    with open(sys.argv[1], "wb") as file:
        stream.tofile(file)


if __name__ == "__main__":
    main()
