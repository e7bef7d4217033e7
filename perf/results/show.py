# SPDX-License-Identifier: Apache-2.0
"""Numbers, tables and pictures, as the parts of the page share them."""
import statistics



def pyplot():
    """Loaded when something is drawn: it takes a second."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "libcache"  # the same figures give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words
    import matplotlib.pyplot
    return matplotlib.pyplot


def number(value):
    """Three digits that count; more in front of the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def median(values):
    return statistics.median(values)


def spread(values):
    """Half the distance between the quartiles, by the median, in percent."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return 100 * (high - low) / 2 / statistics.median(values)


def cell(*lists):
    """Medians, with the largest of their spreads."""
    return " / ".join(number(median(values)) for values in lists) + f" ±{max(map(spread, lists)):.0f} %"


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot().close(figure)
