"""What every request passes before its route. Knows nothing about routes."""
