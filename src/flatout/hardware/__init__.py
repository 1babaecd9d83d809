"""What the machine is: one file or folder a vendor behind one protocol, rated peaks, and health."""
