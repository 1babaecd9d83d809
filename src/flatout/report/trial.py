"""What there is to say of a trial beside its figures."""

from flatout.records.trial import Trial


def shield_notes(trial: Trial) -> list[str]:
    """How files were protected, where that is not the usual way, and what was kept from leaving."""
    notes = []
    if trial.shield.kind == "redirect":
        notes.append(f"writes were redirected inside the script's processes ({trial.shield.reason})")
    # Nobody keeps files in / itself, and the folders in it are covered one by one.
    closed = [place for place in trial.shield.read_only if place != "/"]
    if closed:
        notes.append(f"read-only during the trial: {', '.join(closed)}")
    return notes + list(trial.shield.notes)
