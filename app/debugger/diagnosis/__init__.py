"""The section Diagnose of the page Server: `prep diagnose` in the browser."""
