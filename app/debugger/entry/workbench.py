"""The script that Streamlit runs.

Beside its script Streamlit takes a folder `pages/` for pages of its older kind, and the first direct link to a fresh
server (`/step?run=…`) would run one of these files alone. Beside this script there is no such folder.
"""

from app.debugger.main import main

main()
