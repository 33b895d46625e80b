"""What engines in processes of their own have in common: slots, counts, and an eye on the process."""
