"""The visual debugger: a Streamlit app over recorded and live runs of the engine (`prep app`)."""
