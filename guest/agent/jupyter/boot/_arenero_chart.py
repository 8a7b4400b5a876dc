"""Describes a matplotlib figure as data: what was drawn, not how it looks."""
import functools
import json
import math
import re

MAX_POINTS = 10_000  # of one series
MAX_SERIES = 100  # of one chart
MAX_CHARTS = 64  # of one figure
MAX_TOTAL = 40_000  # points of one figure, what fits MAX_BYTES
MAX_TICKS = 200
MAX_TEXT = 500
MAX_BYTES = 1 << 20
_UNIT = re.compile(r"^.*\S\s*[(\[]\s*([^()\[\]]+?)\s*[)\]]\s*$", re.S)


def watch(axes):
    """Keeps the numbers of box plots and pies, which the artists lose."""

    def keep(name, remember):
        original = getattr(axes, name)

        @functools.wraps(original)
        def wrapper(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            try:
                remember(self, result, *args, **kwargs)
            except Exception:
                pass
            return result

        setattr(axes, name, wrapper)

    def boxes(self, result, bxpstats, positions=None, *args, **kwargs):
        stats = list(bxpstats)
        flat = kwargs.get("orientation") == "horizontal" or kwargs.get("vert") is False
        places = positions if positions is not None else range(1, len(stats) + 1)
        self.__dict__.setdefault("_arenero_boxes", []).extend((b, float(p), flat) for b, p in zip(stats, places))

    def pie(self, result, x, *args, **kwargs):
        wedges = result.wedges if hasattr(result, "wedges") else result[0]
        self.__dict__.setdefault("_arenero_pie", []).extend(zip(wedges, (float(v) for v in x)))

    keep("bxp", boxes)
    keep("pie", pie)


def describe(figure):
    """Returns the JSON text of a figure's chart, None when it has no axes."""
    axes = [ax for ax in figure.axes if ax.get_visible() and ax.get_label() != "<colorbar>"][:MAX_CHARTS]
    if not axes:
        return None
    drawn = sum(len(ax.lines) + len(ax.collections) + len(ax.containers) for ax in axes)
    for most in (min(MAX_POINTS, MAX_TOTAL // max(1, drawn)), 1000, 100, 0):
        charts = [_axes(ax, most) for ax in axes]
        if len(charts) == 1:
            chart = charts[0]
        else:
            title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
            chart = {"type": "superchart", "title": _text(title), "charts": charts}
        text = json.dumps(chart, allow_nan=False)
        if len(text) <= MAX_BYTES:
            return text
    return None


def _axes(ax, most):
    chart = {"title": _text(ax.get_title() or ax.get_title("left") or ax.get_title("right"))}
    for side, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        label = _text(axis.get_label().get_text())
        chart[side + "_label"] = label
        if unit := _UNIT.match(label):
            chart[side + "_unit"] = unit.group(1)
        chart[side + "_scale"] = _scale(axis)
        chart[side + "_ticks"] = _ticks(axis)
    chart["type"], chart["series"] = _series(ax, most)
    if chart["type"] in ("pie", "unknown"):
        for side in "xy":
            chart.pop(side + "_ticks")
    if chart["type"] == "pie":
        for side in "xy":
            chart.pop(side + "_scale")
    return {k: v for k, v in chart.items() if v not in ("", None, [])}


def _series(ax, most):
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    wedges = [p for p in ax.patches if isinstance(p, Wedge)]
    if wedges:
        return "pie", [{"bars": _slices(ax, wedges[:most])}]
    boxes = ax.__dict__.get("_arenero_boxes")
    if boxes:
        return "box_and_whisker", [{"boxes": [_box(ax, *b) for b in boxes[:most]]}]
    bars = [c for c in ax.containers if isinstance(c, BarContainer) and len(c.patches)]
    if bars:
        return "bar", [s for s in (_bars(ax, c, most) for c in bars[:MAX_SERIES]) if s]
    lines, clouds = [], []
    for line in ax.lines:
        points = _line(line, most)
        if points is None:
            continue
        drawn = line.get_linestyle() not in ("None", "none", " ", "")
        (lines if drawn else clouds).append({"label": _label(line), "points": points})
    for c in ax.collections:
        if isinstance(c, PathCollection) and len(c.get_offsets()):
            clouds.append({"label": _label(c), "points": _cloud(ax, c, most)})
    series = [{k: v for k, v in s.items() if v != ""} for s in (lines + clouds)[:MAX_SERIES]]
    if lines:
        return "line", series
    if clouds:
        return "scatter", series
    return "unknown", []


def _line(line, most):
    x, y = line.get_xdata(orig=True), line.get_ydata(orig=True)
    if getattr(line, "_transform", None) is not None and not line.get_transform().contains_branch(line.axes.transData):
        return None  # an axhline or a decoration in other coordinates
    return [[_value(a), _value(b)] for a, b in _thin(_flat(x), _flat(y), most)]


def _cloud(ax, collection, most):
    offsets = collection.get_offsets()
    x, y = _flat(offsets[:, 0]), _flat(offsets[:, 1])
    on_x, on_y = _words(ax.xaxis), _words(ax.yaxis)
    return [[on_x(a), on_y(b)] for a, b in _thin(x, y, most)]


def _bars(ax, container, most):
    flat = getattr(container, "orientation", None) == "horizontal"
    axis = ax.yaxis if flat else ax.xaxis
    labels = _tick_labels(axis)
    group = _label(container)
    bars = []
    for patch in container.patches[:most]:
        if flat:
            value, at = patch.get_width(), patch.get_y() + patch.get_height() / 2
        else:
            value, at = patch.get_height(), patch.get_x() + patch.get_width() / 2
        value = _value(value)
        bar = {"label": _nearest(labels, at, axis), "value": value if value is not None else 0}
        if group:
            bar["group"] = group
        bars.append(bar)
    series = {"bars": bars}
    if group:
        series["label"] = group
    return series


def _slices(ax, wedges):
    values = dict((id(w), v) for w, v in ax.__dict__.get("_arenero_pie", ()))
    out = []
    for w in wedges:
        angle = _value(w.theta2 - w.theta1) or 0
        value = _value(values.get(id(w), abs(angle) / 360)) or 0
        out.append({"label": _label(w), "value": value, "angle": abs(angle), "radius": _value(w.r) or 0})
    return out


def _box(ax, b, place, flat):
    label = _tick_labels(ax.yaxis if flat else ax.xaxis).get(place) or b.get("label") or "%g" % place
    box = {"label": _text(str(label))}
    for ours, theirs in (("min", "whislo"), ("q1", "q1"), ("median", "med"), ("q3", "q3"), ("max", "whishi")):
        box[ours] = _value(b.get(theirs)) or 0
    outliers = [v for v in (_value(f) for f in _flat(b.get("fliers", ()))[:1000]) if v is not None]
    if outliers:
        box["outliers"] = outliers
    return box


def _label(artist):
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else _text(label)


def _text(s):
    s = str(s)
    return s if len(s) <= MAX_TEXT else s[: MAX_TEXT - 1] + "…"


def _flat(values):
    import numpy as np

    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    values = np.ma.filled(values, np.nan) if np.ma.isMaskedArray(values) and values.dtype.kind == "f" else np.asarray(values)
    return values.ravel()


def _thin(x, y, most):
    """Pairs of two arrays, at most most of them, evenly chosen."""
    n = min(len(x), len(y))
    if n > most:
        chosen = [int(i * n / most) for i in range(most)]
        x, y = x[chosen], y[chosen]
    return zip(x[:n], y[:n])


def _value(v):
    """A number, a text or None, as JSON can say it."""
    if v is None:
        return None
    if hasattr(v, "dtype"):
        if v.dtype.kind == "M":
            return None if str(v) == "NaT" else str(v.astype("datetime64[us]"))
        v = v.item()
    if isinstance(v, bool):
        return int(v)
    if isinstance(v, int):
        return v if abs(v) < 1 << 53 else float(v)
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if hasattr(v, "isoformat"):
        return v.isoformat()
    if isinstance(v, str):
        return _text(v)
    try:
        f = float(v)
        return f if math.isfinite(f) else None
    except Exception:
        return _text(v)


def _kind(axis):
    """ "datetime", "categorical" or "" for plain numbers."""
    get = getattr(axis, "get_converter", None)
    converter = get() if get else getattr(axis, "converter", None)
    name = type(converter).__name__.lower()
    if "date" in name or "period" in name:
        return "datetime"
    if "category" in name:
        return "categorical"
    return ""


def _scale(axis):
    return _kind(axis) or str(axis.get_scale())


def _words(axis):
    """How positions on an axis are said in the words of its data."""
    kind = _kind(axis)
    if kind == "datetime":
        return lambda v: _date(_value(v))
    if kind == "categorical":
        labels = _tick_labels(axis)
        return lambda v: labels.get(v, _value(v))
    return _value


def _date(v):
    from matplotlib.dates import num2date

    try:
        return num2date(v).replace(tzinfo=None).isoformat()
    except Exception:
        return v


def _tick_labels(axis):
    """The texts at fixed places: categories, or what set_xticklabels gave."""
    units = getattr(axis, "units", None)
    mapping = getattr(units, "_mapping", None)
    if mapping:
        return {float(v): _text(k) for k, v in mapping.items()}
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    formatter = axis.get_major_formatter()
    if isinstance(formatter, (FixedFormatter, FuncFormatter)):
        places = list(axis.get_majorticklocs())[:MAX_POINTS]
        texts = formatter.format_ticks(places)
        return {float(p): _text(t) for p, t in zip(places, texts) if t}
    return {}


def _nearest(labels, at, axis):
    """The label that stands under a bar, its place if there is none."""
    at = float(at)
    if labels:
        place = min(labels, key=lambda p: abs(p - at))
        if abs(place - at) <= 0.5:
            return labels[place]
    if _kind(axis) == "datetime":
        return str(_date(at))
    return "%g" % at


def _ticks(axis):
    low, high = sorted(axis.get_view_interval())
    places = [p for p in axis.get_majorticklocs() if low <= p <= high][:MAX_TICKS]
    kind = _kind(axis)
    if kind == "datetime":
        return [_date(p) for p in places]
    labels = _tick_labels(axis)
    return [labels.get(float(p), _value(p)) for p in places]
