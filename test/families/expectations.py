"""What merakc must say of exports that it cannot train, or whose exporter lost
something: texts that must all be in its error, or one that must be in a warning
of `--check`."""

# (family, exporter), or the family for all of them.
REFUSED = {"mixtral": ["NonZero", "data"]}

# The same of what cannot be laid out as asked for (two microbatches), which
# `--check` does not know of.
REFUSED_LAYOUT = {
    # Exported as a loop over all bags of the batch.
    "embedding-bag-sum": ["needs the whole batch of", "use one microbatch"],
}

# By the note of export.py; TorchScript leaves no trace of the first two.
WARNED = {
    "detach is dropped": "detach",
    "label smoothing is dropped": "label smoothing",
    "batch norm is fused": "batch norm",
}


def refused(family, exporter):
    """Texts of the error, and those of `--check`; None if there is none."""
    def of(table):
        return table.get((family, exporter), table.get(family))
    return of(REFUSED) or of(REFUSED_LAYOUT), of(REFUSED)


def warned(note, exporter):
    """A text that a warning must hold, or None."""
    if exporter == "torchscript":
        return None
    return next((text for start, text in WARNED.items()
                 if note.startswith(start)), None)
