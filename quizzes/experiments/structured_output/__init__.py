"""Structured output and tool calls: E41, E42."""
