"""What ddp.py's JSON line says, as text: for the terminal, and for the page of results. No effects."""

from __future__ import annotations

from typing import Any

from harness.claims import EQUAL
from harness.report import aligned, markdown

_EFFICIENCY = 0.91


def ddp_claims(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Each promise of issue 3 about training, with its verdict."""
    claims = []
    if part["part"] == "scaling":
        for hosts, found in _efficiencies(part).items():
            # Where the link itself does not allow it, nothing is promised.
            if hosts == 8 and "smddp" in found and found["bound"] >= _EFFICIENCY:
                claims.append(_claim("scaling efficiency on 8 hosts", _EFFICIENCY, found["smddp"], 0.0))
        return claims
    for layout in part["layouts"]:
        ours = layout["libraries"].get("smddp")
        for name, other in layout["libraries"].items():
            if ours and not name.startswith("smddp"):
                ratio = other["step_seconds"] / ours["step_seconds"]
                claims.append(_claim(f"{part['part']}: {name} / smddp, time of a step", 1.0, ratio, EQUAL))
    return claims


def _claim(what: str, target: float, measured: float, tolerance: float) -> dict[str, Any]:
    holds = measured >= target * (1 - tolerance)
    return {"what": what, "target": target, "measured": round(measured, 3), "tolerance": tolerance, "holds": holds}


def _efficiencies(part: dict[str, Any]) -> dict[int, dict[str, float]]:
    """By number of hosts: time of a step on one host over that on many, for each library and for the bound."""
    found: dict[int, dict[str, float]] = {}
    one: dict[str, Any] = next(layout for layout in part["layouts"] if layout["layout"] == "1x1")
    for layout in part["layouts"]:
        row = {"bound": one["step_bound_seconds"] / layout["step_bound_seconds"]}
        for name, times in layout["libraries"].items():
            if name in one["libraries"]:
                row[name] = one["libraries"][name]["step_seconds"] / times["step_seconds"]
        found[int(layout["layout"].split("x")[0])] = row
    return found


def _heading(part: dict[str, Any]) -> str:
    forward, backward = part["slept_seconds"]
    compute = (
        f"{forward * 1e3:.0f} ms forward, {backward * 1e3:.0f} ms backward" if backward else f"batch {part['batch']}"
    )
    size = f"{part['gradient_bytes'] / 1e6:.1f} MB of float32 gradients"
    return f"{part['title']}: {size}, {compute}, buckets of {part['bucket_megabytes']:g} MB"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"


def _rows(part: dict[str, Any]) -> list[list[str]]:
    if part["part"] == "scaling":
        return _scaling_rows(part)
    rows = [["library", "step", "without synchronisation", "exposed", "link's bound", "step / smddp", "CPU a step"]]
    for layout in part["layouts"]:
        ours = layout["libraries"].get("smddp", {}).get("step_seconds")
        for name, times in layout["libraries"].items():
            row = [name, _milliseconds(times["step_seconds"])]
            row += [_milliseconds(times.get(key)) for key in ("without_synchronisation_seconds", "exposed_seconds")]
            row += [_milliseconds(layout["communication_bound_seconds"])]
            row += [f"{times['step_seconds'] / ours:.2f}" if ours else "-", _milliseconds(times["cpu_seconds"])]
            rows.append(row)
    return rows


def _scaling_rows(part: dict[str, Any]) -> list[list[str]]:
    efficiencies = _efficiencies(part)
    names = list(dict.fromkeys(name for layout in part["layouts"] for name in layout["libraries"]))
    rows = [["hosts", *(f"{name}, step" for name in names), *(f"{name}, efficiency" for name in names), "bound"]]
    for layout, (hosts, found) in zip(part["layouts"], efficiencies.items(), strict=True):
        times = [_milliseconds(layout["libraries"].get(name, {}).get("step_seconds")) for name in names]
        shares = [f"{found[name]:.3f}" if name in found else "-" for name in names]
        rows.append([str(hosts), *times, *shares, f"{found['bound']:.3f}"])
    return rows


def _troubles(part: dict[str, Any]) -> list[str]:
    return [
        f"{kind} on {layout['layout']}: {name}: {reason}"
        for layout in part["layouts"]
        for kind in ("absent", "failed", "wrong")
        for name, reason in layout[kind].items()
    ]


def ddp_text(part: dict[str, Any]) -> str:
    """For the terminal."""
    return "\n".join(["", _heading(part), aligned(_rows(part)), *_troubles(part)])


def ddp_section(part: dict[str, Any]) -> str:
    """For the page of results."""
    command = f"    benchmarks/ddp.py --part {part['part']}"
    layouts = ", ".join(layout["layout"] for layout in part["layouts"])
    title = f"## DDP: {part['title']} ({layouts})"
    troubles = "\n".join(f"- {line}" for line in _troubles(part))
    return "\n\n".join([title, command, _heading(part) + ".", markdown(_rows(part)), troubles])
