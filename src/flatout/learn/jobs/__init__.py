"""Small jobs that lessons start, follow and kill: each is a process of its own."""
