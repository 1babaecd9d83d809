"""Modules as packages of AOTInductor, made and proven in a child process; loaded without the Python model."""
