"""Code that lessons give: the model in plain torch, and types that cross to the checker."""
