"""What runs in the user's process: the session and its taps. Small, quiet, and never in the way."""
