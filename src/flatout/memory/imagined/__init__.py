"""A GPU that is only imagined: an unmodified script trains on tensors without memory, and a ledger notes what
they would have taken. Lives in the user's process."""
