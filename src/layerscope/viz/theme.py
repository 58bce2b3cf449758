"""Colors of a drawn graph, light and dark, as a style sheet.

Roles differ in hue (the Okabe–Ito palette, safe for color blindness) and in shape or outline as well. No CSS
variables: the renderers of SVG outside browsers do not know them.
"""

from __future__ import annotations

from dataclasses import dataclass

FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """Fill and outline of everything."""

    page: str
    ink: str
    faint: str
    group: tuple[str, str]  # fills of nested boxes in turn
    border: str
    line: str
    back: str
    gradient: str
    roles: dict[str, tuple[str, str]]


LIGHT = Theme(
    page="#ffffff",
    ink="#1c2430",
    faint="#5b6675",
    group=("#eef1f5", "#f7f9fb"),
    border="#b9c2cf",
    line="#5b6675",
    back="#a8590a",
    gradient="#0068b3",
    roles={
        "input": ("#d3e8f8", "#0072b2"),
        "output": ("#fbdccb", "#d55e00"),
        "constant": ("#fdf6cf", "#a8920a"),
        "parameter": ("#d3efe4", "#00845f"),
        "operation": ("#ffffff", "#7b8696"),
        "module": ("#f1dfea", "#a65788"),
        "section": ("#e6e4f5", "#6a61ae"),
    },
)
DARK = Theme(
    page="#12161c",
    ink="#e8ecf2",
    faint="#9aa6b5",
    group=("#1f2630", "#181e26"),
    border="#46515f",
    line="#94a1b2",
    back="#f0a04b",
    gradient="#56b4e9",
    roles={
        "input": ("#12354d", "#56b4e9"),
        "output": ("#4d2712", "#f0834a"),
        "constant": ("#403a10", "#e0cf4f"),
        "parameter": ("#0f3d31", "#2fc99d"),
        "operation": ("#262e39", "#8694a6"),
        "module": ("#432a3b", "#e08fc0"),
        "section": ("#2d2a4a", "#a79fe8"),
    },
)


def stylesheet(*, dark: bool | None = None) -> str:
    """The style sheet: light, with dark for readers who prefer it; or one of the two for everybody."""
    shape = (
        f"text{{font-family:{FONT}}}.head{{font-size:16px;font-weight:bold}}.sub,.key{{font-size:11px}}"
        ".node text,.group text{font-size:10.5px}.node text{text-anchor:middle}.node text.name{font-size:12px}"
        ".name{font-weight:bold}.passes{font-size:10px}.line{fill:none;stroke-width:1.3}"
        ".line.back{stroke-dasharray:5 3}.line.gradient{stroke-width:2.2}.tip{stroke:none}"
        ".node rect{stroke-width:1.2}.node rect.inner{fill:none;stroke-width:.8}"
        ".node.constant rect{stroke-dasharray:3 2}"
        ".node.parameter rect{stroke-width:1.8}.on-dark text,.on-dark .name{fill:#fff}.on-light text{fill:#000}"
    )
    if dark is not None:
        return _colors(DARK if dark else LIGHT) + shape
    return f"{_colors(LIGHT)}{shape}@media (prefers-color-scheme:dark){{{_colors(DARK)}}}"


def _colors(theme: Theme) -> str:
    parts = [
        f".page{{fill:{theme.page}}}text{{fill:{theme.ink}}}.sub,.key,.group text{{fill:{theme.faint}}}",
        f".group .name{{fill:{theme.ink}}}.group rect{{stroke:{theme.border}}}.branch{{fill:{theme.line}}}",
        *(f".level{at} rect{{fill:{fill}}}" for at, fill in enumerate(theme.group)),
        *(
            f".line.{name}{{stroke:{color}}}.tip.{name}{{fill:{color}}}"
            for name, color in (("flow", theme.line), ("back", theme.back), ("gradient", theme.gradient))
        ),
        f".passes{{fill:{theme.back};stroke:{theme.page};stroke-width:3px;paint-order:stroke}}",
        *(f".{role} rect{{fill:{fill};stroke:{stroke}}}" for role, (fill, stroke) in theme.roles.items()),
    ]
    return "".join(parts)
