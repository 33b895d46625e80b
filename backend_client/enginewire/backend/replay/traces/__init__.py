"""What a backend adds to the traces of its callers; without the option it only passes them on."""
