"""Documentation site: the pages, lessons with their outputs, sources, API reference. `prep site` builds it."""
