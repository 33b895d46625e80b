"""The engine that backends are judged against: what it says is a script. Judges nothing."""
