"""What the pictures of docs/images have in common."""
from xml.sax.saxutils import escape

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"]


def label(x, y, text, anchor="start", colour="#333", size=12):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
            f'font-size="{size}">{escape(text)}</text>')


def svg(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{height}" font-family="sans-serif">\n'
            '<rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def bars(title, groups, unit, most):
    """Horizontal bars, a group below the other: title and rows (name, predicted,
    measured). What is longer than `most` is cut, with its number beside it."""
    left, length, step = 150, 520, 20
    parts, y = [label(10, 22, title)], 34
    for name, rows in groups:
        y += 16
        parts.append(label(10, y, name))
        for what, predicted, measured in rows:
            y += step
            cut = " ..." if measured > most else ""
            size = length * min(measured, most) / most
            parts.append(label(left - 8, y, what, "end"))
            parts.append(f'<rect x="{left}" y="{y - 11}" width="{size:.1f}" height="13" '
                         f'fill="{COLOURS[0]}"/>')
            if predicted <= most:
                at = left + length * predicted / most
                parts.append(f'<line x1="{at:.1f}" y1="{y - 14}" x2="{at:.1f}" '
                             f'y2="{y + 5}" stroke="{COLOURS[1]}" stroke-width="2"/>')
            end = max(size, length * min(predicted, most) / most)
            parts.append(label(left + end + 8, y, f"{measured:.1f} {unit}{cut}"))
        y += 14
    parts.append(label(left, y + 14, "bars: measured, lines: predicted", size=11))
    return svg(left + length + 110, y + 26, parts)
