"""Adapters: E21, E43, E44."""
