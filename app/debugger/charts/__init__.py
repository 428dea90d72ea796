"""Two chart components: selectable rectangles, and figures over steps."""
