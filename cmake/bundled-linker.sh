#!/bin/sh
# The linker that the wheel brings, with the libraries that it brings.
here=${0%/*}
LD_LIBRARY_PATH=$here/../lib exec "$here/../libexec/linker" "$@"
