"""Commands as tools for agents: what they take, where they may go, how they run, what comes back."""
