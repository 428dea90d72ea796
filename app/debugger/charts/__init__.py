"""Two small canvases that pages draw with: rectangles to choose from, and figures over steps."""
