"""Power limits: who changes them keeps what was before, and puts it back however it ends."""
