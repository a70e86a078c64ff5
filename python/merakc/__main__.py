"""python -m merakc TOOL ...: the tools, where their commands are not in
PATH."""
import sys

from . import _tools


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in _tools.TOOLS:
        sys.exit(f"usage: python -m merakc {'|'.join(_tools.TOOLS)} ...")
    name = sys.argv.pop(1)
    _tools.main(name)


main()
