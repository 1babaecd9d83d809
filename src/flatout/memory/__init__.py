"""What will fit, and why something did not."""
