"""What grammar libraries are known to follow. Knows nothing about compiling, and imports no library."""
