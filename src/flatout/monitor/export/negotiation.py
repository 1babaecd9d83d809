"""Which of our formats a client prefers, by its Accept and Accept-Encoding headers."""

from flatout.monitor.export.text import Format


def preferred_format(accept: str) -> Format:
    """OpenMetrics for those that ask for it by name and want it as much as plain text; else plain text."""
    weights = {"openmetrics": 0.0, "plain": 0.0}
    for media, parameters in _entries(accept):
        weight = _weight(parameters)
        if media == "application/openmetrics-text" and _is_version(parameters, "1."):
            weights["openmetrics"] = max(weights["openmetrics"], weight)
        elif media in ("text/plain", "text/*", "*/*"):
            weights["plain"] = max(weights["plain"], weight)
    return (
        "openmetrics"
        if weights["openmetrics"] > 0 and weights["openmetrics"] >= weights["plain"]
        else "plain"
    )


def wants_gzip(accept_encoding: str) -> bool:
    """Whether an answer may be compressed."""
    return any(
        coding == "gzip" and _weight(parameters) > 0 for coding, parameters in _entries(accept_encoding)
    )


def _entries(header: str) -> list[tuple[str, dict[str, str]]]:
    found = []
    for part in header.split(",")[:32]:
        name, *rest = (piece.strip().lower() for piece in part.split(";"))
        parameters = dict(piece.split("=", 1) for piece in rest if "=" in piece)
        found.append((name, {key.strip(): value.strip() for key, value in parameters.items()}))
    return found


def _weight(parameters: dict[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0


def _is_version(parameters: dict[str, str], beginning: str) -> bool:
    return parameters.get("version", beginning).startswith(beginning)
