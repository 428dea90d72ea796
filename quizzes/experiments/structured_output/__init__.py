"""Structured output and tool calls."""
