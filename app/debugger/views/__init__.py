"""What the pages show, as plain values: functions of a run, without Streamlit."""
