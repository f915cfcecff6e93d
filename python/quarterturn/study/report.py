"""The study's table and page, from the logs alone."""

import html
import json
import math
import pathlib
import statistics

from .arms import CLAIMS

_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f",
           "#bcbd22", "#17becf", "#393b79", "#637939", "#8c6d31", "#843c39", "#7b4173", "#3182bd",
           "#31a354")
_SEEDS_FOR_SIGNIFICANCE = 4


def read(out):
    """Finished runs: {arm: {seed: run}}."""
    runs = {}
    for path in sorted(pathlib.Path(out).glob("runs/*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or "validation" not in lines[-1]:
            continue
        steps = lines[1:-1]
        tail = steps[-max(1, len(steps) // 5):]
        times = sorted(line["ms"] for line in steps)
        runs.setdefault(lines[0]["arm"], {})[lines[0]["seed"]] = {
            "header": lines[0], "losses": [line["loss"] for line in steps],
            "train": statistics.fmean(line["loss"] for line in tail),
            "validation": lines[-1]["validation"], "probe": lines[-1]["probe"],
            "ms": times[len(times) // 2]}
    return runs


def paired(runs, arm, other, what="validation"):
    """Differences arm - other by seed, their mean and its standard error (None with one seed)."""
    seeds = sorted(set(runs.get(arm, {})) & set(runs.get(other, {})))
    differences = [runs[arm][seed][what] - runs[other][seed][what] for seed in seeds]
    if not differences:
        return [], None, None
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return differences, statistics.fmean(differences), None
    return (differences, statistics.fmean(differences),
            statistics.stdev(differences) / math.sqrt(len(differences)))


def verdict(runs, claim):
    """(verdict, why) of one published claim. The words say what one small model can: no
    significance is claimed, and a difference within its own noise is called untestable here."""
    differences, mean, error = paired(runs, claim.worse, claim.better)
    if len(differences) < 2:
        return "not testable at this scale", f"{len(differences)} paired seed(s); two are needed"
    if error is None:
        diverged = [arm for arm in (claim.worse, claim.better)
                    if not all(math.isfinite(run["validation"]) for run in runs[arm].values())]
        return "not testable at this scale", f"runs of {' and '.join(diverged)} diverged"
    told = (f"{claim.worse} - {claim.better} = {mean:+.4f} +- {error:.4f} nats, "
            f"{len(differences)} seeds")
    if len(differences) < _SEEDS_FOR_SIGNIFICANCE:
        told += ": no significance is claimed"
    same_sign = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    if not same_sign or abs(mean) <= 2 * error:
        return ("not testable at this scale",
                told + "; within the noise of the seeds (a null result)")
    return ("consistent with" if mean > 0 else "not consistent with"), told


def rows(runs, base="bf16"):
    """The table: an arm a row."""
    base_ms = statistics.median(r["ms"] for r in runs[base].values()) if base in runs else None
    out = []
    for arm, of_arm in runs.items():
        losses = [run["validation"] for run in of_arm.values()]
        differences, mean, error = paired(runs, arm, base)
        ms = statistics.median(run["ms"] for run in of_arm.values())
        probes = [run["probe"] for run in of_arm.values() if run["probe"]]
        out.append({
            "arm": arm, "seeds": len(of_arm), "validation": statistics.fmean(losses),
            "train": statistics.fmean(run["train"] for run in of_arm.values()),
            "difference": None if arm == base else mean,
            "standard_error": None if arm == base else error,
            "differences": [] if arm == base else differences, "ms": ms,
            "time_over_base": ms / base_ms if base_ms else None,
            "gradient_error": {name: statistics.fmean(p[name] for p in probes if name in p)
                               for name in ("all", "fprop", "dgrad", "wgrad")
                               if any(name in p for p in probes)}})
    return sorted(out, key=lambda row: row["validation"])


def number(value, form=".4f"):
    return "" if value is None else format(value, form)


def text_table(table):
    head = ("arm", "seeds", "val loss", "- bf16", "std err", "train loss", "ms/step", "/ bf16",
            "grad err", "F", "D", "W")
    lines = [head]
    for row in table:
        errors = row["gradient_error"]
        lines.append((row["arm"], str(row["seeds"]), number(row["validation"]),
                      number(row["difference"], "+.4f"), number(row["standard_error"]),
                      number(row["train"]), number(row["ms"], ".1f"),
                      number(row["time_over_base"], ".2f"),
                      *(number(errors.get(name), ".3f")
                        for name in ("all", "fprop", "dgrad", "wgrad"))))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths)))
                     for line in lines)


# ---- plots ----

def smoothed(values):
    """A running mean over a fiftieth of the run, at up to 200 places: [(step, value)]."""
    span = max(1, len(values) // 50)
    stride = max(1, len(values) // 200)
    return [(i, statistics.fmean(values[max(0, i - span + 1):i + 1]))
            for i in range(span - 1, len(values), stride)]


class Plot:
    """An SVG with axes; x and y in data units."""

    def __init__(self, title, x, y, x_label, y_label, width=760, height=380):
        self.x, self.y, self.width, self.height = x, y, width, height
        self.left, self.top, self.right, self.bottom = 64, 28, 16, 44
        self.parts = [f'<text x="{self.left}" y="18" class="t">{html.escape(title)}</text>']
        for value in self.ticks(*x):
            at = self.px(value)
            self.parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{self.top}" '
                              f'y2="{height - self.bottom}" class="g"/><text x="{at:.1f}" '
                              f'y="{height - self.bottom + 16}" class="x">{value:g}</text>')
        for value in self.ticks(*y):
            at = self.py(value)
            self.parts.append(f'<line x1="{self.left}" x2="{width - self.right}" y1="{at:.1f}" '
                              f'y2="{at:.1f}" class="g"/><text x="{self.left - 6}" '
                              f'y="{at + 4:.1f}" class="y">{value:g}</text>')
        self.parts.append(f'<text x="{(self.left + width) / 2:.0f}" y="{height - 8}" class="x">'
                          f'{html.escape(x_label)}</text><text transform="translate(14 '
                          f'{height / 2:.0f}) rotate(-90)" class="x">{html.escape(y_label)}</text>')

    @staticmethod
    def ticks(low, high):
        span = (high - low) or 1.0
        step = 10 ** math.floor(math.log10(span / 4))
        step *= next(m for m in (1, 2, 5, 10) if span / (m * step) <= 6)
        first = math.ceil(low / step)
        return [round(i * step, 12) for i in range(first, int(high / step + 1e-9) + 1)]

    def px(self, value):
        return self.left + (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1) * (
            self.width - self.left - self.right)

    def py(self, value):
        return self.height - self.bottom - (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1) * (
            self.height - self.top - self.bottom)

    def line(self, points, color, title):
        path = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}">'
                          f'<title>{html.escape(title)}</title></polyline>')

    def dot(self, x, y, color, title):
        self.parts.append(f'<circle cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="4" '
                          f'fill="{color}"><title>{html.escape(title)}</title></circle>')

    def svg(self):
        return (f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                f'role="img">{"".join(self.parts)}</svg>')


def loss_plot(runs, colors):
    curves = {arm: smoothed([statistics.fmean(at) for at in zip(
        *(run["losses"] for run in of_arm.values()))]) for arm, of_arm in runs.items()}
    finite = [y for points in curves.values() for _, y in points if math.isfinite(y)]
    if not finite:
        return ""
    late = sorted(finite)
    top = min(late[-1], late[0] + 6 * (late[len(late) // 2] - late[0]) + 0.1)
    last = max(points[-1][0] for points in curves.values())
    plot = Plot("Training loss, mean over seeds", (0, last), (late[0], top), "step", "nats a byte")
    for arm, points in curves.items():
        plot.line([(x, min(y, top)) for x, y in points if math.isfinite(y)], colors[arm], arm)
    return plot.svg()


def gap_plot(table, colors):
    shown = [row for row in table if row["differences"]
             and all(math.isfinite(d) for d in row["differences"])]
    if not shown:
        return ""
    values = [d for row in shown for d in row["differences"]] + [0.0]
    margin = 0.1 * (max(values) - min(values)) or 1e-3
    plot = Plot("Validation loss beyond bf16's, a dot a seed", (0, len(shown) + 1),
                (min(values) - margin, max(values) + margin), "arm, in the table's order", "nats")
    for i, row in enumerate(shown, 1):
        for d in row["differences"]:
            plot.dot(i, d, colors[row["arm"]], f"{row['arm']}: {d:+.4f}")
    return plot.svg()


def error_plot(table, colors):
    roles = ("fprop", "dgrad", "wgrad", "all")
    shown = [row for row in table if row["gradient_error"]]
    if not shown:
        return ""
    top = max(max(row["gradient_error"].values()) for row in shown)
    plot = Plot("Error of weight gradients, by the product in MXFP4: 1 Fprop, 2 Dgrad, 3 Wgrad, "
                "4 all",
                (0, 5), (0, 1.1 * top), "product", "relative")
    for i, row in enumerate(shown):
        for place, role in enumerate(roles, 1):
            if role in row["gradient_error"]:
                plot.dot(place + 0.5 * (i / len(shown) - 0.5), row["gradient_error"][role],
                         colors[row["arm"]],
                         f"{row['arm']} {role}: {row['gradient_error'][role]:.3f}")
    return plot.svg()


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:2em auto;padding:0 1em;
color:#222;background:#fff}table{border-collapse:collapse;font-size:13px}td,th{padding:2px 8px;
text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
svg{max-width:100%;height:auto}svg .g{stroke:#e4e4e4}svg .t{font-weight:600;font-size:14px}
svg .x{text-anchor:middle;font-size:12px;fill:#444}svg .y{text-anchor:end;font-size:12px;fill:#444}
.k{display:inline-block;width:12px;height:12px;margin-right:6px}pre{background:#f6f6f6;padding:8px;
overflow-x:auto}"""


def page(runs, table, claims):
    """One self-contained HTML file."""
    colors = {row["arm"]: _COLORS[i % len(_COLORS)] for i, row in enumerate(table)}
    first = next(iter(next(iter(runs.values())).values()))["header"]
    facts = (f"{first['model']} {first['shape']}, {first['steps']} steps; data: {first['data']}, "
             f"{first['bytes']} bytes, sha256 {first['sha256'][:16]}; {first['device']}; "
             f"quarterturn {first['quarterturn']}, torch {first['torch']}")
    head = ("arm", "seeds", "val loss", "- bf16", "std err", "train loss", "ms a step", "of bf16",
            "grad error", "Fprop", "Dgrad", "Wgrad")
    body = "".join(
        "<tr><td><span class=k style='background:{}'></span>{}</td>{}</tr>".format(
            colors[row["arm"]], html.escape(row["arm"]),
            "".join(f"<td>{cell}</td>" for cell in (
                row["seeds"], number(row["validation"]), number(row["difference"], "+.4f"),
                number(row["standard_error"]), number(row["train"]), number(row["ms"], ".1f"),
                number(row["time_over_base"], ".2f"),
                *(number(row["gradient_error"].get(name), ".3f")
                  for name in ("all", "fprop", "dgrad", "wgrad")))))
        for row in table)
    judged = "".join(f"<tr><td>{html.escape(c['claim'])}</td><td>{c['verdict']}</td>"
                     f"<td>{html.escape(c['why'])}</td></tr>" for c in claims)
    recipes_text = "".join(
        f"<details><summary>{html.escape(arm)}</summary><pre>"
        f"{html.escape(json.dumps(next(iter(of.values()))['header']['recipe'], indent=1))}</pre>"
        "</details>" for arm, of in runs.items())
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
            f"content='width=device-width'><title>Recipes for MXFP4 training</title><style>{_STYLE}"
            f"</style><h1>Recipes for MXFP4 training</h1><p>{html.escape(facts)}</p>"
            f"<table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>{body}</table>"
            "<p>Differences are paired: same seed, same initial weights, same batches. The error "
            "of gradients is that of the quantised layers' weight gradients on one batch, at the "
            "end of each run, relative to their norm.</p>"
            f"{loss_plot(runs, colors)}{gap_plot(table, colors)}{error_plot(table, colors)}"
            f"<h2>Published claims</h2><table><tr><th>claim</th><th>this study is</th><th>why</th>"
            f"</tr>{judged}</table><h2>Recipes</h2>{recipes_text}</html>\n")


def write(out):
    """report.json, report.html, and the table on stdout. 1 if no run is finished."""
    out = pathlib.Path(out)
    runs = read(out)
    if not runs:
        print("no run is finished")
        return 1
    table = rows(runs)
    claims = []
    for claim in CLAIMS:
        if claim.worse in runs and claim.better in runs:
            judged, why = verdict(runs, claim)
            claims.append({"claim": claim.text, "verdict": judged, "why": why})
    (out / "report.json").write_text(json.dumps({"arms": table, "claims": claims}, indent=1) + "\n",
                                     encoding="utf-8")
    (out / "report.html").write_text(page(runs, table, claims), encoding="utf-8")
    print(text_table(table))
    for claim in claims:
        print(f"{claim['verdict']}: {claim['claim']} [{claim['why']}]")
    return 0
