"""A decode kernel that adds scores up and never weighs a value."""
