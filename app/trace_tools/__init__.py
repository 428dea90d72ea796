"""Tools over recorded traces: the Perfetto export, and the line of code behind a decision."""
