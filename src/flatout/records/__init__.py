"""What passes between the rooms: frozen records, units, errors, and the run folder."""
