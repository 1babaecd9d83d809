"""The first code of ours that runs in the user's process: waits for torch, then arms the session."""
